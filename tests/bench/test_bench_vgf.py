"""The bench of VGF: its table on invented measurements, and one slow compile of our two APIs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        yield importlib.import_module("vgf")


def measured(seconds: float, sqnr: float | None = 40.0) -> dict[str, float | None]:
    return {"seconds": seconds, "converter": 0.5, "pte_bytes": 2000, "delegates": 1, "cpu_ops": 0, "sqnr": sqnr}


def test_ratios_and_verdicts(bench: Any) -> None:
    rows = {
        "float": {"front": measured(1.5), "door": measured(5.0), "peer": measured(10.0)},
        "int8": {"front": measured(1.6), "door": measured(5.0), "peer": measured(10.0, None)},
    }
    lines = bench.make_lines(rows)
    assert all(len(line) == len(bench.TITLES) for line in lines)
    first, second = (line for line in lines if line[1].startswith("nn.Module"))
    assert first[2:] == ("1.50", "5.00", "10.00", "0.500", "0.150")
    assert second[-2:] == ("0.500", "0.160")
    assert [(goal["goal"], goal["met"]) for goal in bench.check_goals(rows)] == [
        ("at most 0.15 of the peer's", True),
        ("at most 0.15 of the peer's", False),
    ]
    assert next(line for line in lines if line[0] == "int8" and "SQNR" in line[1])[2:5] == ("40.0", "40.0", "-")


def test_page(bench: Any) -> None:
    sides = {side: measured(1.0) for side in bench.SIDES}
    machine = {"cpu": "a processor", "cores": 2, "python": "3.11"}
    page = bench.write_markdown({"machine": machine, "tools": {"torch": "2"}, "repeats": 2, "rows": {"float": sides}})
    assert "| nn.Module to .pte, CPU seconds | 1.00 | 1.00 | 1.00 | 1.000 | 1.000 |" in page
    assert "the least of 2" in page


@pytest.mark.slow
@pytest.mark.parametrize("side", ["front", "door"])
def test_our_apis(bench: Any, side: str, tmp_path: Path) -> None:
    pytest.importorskip("model_converter")
    found = bench.run_child(side, "float", tmp_path / "model.pte")
    assert 0 < found["converter"] < found["seconds"]
    judged = bench.judge((tmp_path / "model.pte").read_bytes())
    assert (judged["delegates"], judged["cpu_ops"]) == (1, 0)
    assert judged["sqnr"] is None or judged["sqnr"] > 90
