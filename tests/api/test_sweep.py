"""Sweeps: every job once, also if a process dies; what is done stays done; a cluster writes the same files."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.cli import run_command
from tosaic.api import sweeping
from tosaic.api.sweep_worker import Outcome, run_job
from tosaic.core.errors import Invalid
from tosaic.report.choices import Options
from tosaic.report.sweep import CRASHED, DONE, FAILED, Job, Result, read_result, write_page

#: It logs who loads it; the first to load a model with a trap waits to be killed, or ends itself.
MODEL = """
import os, pathlib, time
import torch

here = pathlib.Path(__file__)
with open(here.parent / "log.txt", "a") as log:
    log.write(f"{here.stem}\\n")
trap = here.with_suffix(".trap")
if trap.exists() and not here.with_suffix(".pid").exists():
    here.with_suffix(".pid").write_text(str(os.getpid()))
    if trap.read_text() == "exit":
        os._exit(9)
    time.sleep(600)
if here.with_suffix(".deadly").exists():
    os._exit(9)
torch.manual_seed(0)
model = torch.nn.Conv2d(3, SIZE, 3).eval()
inputs = (torch.randn(1, 3, 8, 8),)
"""


def write_models(folder: Path, names: Sequence[str]) -> list[str]:
    for number, name in enumerate(names):
        (folder / f"{name}.py").write_text(MODEL.replace("SIZE", str(4 + number)))
    return [str(folder / f"{name}.py") for name in names]


def plan(models: Sequence[str], targets: Sequence[str] = ("ethos-u55-128",)) -> list[Job]:
    return sweeping.plan_jobs(models, {"target": targets})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that were started, in this process."""
    jobs: list[Job] = []

    def run(missing: Sequence[Job], *, processes: int, keep: bool) -> Iterator[Outcome]:
        memory: dict[str, Any] = {}
        for job in reversed(missing):
            jobs.append(job)
            yield run_job(job, memory, keep=keep)

    monkeypatch.setattr(sweeping, "run_here", run)
    return jobs


def test_what_is_done_stays_done(tmp_path: Path, started: list[Job]) -> None:
    models = write_models(tmp_path, ["one", "two"])
    jobs = plan(models, ("ethos-u55-128", "ethos-u85-256"))
    out = tmp_path / "out"
    found = sweeping.sweep(jobs[:3], out, keep=True)
    assert [result.status for result in found.results] == [DONE] * 3 and found.ok
    # Loaded once per model, although each is compiled for two targets.
    assert Counter((tmp_path / "log.txt").read_text().split()) == {"one": 1, "two": 1}
    lines = (out / "results.jsonl").read_text()
    assert [json.loads(line)["key"] for line in lines.splitlines()] == [job.key for job in jobs[:3]]
    # A crash in the middle of a line costs that job only.
    (out / "results.jsonl").write_text(lines[:-40])
    again = sweeping.sweep(jobs, out, keep=True)
    assert again.known == 2 and [job.key for job in started[3:]] == [jobs[3].key, jobs[2].key]
    assert again.results[:3] == found.results
    # So does a program that is gone.
    (out / f"{jobs[0].name}.pte").unlink()
    sweeping.sweep(jobs, out, keep=True)
    assert started[-1].key == jobs[0].key and len(started) == 6
    assert sweeping.sweep(jobs, out, keep=True).known == 4 and len(started) == 6


def test_lines_of_other_sweeps_are_kept(tmp_path: Path, started: list[Job]) -> None:
    models = write_models(tmp_path, ["one", "two"])
    sweeping.sweep(plan(models[:1]), tmp_path / "out")
    sweeping.sweep(plan(models[1:]), tmp_path / "out")
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 2 == len(started)
    # A model that has changed is another job.
    Path(models[0]).write_text(Path(models[0]).read_text() + "\n")
    assert sweeping.sweep(plan(models[:1]), tmp_path / "out").known == 0


def test_failures_are_results(tmp_path: Path, started: list[Job]) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("raise RuntimeError('no such weights')\n")
    out = tmp_path / "out"
    jobs = plan([str(bad)])
    found = sweeping.sweep(jobs, out)
    assert found.results[0].status == FAILED and not found.ok
    assert sweeping.sweep(jobs, out).known == 1
    assert sweeping.sweep(jobs, out, retry=True).known == 0 and len(started) == 2


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    with sweeping._lock(tmp_path / "results.jsonl"), pytest.raises(Invalid, match="another sweep"):
        sweeping.sweep([], tmp_path)


def test_only_a_regular_file_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.jsonl")
    with pytest.raises(Invalid, match="cannot write"):
        sweeping.sweep([], tmp_path)


