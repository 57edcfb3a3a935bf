"""The bench: its arithmetic, its tables and its JSON on invented measurements; one slow run of both sides."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Any:
    """The bench's own modules, which are found as when its scripts run."""

    class Modules:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        for name in ("figures", "table", "plot", "run", "clock"):
            setattr(Modules, name, importlib.import_module(name))
    return Modules


def _measured(factor: float, *, front: bool = False, cpu: int = 0, sqnr: float | None = 20.0) -> dict[str, Any]:
    """What a child writes, with every number `factor` times a plain one."""
    stages = {"export": 1.0, "quantize": 2.0, "own": 3.0, "vela": 0.5}
    stages |= {"front": 4.5, "pack": 1.0} if front else {"re_export": 1.0, "lower": 10.0, "to_executorch": 1.0}
    npu = {
        "cycles": 1000 * factor,
        "cycles_commands": 900 * factor,
        "sram_bytes": 64,
        "command_bytes": 32,
        "weight_bytes": 128,
    }
    kernels = {"quantized_decomposed::quantize_per_tensor.out": 1} | ({"aten::avg_pool2d.out": cpu} if cpu else {})
    return {
        "apart": {"interpreter": 0.1, "imports": 3.0, "warm_up": 1.0},
        "seconds": {name: value * factor for name, value in stages.items()},
        "memory": int(1000 * factor) + 100,
        "result": {
            "pte_bytes": 2000,
            "delegates": 1,
            "cpu_ops": kernels,
            "cpu_compute": cpu,
            "planned_bytes": 10,
            "npu": {**npu, "tosa": ["0" * 64], "same_commands": True},
            "sqnr": {"mean_db": sqnr, "lowest_db": sqnr, "exact": 0, "inputs": 2},
        },
    }


def _rows(bench: Any, model: str = "mobilenet_v2", target: str = "ethos-u55-128", **peer: Any) -> list[dict[str, Any]]:
    make = bench.figures.make_row
    return [
        make(model, target, "door", [_measured(0.6), _measured(0.5)]),
        make(model, target, "front", [_measured(0.25, front=True)]),
        make(model, target, "peer", [_measured(1.0, **peer), _measured(2.0, **peer)]),
    ]


