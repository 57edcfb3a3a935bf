"""A campaign outlives a worker that crashes or hangs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from support import misbehave
from support.fuzzer.pool import Lost, run_all
from support.fuzzer.summary import describe_lost, summarize


def test_crash_and_hang_cost_one_task_each() -> None:
    tasks = ["a", "segfault", "b", "exit", "hang", "c", "long"]
    results = dict(run_all(misbehave.work, misbehave.load, tasks, 2, 1.5))
    assert results.pop("segfault") == Lost("crash: the process ended with SIGSEGV")
    assert results.pop("exit") == Lost("crash: the process ended with exit code 3")
    assert results.pop("hang") == Lost("hang: no result after 1.5 s")
    assert results == {"a": "A", "b": "B", "c": "C", "long": "LONG"}


def test_tool_of_a_hanging_process_is_ended_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    ((_, lost),) = run_all(misbehave.work, misbehave.load, [f"tool {note}"], 1, 1.5)
    assert isinstance(lost, Lost)
    stat = Path(f"/proc/{note.read_text()}/stat")
    end = time.monotonic() + 5
    while (running := stat.exists() and ") Z " not in stat.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not running


def test_process_that_cannot_start_ends_the_campaign() -> None:
    with pytest.raises(RuntimeError, match="does not start: crash: the process ended with exit code 4"):
        list(run_all(misbehave.work, misbehave.fail_to_load, ["a"], 1, 5.0))


def test_lost_graph_is_a_failure_that_names_the_seed() -> None:
    text, data = summarize([describe_lost("int8", 41, "hang: no result after 60 s")], 1.0)
    assert data["failures"] == 1
    assert "seeds [41]" in text
    assert "run_fuzzer.py --profile int8 --seed 41 --count 1" in text


def test_refusals_are_listed_by_reason_with_count_and_seeds() -> None:
    def refused(seed: int, why: str) -> dict[str, Any]:
        return describe_lost("int8", seed, "x") | {"failures": [], "refused": [why]}

    results = [refused(i, f"compile: `node_{i}` has {i} dynamic dims") for i in (3, 14)]
    results.append(refused(5, "run: the TOSA reference model found the result to be undefined"))
    text, data = summarize(results, 1.0)
    assert data["failures"] == 0
    assert "refused 2x [TO BE LOOKED AT] compile: `...` has # dynamic dims (seeds 3, 14)" in text
    assert "refused 1x [expected] run: the TOSA reference model found the result to be undefined (seeds 5)" in text
