"""Compiles many models for many targets with many options. What is done stays done if a sweep is started again."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import tosaic
from tosaic.api import model_file
from tosaic.api.sweep_cluster import run_on_cluster
from tosaic.api.sweep_worker import Outcome, run_here
from tosaic.core import input_file
from tosaic.core.errors import Invalid
from tosaic.core.output import find_target, write_files
from tosaic.report.choices import Options
from tosaic.report.sweep import DONE, Job, Result, is_table, read_result, write_page
from tosaic.tools import vela

RESULTS, TABLE = "results.jsonl", "table.html"
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Sweep:
    """The results of a sweep in the order of its jobs, and how many of them were there before."""

    results: tuple[Result, ...]
    known: int

    @property
    def ok(self) -> bool:
        return all(
            one.status == DONE and (one.choice is None or one.choice.verified is not False) for one in self.results
        )


def plan_jobs(
    models: Sequence[str],
    choices: Mapping[str, Sequence[Any]],
    *,
    calibration: Path | None = None,
    verify: bool = False,
) -> list[Job]:
    """List a job for each model and each combination of options; `choices` has the values of each field of Options."""
    where = "" if calibration is None else str(calibration.resolve())
    samples = "" if calibration is None else _hash_path(calibration)
    tools = f"tosaic {tosaic.__version__}, Vela {vela.version()}, samples {samples}"
    jobs: list[Job] = []
    for model in dict.fromkeys(models):
        model_file.check(model)
        is_file = model.endswith((".py", ".pt2"))
        name = str(Path(model).resolve()) if is_file else model
        what = _hash_path(Path(model)) if is_file else model
        content = hashlib.sha256(f"{what} {tools}".encode()).hexdigest()
        for values in itertools.product(*(dict.fromkeys(one) for one in choices.values())):
            options = Options(**dict(zip(choices, values, strict=True)))
            jobs.append(Job(name, options, content, where, verify))
    return jobs


def _hash_path(path: Path) -> str:
    """Hash a file, or all files of a folder."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        total.update(hashlib.sha256(bytes(input_file.read(file)[0])).digest())
    return total.hexdigest()


def sweep(
    jobs: Sequence[Job],
    folder: Path,
    *,
    processes: int = 1,
    cluster: str = "",
    keep: bool = False,
    retry: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """Run the jobs that a folder has no result of; write `results.jsonl`, line by line, and then `table.html`.

    processes  how many run at the same time on this machine
    cluster    the address of a Dask scheduler to run them on instead
    keep       write the .pte and .tosaic file of every program too
    retry      run jobs again that failed
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RESULTS
    by_key = {job.key: job for job in jobs}
    with _lock(path) as file:
        found, others = _read(path, by_key)
        results = {key: one for key, one in found.items() if one.status == DONE or not retry}
        results = {key: one for key, one in results.items() if not keep or _has_files(folder, one)}
        known = len(results)
        # A line that was cut off by a crash is gone before the next is written.
        _rewrite(file, [*others, *map(_write_line, results.values())])
        missing = [job for key, job in by_key.items() if key not in results]
        runs = (
            run_on_cluster(missing, cluster, keep=keep)
            if cluster
            else run_here(missing, processes=processes, keep=keep)
        )
        for outcome in runs if missing else ():
            result = outcome.result
            if result.job.key in results:
                continue
            _save_files(folder, outcome)
            file.write(_write_line(result) + "\n")
            file.flush()
            results[result.job.key] = result
            if progress is not None:
                progress(f"sweep: {len(results)}/{len(by_key)} {result.job.name} {result.status}")
        ordered = [results[key] for key in by_key]
        _rewrite(file, [*others, *map(_write_line, ordered)])
    write_files({folder / TABLE: write_page(ordered).encode()})
    return Sweep(tuple(ordered), known)


@contextmanager
def _lock(path: Path) -> Generator[TextIO]:
    """Open the results for one sweep at a time."""
    find_target(path)
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise Invalid(f"cannot write `{path}`", why=error.strerror or "") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Invalid(
                f"another sweep writes to `{path.parent}`", fix="wait for it, or use another folder"
            ) from None
        yield file


def _read(path: Path, by_key: Mapping[str, Job]) -> tuple[dict[str, Result], list[str]]:
    """Read the results of these jobs, and the lines of others; damaged lines are left out."""
    found: dict[str, Result] = {}
    others: list[str] = []
    for text in bytes(input_file.read(path, _MAX_BYTES)[0]).decode("utf-8", "replace").splitlines():
        line = _parse(text)
        key = line.get("key")
        if not isinstance(key, str):
            continue
        if key not in by_key:
            others.append(text)
        elif (result := read_result(line, by_key[key])) is not None:
            found[key] = result
    return found, others


def _parse(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return line if is_table(line) else {}


def _write_line(result: Result) -> str:
    return json.dumps(result.to_json(), sort_keys=True, allow_nan=False)


def _rewrite(file: TextIO, lines: Sequence[str]) -> None:
    file.seek(0)
    file.truncate()
    file.writelines(f"{line}\n" for line in lines)
    file.flush()


def _has_files(folder: Path, result: Result) -> bool:
    """Tell whether the program of a result is in the folder."""
    path = folder / f"{result.job.name}.pte"
    if result.choice is None:
        return True
    return path.is_file() and hashlib.sha256(bytes(input_file.read(path)[0])).hexdigest() == result.choice.sha256


def _save_files(folder: Path, outcome: Outcome) -> None:
    files = {folder / f"{outcome.result.job.name}{suffix}": data for suffix, data in outcome.files.items()}
    if files:
        write_files(files)
