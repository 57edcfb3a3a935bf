"""The bench of precisions: its goals and its table on invented rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def precisions() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        return importlib.import_module("precisions")


def make_row(precision: str, size: int = 1000, sqnr: float = 40.0, **program: Any) -> dict[str, Any]:
    figures = {"sqnr_mean_db": sqnr, "same": 97, "decisions": 100}
    made = {"pte_bytes": size, "sram_bytes": 64, "cycles": 900, "delegates": 1, "cpu_nodes": []}
    checked = {"runs": 1, "elements": 5, "wrong": 0}
    return {
        "precision": precision,
        "target": "ethos-u55-128",
        "torch": {"sqnr_mean_db": 40.2},
        "error": None,
        "program": {**made, "checked": checked, **program},
        "figures": figures,
    }


def list_missed(precisions: Any, name: str, *rows: dict[str, Any]) -> list[str]:
    return [goal["goal"] for goal in precisions.judge(name, rows) if not goal["met"]]


def test_goals(precisions: Any) -> None:
    assert list_missed(precisions, "silero_whole", make_row("int8"), make_row("a16w8"), make_row("a8w4", 620)) == []
    assert list_missed(precisions, "mobilenet_v2", make_row("int8"), make_row("a8w4", 621)) == [
        "a8w4: part of int8's bytes, at most 0.62"
    ]
    assert list_missed(precisions, "unet", make_row("a16w8", sqnr=39.6)) == [
        "a16w8: mean SQNR against torch's graph, dB, at least -0.5"
    ]
    assert list_missed(precisions, "unet", make_row("a16w8", delegates=2, cpu_nodes=["aten.sort: no"])) == [
        "a16w8: delegates",
        "a16w8: nodes on the CPU",
    ]
    different = make_row("a8w4", checked={"runs": 1, "elements": 5, "wrong": 1})
    assert list_missed(precisions, "unet", different) == ["a8w4: numbers that differ from the TOSA reference model"]
    failed = {"precision": "a16w8", "target": "ethos-u55-128", "torch": {}, "error": "too large"}
    assert list_missed(precisions, "unet", failed) == ["a16w8: compiles"]


def test_a_voice_detector_keeps_decisions(precisions: Any) -> None:
    row = make_row("a16w8")
    row["figures"]["same"] = 96
    assert list_missed(precisions, "silero_whole", row) == ["a16w8: part of float's decisions, at least 0.97"]
    assert list_missed(precisions, "minilm", row) == []


def test_the_table_has_a_line_for_each_row(precisions: Any) -> None:
    net = {
        "model": "Net",
        "measured_on": "these",
        "calibrated_on": "those",
        "weights_sha256": "0",
        "float_bytes": 4000,
        "rows": [make_row("int8"), {**make_row("a16w8"), "error": "too large"}],
    }
    lines = precisions.write_net(net).splitlines()
    assert lines[-2].startswith("| int8 | ethos-u55-128 | 40.0 dB | 40.2 dB | 97 of 100 |  | 900 | 64 | 1,000 | 1; 0 |")
    assert "failed: too large" in lines[-1]
