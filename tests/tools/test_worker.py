"""The child process: what it answers, and what happens when it fails, hangs or dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tosaic.core.errors import Invalid, ToolFailed
from tosaic.tools.process import DEFAULT_TIMEOUT, TIMEOUT_VARIABLE, find_time_limit
from tosaic.tools.worker import Worker

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    worker = Worker("echo_child", "Echo")
    yield worker
    worker.close()


def _ask(worker: Worker, timeout: float | None = 30.0, **body: Any) -> dict[str, Any]:
    reply = worker.request(body, timeout=timeout)
    assert reply.failure == ""
    return dict(reply.body)


def _is_alive(pid: int) -> bool:
    # A zombie that init has not collected yet counts as ended.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_until_dead(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while _is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not _is_alive(pid)


def test_answers_with_body_parts_and_log(worker: Worker) -> None:
    reply = worker.request({"say": "grüße", "n": [1, 2.5, None]}, [b"abc", b"", bytes(range(256))])
    assert reply.body["body"] == {"say": "grüße", "n": [1, 2.5, None]}
    assert reply.parts == [b"cba", b"", bytes(range(255, -1, -1))]
    assert reply.log == "grüße\n"


def test_log_has_what_native_code_prints_and_only_this_request(worker: Worker) -> None:
    first = worker.request({"do": "native", "say": "from Python"}).log
    assert sorted(first.splitlines()) == ["from C stdio", "from Python", "to fd 1", "to fd 2"]
    assert worker.request({"say": "second"}).log == "second\n"


def test_child_is_kept_and_works_in_a_fresh_folder_each_time(worker: Worker) -> None:
    first, second = _ask(worker), _ask(worker)
    assert first["pid"] == second["pid"] != os.getpid()
    assert first["folder"] != second["folder"]
    assert first["files"] == second["files"] == []
    assert not Path(first["folder"]).exists()


def test_child_has_no_stdin_and_no_torch(worker: Worker) -> None:
    answer = _ask(worker)
    assert answer["stdin"] == ""
    assert answer["torch"] is False


def test_what_the_first_request_leaves_behind_is_not_scanned_again(worker: Worker) -> None:
    # Python itself freezes a few hundred from 3.12 on.
    assert _ask(worker, do="import")["frozen"] < 1_000
    assert _ask(worker)["frozen"] >= 200_000


def test_large_parts_pass_both_ways(worker: Worker) -> None:
    data = os.urandom(1 << 20) * 40
    assert worker.request({}, [data, data]).parts == [data[::-1], data[::-1]]


def test_exception_is_a_failure_and_the_child_lives_on(worker: Worker) -> None:
    pid = _ask(worker)["pid"]
    reply = worker.request({"do": "raise", "text": "no such thing"})
    assert reply.failure == "ValueError: no such thing"
    assert "Traceback" in reply.log
    assert _ask(worker)["pid"] == pid


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_crash_names_signal_and_log_then_restarts(worker: Worker, name: str) -> None:
    pid = _ask(worker)["pid"]
    with pytest.raises(ToolFailed) as caught:
        worker.request({"do": "crash", "signal": name, "say": "last words"})
    assert caught.value.what == f"Echo crashed with {name}"
    assert caught.value.log == "last words\n"
    assert "last words" in caught.value.why
    assert caught.value.exit_code == 3
    assert _ask(worker)["pid"] != pid


def test_exit_code_is_named_then_restarts(worker: Worker) -> None:
    with pytest.raises(ToolFailed, match="Echo ended with exit code 7"):
        worker.request({"do": "exit", "code": 7})
    assert _ask(worker)["pid"] != os.getpid()


def test_timeout_kills_says_how_to_raise_it_then_restarts(worker: Worker) -> None:
    pid = _ask(worker)["pid"]
    start = time.monotonic()
    with pytest.raises(ToolFailed) as caught:
        worker.request({"do": "hang", "say": "still here"}, timeout=0.5)
    assert time.monotonic() - start < 20.0
    assert "0.5 s" in caught.value.what
    assert TIMEOUT_VARIABLE in caught.value.fix
    assert not _is_alive(pid)
    assert _ask(worker)["pid"] != pid


def test_child_that_died_between_requests_is_replaced(worker: Worker) -> None:
    pid = _ask(worker)["pid"]
    os.kill(pid, signal.SIGKILL)
    assert _wait_until_dead(pid, 10.0)
    assert _ask(worker)["pid"] != pid


def test_interrupt_leaves_no_half_read_answer(worker: Worker) -> None:
    pid = _ask(worker)["pid"]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            worker.request({"do": "hang"})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    answer = _ask(worker, say="new")
    assert answer["body"] == {"say": "new"} and answer["pid"] != pid


def test_missing_module_is_explained() -> None:
    with pytest.raises(ToolFailed, match="Nothing ended with exit code 1") as caught:
        Worker("tosaic.tools.no_such_child", "Nothing").start()
    assert "no_such_child" in caught.value.why


def test_close_ends_child_and_removes_folder(worker: Worker) -> None:
    answer = _ask(worker)
    home = Path(answer["folder"]).parents[1]
    assert home.is_dir()
    worker.close()
    assert not _is_alive(answer["pid"])
    assert not home.exists()


def test_cpu_seconds_count_every_child(worker: Worker) -> None:
    assert worker.cpu_seconds == 0.0
    worker.start()
    started = worker.cpu_seconds
    assert started > 0.0
    _ask(worker, do="burn", seconds=0.3)
    burnt = worker.cpu_seconds - started
    assert 0.3 <= burnt < 1.0
    worker.close()
    assert worker.cpu_seconds == pytest.approx(started + burnt)
    worker.start()
    assert worker.cpu_seconds > started + burnt


def test_threads_take_turns(worker: Worker) -> None:
    answers: dict[int, int] = {}

    def ask(number: int) -> None:
        for _ in range(10):
            answers[number] = _ask(worker, number=number)["body"]["number"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: number for number in range(8)}


def test_fork_starts_a_child_of_its_own(worker: Worker) -> None:
    pid = _ask(worker)["pid"]
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        try:
            os.write(writer, str(_ask(worker)["pid"]).encode())
            worker.close()
        finally:
            os._exit(0)
    os.waitpid(fork, 0)
    other = int(os.read(reader, 100))
    assert other != pid
    assert _ask(worker)["pid"] == pid


def _run_script(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**clean, **env}, capture_output=True, text=True, check=False, cwd="/")


def test_child_and_folder_end_with_a_killed_parent(tmp_path: Path) -> None:
    code = f"""if True:
        import os, signal, sys
        sys.path.insert(0, {str(SRC)!r})
        from tosaic.tools.worker import Worker
        worker = Worker("echo_child", "Echo")
        print(worker.request({{}}).body["pid"], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = _run_script(code, PYTHONPATH=str(HERE), TMPDIR=str(tmp_path))
    assert done.returncode == -signal.SIGKILL
    assert _wait_until_dead(int(done.stdout), 10.0)
    assert list(tmp_path.iterdir()) == []


def test_child_and_folder_end_with_a_parent_that_exits(tmp_path: Path) -> None:
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(SRC)!r})
        from tosaic.tools.worker import Worker
        worker = Worker("echo_child", "Echo")
        print(worker.request({{}}).body["pid"], flush=True)
    """
    done = _run_script(code, PYTHONPATH=str(HERE), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert _wait_until_dead(int(done.stdout), 10.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_busy_orphan_does_not_outlive_its_limit(tmp_path: Path) -> None:
    code = f"""if True:
        import os, signal, sys, threading
        sys.path.insert(0, {str(SRC)!r})
        from tosaic.tools.worker import Worker
        worker = Worker("echo_child", "Echo")
        print(worker.request({{}}).body["pid"], flush=True)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        worker.request({{"do": "hang"}}, timeout=1.0)
    """
    done = _run_script(code, PYTHONPATH=str(HERE), TMPDIR=str(tmp_path))
    assert done.returncode == -signal.SIGKILL
    assert _wait_until_dead(int(done.stdout), 15.0)


def test_package_on_the_parents_sys_path_is_enough() -> None:
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(SRC)!r})
        from tosaic.tools import vela
        vela.worker().start()
        print(vela.worker().cpu_seconds > 0.0)
    """
    done = _run_script(code)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    "modules",
    [
        "tosaic.tools.vela, tosaic.engines.reference, tosaic.tools.cache",
        "tosaic.tools.vela_child",
        "tosaic.formats.blob",
    ],
)
def test_tools_do_not_import_torch(modules: str) -> None:
    done = _run_script(f"import sys, {modules}; print('torch' in sys.modules)", PYTHONPATH=str(SRC))
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_time_limit_comes_from_caller_environment_or_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TIMEOUT_VARIABLE, raising=False)
    assert find_time_limit(None) == DEFAULT_TIMEOUT
    monkeypatch.setenv(TIMEOUT_VARIABLE, "2.5")
    assert find_time_limit(None) == 2.5
    assert find_time_limit(7.0) == 7.0


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_time_limit_rejects_nonsense(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(TIMEOUT_VARIABLE, text)
    with pytest.raises(Invalid, match=TIMEOUT_VARIABLE):
        find_time_limit(None)