def _report(bench: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    machine = {"cpu": "a processor", "cores": 2, "memory_bytes": 1 << 30, "system": "Linux", "python": "3.11"}
    conditions = {"repeats": 2, "calibration": 8, "evaluation": 16, "threads": 1}
    return bench.figures.make_report(rows, machine, {"torch": "2.13"}, conditions)


def test_every_stage_counts_with_its_least_seconds(bench: Any) -> None:
    repeats = [{"export": 2.0, "lower": 1.0}, {"export": 1.0, "lower": 3.0}]
    assert bench.figures.take_minima(repeats) == {"export": 1.0, "lower": 1.0}


def test_sums_of_both_apis(bench: Any) -> None:
    door, front, peer = (row["figures"] for row in _rows(bench))
    assert peer["quantized_to_pte"] == 11.0
    assert peer["module_to_pte"] == 15.0
    assert peer["exir"] == 6.5
    assert door["module_to_pte"] == 7.5
    assert front["quantized_to_pte"] == 4.5 * 0.25
    assert front["module_to_pte"] == 7.5 * 0.25
    assert front["exir"] == 0.25
    assert front["lower"] is None and front["to_executorch"] is None
    assert door["peak_memory"] == 600


def test_an_integer_model_has_no_quantize_stage(bench: Any) -> None:
    measured = _measured(1.0)
    del measured["seconds"]["quantize"], measured["seconds"]["re_export"]
    figures = bench.figures.make_row("add", "ethos-u55-128", "peer", [measured])["figures"]
    assert figures["quantize"] is None
    assert figures["module_to_pte"] == 12.0


def test_the_high_level_api_counts_as_one_call_if_that_takes_longer(bench: Any) -> None:
    measured = _measured(1.0, front=True)
    for one_call, whole in ((7.0, 7.5), (8.0, 8.0)):
        measured["seconds"]["one_call"] = one_call
        row = bench.figures.make_row("ds_cnn", "ethos-u55-128", "front", [measured])
        assert row["figures"]["module_to_pte"] == whole


def test_ratios_are_ours_over_the_peers(bench: Any) -> None:
    door, front = (entry["ratios"] for entry in bench.figures.compute_ratios(_rows(bench)))
    assert door["lower"] == 0.5
    assert door["cycles"] == 0.25  # the last repeat's result counts
    assert front["lower"] is None
    assert front["quantized_to_pte"] == pytest.approx(4.5 * 0.25 / 11)
    assert door["sqnr"] == 0.0  # a difference, in decibels
    assert "delegates" not in door


def test_no_ratio_without_both_figures(bench: Any) -> None:
    assert bench.figures.divide(1.0, None) is None
    assert bench.figures.divide(None, 1.0) is None
    assert bench.figures.divide(1.0, 0) is None
    rows = [*_rows(bench)[:2], bench.figures.make_failed_row("mobilenet_v2", "ethos-u55-128", "peer", "it crashed")]
    assert not any(r for e in bench.figures.compute_ratios(rows) for r in e["ratios"].values())
    verdicts = {g["figure"]: g["met"] for g in bench.figures.check_goals(rows)}
    assert verdicts["lower"] is None
    assert verdicts["own"] is True  # needs no peer


def test_goals(bench: Any) -> None:
    checked = {(g["figure"], g["column"]): g for g in bench.figures.check_goals(_rows(bench))}
    lower = checked["lower", "door"]
    assert (lower["measured"], lower["met"], lower["goal"]) == (0.5, False, "at most 0.45 of the peer's")
    assert checked["own", "door"]["met"] is True
    assert checked["quantized_to_pte", "front"]["met"] is True
    assert checked["sqnr", "front"]["met"] is True
    other = {g["figure"]: g for g in bench.figures.check_goals(_rows(bench, "ds_cnn"))}
    assert "lower" not in other  # a goal of one model
    assert other["cycles"]["met"] is True
    assert {g["figure"] for g in bench.figures.check_goals(_rows(bench, "softmax"))} == {"sqnr"}


def test_no_goal_for_cycles_where_the_peer_computes_on_the_cpu(bench: Any) -> None:
    assert "cycles" not in {g["figure"] for g in bench.figures.check_goals(_rows(bench, "ds_cnn", cpu=1))}


def test_a_small_file_may_be_some_bytes_larger(bench: Any) -> None:
    goal = bench.figures.Goal("pte_bytes", "front", "ratio", 1.02, slack=4096)
    assert goal.is_met(1.5, 9000, 6000)
    assert not goal.is_met(1.5, 90000, 60000)
    assert not bench.figures.Goal("lower", "door", "ratio", 0.5).is_met(0.501, 501, 1000)


def test_no_goal_where_there_is_nothing_to_measure(bench: Any) -> None:
    exact = _measured(1.0, sqnr=None)
    rows = [bench.figures.make_row("add", "ethos-u55-128", c, [exact]) for c in ("door", "peer")]
    rows.append(bench.figures.make_row("add", "ethos-u55-128", "front", [_measured(1.0, front=True, sqnr=None)]))
    assert bench.figures.check_goals(rows) == []


def test_sqnr_may_be_half_a_decibel_lower_and_no_more(bench: Any) -> None:
    rows = _rows(bench, sqnr=20.4)
    assert all(g["met"] for g in bench.figures.check_goals(rows) if g["figure"] == "sqnr")
    rows = _rows(bench, sqnr=20.6)
    assert not any(g["met"] for g in bench.figures.check_goals(rows) if g["figure"] == "sqnr")


def test_means_leave_out_cycles_where_the_peer_computes_on_the_cpu(bench: Any) -> None:
    rows = [*_rows(bench), *_rows(bench, "resnet8"), *_rows(bench, "ds_cnn", cpu=1), *_rows(bench, "add")]
    means = {(m["column"], m["figure"]): m for m in bench.figures.compute_means(rows)}
    assert means["door", "cycles"]["models"] == ["mobilenet_v2", "resnet8"]
    assert means["door", "lower"]["models"] == ["mobilenet_v2", "resnet8", "ds_cnn"]
    assert math.isclose(means["door", "lower"]["mean"], 0.5)
    assert ("front", "lower") not in means


def test_json_schema(bench: Any) -> None:
    report = _report(bench, _rows(bench))
    assert json.loads(json.dumps(report)) == report
    assert report["schema"] == "tosaic-bench/1"
    assert list(report) == ["schema", "machine", "tools", "conditions", "rows", "ratios", "means"]
    keys = [f.key for f in bench.figures.FIGURES]
    for row in report["rows"]:
        assert sorted(row["figures"]) == sorted(keys)
    failed = bench.figures.make_failed_row("add", "ethos-u55-128", "peer", "no")
    assert sorted(failed) == sorted(report["rows"][0])
    assert sorted(failed["figures"]) == sorted(keys)


def test_markdown(bench: Any) -> None:
    report = _report(bench, [*_rows(bench), *_rows(bench, "ds_cnn", cpu=1)])
    page = bench.table.write_models(report)
    assert "| to_edge_transform_and_lower | 5.00 | - | 10.00 | 0.500 |  |" in page
    assert "* peer: on the CPU `quantized_decomposed::quantize_per_tensor.out` x1, `aten::avg_pool2d.out` x1" in page
    assert "## ds_cnn, ethos-u55-128" in page
    for block in re.findall(r"(?:^\|.*\n)+", page + bench.table.write_markdown(report), re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_page_for_readers(bench: Any) -> None:
    page = bench.table.write_markdown(_report(bench, [*_rows(bench), *_rows(bench, "ds_cnn", cpu=1)]))
    assert re.search(r"\| CPU seconds, model to .pte \| 0.1[23] \(2 models\) \|", page)
    assert re.search(r"\| NPU cycles, by Vela \| 0.1[23] \(1 models\) \|", page), "the peer computes a part of ds_cnn"
    assert "| ds_cnn | 1.88 / 15.00 | 250 / 2,000 |" in page
    assert "## Where Tosaic is worse\n\nIn none of these figures." in page
    assert "met" not in re.findall(r"\w+", page) and "missed" not in page


def test_worse_figures_are_on_the_page_for_readers(bench: Any) -> None:
    rows = [
        *_rows(bench)[:2],
        bench.figures.make_row("mobilenet_v2", "ethos-u55-128", "peer", [_measured(0.2, sqnr=21)]),
    ]
    page = bench.table.write_markdown(_report(bench, rows))
    assert "| mobilenet_v2 | ethos-u55-128 | NPU cycles, by Vela | 250 | 200 | 1.250 |" in page
    assert "| mobilenet_v2 | ethos-u55-128 | SQNR against float, mean | 20.00 | 21.00 | -1.00 dB |" in page


def test_goals_are_in_a_file_of_their_own(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "goals.json").write_text('{"vgf": [], "compare": [1]}')
    bench.run.write_pages(_report(bench, _rows(bench)), tmp_path)
    found = json.loads((tmp_path / "goals.json").read_text())
    assert found["vgf"] == []
    assert [goal["met"] for goal in found["compare"] if goal["figure"] == "lower"] == [False]


def test_pages_are_those_of_the_measured_figures(bench: Any) -> None:
    """docs/bench/*.md and bench/results/goals.json are never edited by hand."""
    pages = BENCH.parent / "docs" / "bench"
    report = json.loads((pages / "results.json").read_text())
    again = "run bench/pages.py"
    assert (pages / "README.md").read_text() == bench.table.write_markdown(report), again
    assert (pages / "models.md").read_text() == bench.table.write_models(report), again
    kept = json.loads((BENCH / "results" / "goals.json").read_text())["compare"]
    checked = json.loads(json.dumps(bench.figures.check_goals(report["rows"])))
    assert kept[: len(checked)] == checked, again


def test_a_failed_side_is_named(bench: Any) -> None:
    rows = [*_rows(bench)[:2], bench.figures.make_failed_row("mobilenet_v2", "ethos-u55-128", "peer", "it crashed")]
    report = _report(bench, rows)
    assert "* peer: failed (it crashed)" in bench.table.write_models(report)
    assert "| mobilenet_v2 | 1.88 / - |" in bench.table.write_markdown(report)


def test_last_words_hold_no_path(bench: Any) -> None:
    log = "Traceback\n  File x\nFileNotFoundError: '/home/someone/main/src/a.py' is missing\n\n"
    assert bench.run.last_words(log) == "FileNotFoundError: 'a.py' is missing"
    assert bench.run.last_words("") == "no message"


def test_options(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = bench.run.read_options([])
    assert options.targets == ("ethos-u55-128", "ethos-u85-256")
    assert {"mobilenet_v2", "vit"} <= set(options.models)
    assert (options.repeats, options.evaluation) == (2, 16)
    quick = bench.run.read_options(["--quick", "--models", "ds_cnn,add", "--targets", "ethos-u65-512"])
    assert (quick.models, quick.targets, quick.repeats) == (("ds_cnn", "add"), ("ethos-u65-512",), 1)
    assert "resnet8" in bench.run.read_options(["--models", "all"]).models
    with pytest.raises(SystemExit):
        bench.run.read_options(["--models", "resnet9"])
    assert "`resnet9` is not one of" in capsys.readouterr().err


def test_plot(bench: Any) -> None:
    svg = bench.plot.draw(_report(bench, _rows(bench)), "cycles", "front", "a & b")
    assert "mobilenet_v2" in svg and "a &amp; b" in svg
    assert ">0.12<" in svg  # 250 cycles of 2000
    left = bench.plot.draw(_report(bench, _rows(bench, cpu=1)), "cycles", "front", "")
    assert "mobilenet_v2" not in left


def test_machine_has_no_name(bench: Any) -> None:
    assert sorted(bench.run.describe_machine()) == ["cores", "cpu", "memory_bytes", "python", "system"]


def test_clock_adds_up_and_counts_the_tool(bench: Any) -> None:
    tool = iter([0.0, 5.0, 5.0, 7.0])
    clock = bench.clock.Clock(lambda: next(tool))
    work = clock.wrap(lambda x: x + 1, "work")
    assert (work(1), work(2)) == (2, 3)
    assert 7.0 <= clock.seconds["work"] < 7.5


def test_memory_is_the_largest_sum_of_a_piece(bench: Any) -> None:
    memory = bench.clock.Memory()
    if not memory.resets:
        pytest.skip("this system cannot reset the peak")
    before = memory.cut()
    held = bytearray(b"x") * (64 << 20)
    with_held = memory.cut()
    assert with_held >= before + len(held) * 0.9
    del held
    memory.cut()
    # A child that is large while this process is small: less than both peaks together.
    work = "held = bytearray(b'x') * (64 << 20); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = memory.cut()
        child.communicate(b"\n")
    assert with_held <= both < with_held + (48 << 20)
    memory.begin()
    assert memory.cut() < before + (32 << 20)


@pytest.mark.slow
def test_both_sides_of_a_small_model(tmp_path: Path) -> None:
    arguments = ["--quick", "--models=ds_cnn", "--targets=ethos-u55-128", f"--out={tmp_path}"]
    done = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), *arguments], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "results.json").read_text()
    report = json.loads(text)
    rows = {row["column"]: row for row in report["rows"]}
    assert [row["error"] for row in rows.values()] == [None, None, None]
    assert rows["door"]["tosa_sha256"] == rows["front"]["tosa_sha256"]
    assert rows["peer"]["same_commands"] is True
    for column in ("door", "front"):
        figures = rows[column]["figures"]
        assert (figures["delegates"], figures["cpu_compute"]) == (1, 0)
        assert figures["sqnr"] > 20
    # Compute on the peer's CPU is what keeps this row out of the mean of cycles.
    assert rows["peer"]["cpu_ops"]["aten::avg_pool2d.out"] == 1
    assert (tmp_path / "README.md").read_text().startswith("# Comparison with executorch.backends.arm")
    assert str(Path.home()) not in text and str(BENCH.parent) not in text