JOB = Job("<b>x</b>", Options("ethos-u55-128"), "0")


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"why": None},
        {"schema": "x"},
        {"job": {}},
        {"choice": {}},
        {"choice": {"cycles": "1"}},
        {"status": DONE, "choice": None},
    ],
)
def test_forged_lines_are_no_results(change: dict[str, Any]) -> None:
    line = json.loads(json.dumps(Result(JOB, FAILED, "why").to_json()))
    assert read_result(line, JOB) == Result(JOB, FAILED, "why")
    assert read_result(line | change, JOB) is None


def test_the_page_shows_names_as_text() -> None:
    page = write_page([Result(JOB, FAILED, "<script>alert(1)</script>")])
    assert "<b>x" not in page and "<script>alert" not in page and "&lt;b&gt;x" in page


def test_the_command(tmp_path: Path, started: list[Job]) -> None:
    model = write_models(tmp_path, ["one"])[0]
    options = ["-t", "ethos-u55-128", "-o", tmp_path / "out", "--io", "float", "--io", "int8", "-q"]
    done = run_command("sweep", model, *options)
    assert done.code == 0, done.stderr
    assert "2 done" in done.stdout and len(started) == 2
    assert (tmp_path / "out" / "table.html").read_text().count("<tr>") == 3
    found = json.loads(run_command("sweep", model, *options, "--json").stdout)
    assert [line["job"]["options"]["io"] for line in found] == ["float", "int8"] and len(started) == 2
    for wrong in (["-o", tmp_path], ["-o", tmp_path, "-t", "vgf"], [*options, "--cluster", "tcp://x:1", "-j", 2]):
        assert run_command("sweep", model, *wrong).code == 2


@pytest.mark.slow
def test_a_process_that_dies_loses_nothing(tmp_path: Path) -> None:
    models = write_models(tmp_path, ["one", "two", "three", "four"])
    (tmp_path / "two.trap").write_text("exit")
    (tmp_path / "four.deadly").touch()
    found = sweeping.sweep(plan(models), tmp_path / "out", processes=2)
    assert [result.status for result in found.results] == [DONE, DONE, DONE, CRASHED]
    assert Counter((tmp_path / "log.txt").read_text().split()) == {"one": 1, "two": 2, "three": 1, "four": 2}


#: Workers log the jobs that they have finished.
PRELOAD = """
from tosaic.api import sweep_cluster
# Not from the module that is changed here: a worker may load this file twice.
from tosaic.api.sweep_worker import run_job as run

def run_and_log(job, memory, *, keep):
    outcome = run(job, memory, keep=keep)
    with open("finished.txt", "a") as log:
        log.write(f"{job.key}\\n")
    return outcome

sweep_cluster.run_job = run_and_log
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A Dask scheduler and two workers, in processes of their own."""
    pytest.importorskip("distributed", reason="the cluster test needs `pip install 'tosaic[cluster]'`")
    contact, preload = tmp_path / "scheduler.json", tmp_path / "preload.py"
    preload.write_text(PRELOAD)
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths, "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    dask = [sys.executable, "-m", "dask"]
    host = ["--scheduler-file", str(contact), "--no-dashboard"]
    commands = [[*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", *host]]
    commands += [[*dask, "worker", "--nthreads", "1", "--no-nanny", "--preload", str(preload), *host]] * 2
    with (tmp_path / "cluster.log").open("wb") as log:
        running = []
        try:
            for command in commands:
                running.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log))
                deadline = time.monotonic() + 300
                while not contact.exists() and time.monotonic() < deadline:
                    time.sleep(0.2)
            yield json.loads(contact.read_text())["address"]
        finally:
            for process in running:
                process.kill()
                process.wait()


@pytest.mark.slow
def test_a_cluster_equals_this_machine_also_if_a_worker_dies(tmp_path: Path, cluster: str) -> None:
    names = ["one", "two", "three", "four", "five"]
    models = write_models(tmp_path, names)
    (tmp_path / "two.trap").write_text("wait")
    jobs = plan(models, ("ethos-u55-128", "ethos-u85-256"))

    def kill() -> None:
        pid = tmp_path / "two.pid"
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.1)
        # What this worker has finished before is on its way.
        time.sleep(3)
        os.kill(int(pid.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    far = sweeping.sweep(jobs, tmp_path / "far", cluster=cluster, keep=True)
    killer.join(1)
    assert not killer.is_alive()
    assert [result.status for result in far.results] == [DONE] * 10
    lines = (tmp_path / "far" / "results.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["key"] for line in lines) == dict.fromkeys((job.key for job in jobs), 1)
    finished = Counter((tmp_path / "finished.txt").read_text().split())
    assert finished == dict.fromkeys((job.key for job in jobs), 1)
    near = sweeping.sweep(jobs, tmp_path / "near", processes=1, keep=True)
    assert near.results == far.results
    files = {path.name: path.read_bytes() for path in (tmp_path / "near").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "far").iterdir()}
    assert len(files) == 2 + 2 * len(jobs)
