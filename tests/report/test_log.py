"""The log of a run: the information of the device's log in its order, and every figure marked for what it is."""

import dataclasses
import json
import re

import numpy as np
import pytest
from rich.console import Console

from tosaic.engines.interpreter import Call, Method, list_calls
from tosaic.formats.npy import Array
from tosaic.formats.pte import read
from tosaic.formats.sidecar import DelegateFiles, Sidecar
from tosaic.npu.perf import Estimate, Row, Traffic
from tosaic.npu.pmu import PMU_EVENTS, count_events
from tosaic.npu.registers import Family
from tosaic.report.log import SCHEMA, DelegateInfo, RunLog, make_log, show_summary
from tosaic.report.terminal import Page

# The lines of the log in the seed, by what each begins with.
ORDER = [
    "Model `x.pte`",
    "Model PTE file loaded. Size: ",
    "Model buffer loaded, has 2 methods",
    "Running method forward",
    "Method allocator",
    "Setting up planned buffer 0, size ",
    "EthosUBackend::init",
    "Method loaded.",
    "Preparing inputs...",
    "Input prepared",
    "Starting the model execution...",
    "EthosUBackend::execute",
    "NPU Inferences : ",
    "Profiler report",
    "EthosUBackend 0 : cycle_cnt : ",
    "Operator(s) total: ",
    "Inference runtime: ",
    "NOTE: ",
    "Inference CPU ratio: ",
    "Inference NPU ratio: ",
    "cpu_wait_for_npu_cntr : ",
    "Ethos-U PMU report",
    "ethosu_pmu_cycle_cntr : ",
    "ethosu_pmu_cntr0 : ",
    "ethosu_pmu_cntr3 : ",
    "Ethos-U PMU Events:[",
    "model_pte_loaded_size: ",
    "method_allocator_used: ",
    "method_allocator_planned: ",
    "method_allocator_loaded: ",
    "method_allocator_input: ",
    "method_allocator_executor: ",
    "temp_allocator_used: ",
    "Model executed successfully.",
    "1 outputs:",
    "Output[0][0]: ",
    "Program complete, exiting.",
]


def make_beside(*cycles: float) -> Sidecar:
    delegates = tuple(DelegateFiles(b"", summary={"cycles_total": number}) for number in cycles)
    return Sidecar("", "", "", {}, (), (), delegates)


def run_add(data: bytes, beside: Sidecar | None = None) -> RunLog:
    pte = read(data)
    method = Method(pte, executors={"EthosUBackend": lambda _b, _s, inputs, _o: [inputs[0] * 2]})
    outputs = method.run([np.arange(5, dtype=np.int32)])
    return make_log(pte, "forward", file="x.pte", engine="npu", calls=method.calls, outputs=outputs, beside=beside)


def test_lines_in_order(add_pte: dict[str, bytes]) -> None:
    lines = [line.removeprefix("I [tosaic] ") for line in run_add(add_pte["inline"]).to_text().splitlines()]
    at = -1
    for start in ORDER:
        found = [i for i, line in enumerate(lines) if line.startswith(start)]
        assert found, start
        assert found[0] > at, start
        at = found[0]
    assert at == len(lines) - 1
    assert not re.search(r"\.cpp|:\d+\]", "\n".join(lines))


def test_values_of_a_run(add_pte: dict[str, bytes]) -> None:
    log = run_add(add_pte["inline"], make_beside(1234.0))
    text = log.to_text()
    assert f"Size: {len(add_pte['inline'])} bytes." in text
    assert "EthosUBackend::init at 0x70 of the file" in text
    (estimate,) = (delegate.estimate for delegate in log.delegates)
    assert estimate is not None and len(estimate.rows) == 1
    cycles = f"{estimate.cycles} NPU cycles (estimate from the commands), 1234 (Vela's estimate)"
    assert f"EthosUBackend 0 : cycle_cnt : {cycles}" in text
    assert f"Operator(s) total: {cycles}" in text
    assert f"ELEMENTWISE ADD : {estimate.cycles} cycles (estimate), limit Sram, Sram 40 + 20" in text
    assert f"ethosu_pmu_cycle_cntr : {estimate.cycles} (estimate from the commands)" in text
    # Two inputs and one output of 20 bytes each, 8 bytes per beat.
    assert "ethosu_pmu_cntr0 : 5 (estimate from the commands)" in text
    assert "ethosu_pmu_cntr2 : 3 (estimate from the commands)" in text
    assert "ethosu_pmu_cntr3 : (not known)" in text
    assert "method_allocator_input:    20 bytes" in text
    assert [line for line in text.splitlines() if line.startswith("Output")] == [
        f"Output[0][{i}]: (int) {2 * i}" for i in range(5)
    ]


def test_delegates_on_the_cpu_are_not_counted_as_npu(add_pte: dict[str, bytes]) -> None:
    log = run_add(add_pte["inline"])
    other = DelegateInfo("XnnpackBackend", 0, 10)
    calls = (*log.calls, Call("delegate", "XnnpackBackend", 1))
    mixed = dataclasses.replace(log, delegates=(*log.delegates, other), calls=calls)
    assert mixed.cycles == log.cycles
    assert "NPU Inferences : 1" in mixed.to_text() and "NPU delegations: 1" in mixed.to_text()


def _summarize(log: RunLog, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_summary(Page(Console(width=80)), log, 3)
    return capsys.readouterr().out.splitlines()


def test_a_summary_has_cycles_and_the_first_values(
    add_pte: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    log = run_add(add_pte["inline"])
    first, cycles, *outputs = _summarize(log, capsys)
    assert first == "`x.pte` for ethos-u55-128, method `forward`, engine npu"
    assert cycles.startswith(f"NPU cycles  {log.cycles:,} (")
    assert outputs == ["output 0  int32 [5]", "  [0 2 4] and 2 more values (`-o FILE.npz` saves all)"]


def test_a_summary_fits_into_80_columns(add_pte: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    calls = tuple(Call("kernel", f"quantized_decomposed::number_{i}_per_tensor.out", i) for i in range(3))
    lines = _summarize(dataclasses.replace(run_add(add_pte["inline"]), calls=calls), capsys)
    assert sum("quantized_decomposed" in line for line in lines) == 3 and max(map(len, lines)) <= 80


def test_every_cycle_figure_is_marked(add_pte: dict[str, bytes]) -> None:
    for beside in (None, make_beside(99.0), make_beside(99.0, 1.0)):
        for line in run_add(add_pte["inline"], beside).to_text().splitlines():
            if ("cycle" in line.lower() or "pmu_cntr" in line) and re.search(r" : .*\d", line):
                assert "estimate" in line, line


def test_values_can_be_cut(add_pte: dict[str, bytes]) -> None:
    log = run_add(add_pte["inline"])
    assert "Output[0][1]: (int) 2\nOutput[0]: 3 more values\n" in log.to_text(max_values=2)
    assert log.to_json(max_values=2)["outputs"] == [{"dtype": "int32", "shape": [5], "values": [0, 2]}]


@pytest.mark.parametrize(
    ("array", "line"),
    [
        (np.float32([-0.749744]), "(float) -0.749744"),
        (np.float32([np.inf]), "(float) inf"),
        (np.int8([-3]), "(char) -3"),
        (np.uint8([200]), "(byte) 200"),
        (np.int16([300]), "(short) 300"),
        (np.array([True]), "(bool) 1"),
        (np.int64([1 << 40]), "(long) 1099511627776"),
        (np.array(2.5, np.float16), "(half) 2.500000"),
    ],
)
def test_typed_outputs(add_pte: dict[str, bytes], array: Array, line: str) -> None:
    log = make_log(read(add_pte["inline"]), "forward", file="x", engine="npu", calls=[], outputs=[array])
    assert f"Output[0][0]: {line}" in log.to_text().splitlines()
    json.dumps(log.to_json(), allow_nan=False)


def test_dict_is_json_and_versioned(add_pte: dict[str, bytes]) -> None:
    data = json.loads(json.dumps(run_add(add_pte["inline"]).to_json(), allow_nan=False))
    assert data["schema"] == SCHEMA == "tosaic-run/2"
    assert data["estimate"]["source"] == "estimate from the commands"
    assert data["estimate"]["npu_cycles"] == data["delegates"][0]["estimate"]["cycles"] > 0
    assert data["estimate"]["vela_cycles"] is None
    (row,) = data["delegates"][0]["estimate"]["rows"]
    assert (row["kind"], row["bottleneck"], row["traffic"]) == (
        "ELEMENTWISE",
        "Sram",
        {"Sram": {"read": 40, "written": 20}},
    )
    assert list(data["pmu_events"].values()) == [5, 0, 3, None]
    assert data["calls"] == [{"kind": "delegate", "name": "EthosUBackend", "index": 0, "instruction": 0}]
    assert data["target"] == "ethos-u55-128"
    assert data["delegates"][0]["scratch"] > 0
    assert data["memory"]["scratch"] == data["delegates"][0]["scratch"]


def test_two_delegates_add_up(conv_pte: dict[str, bytes]) -> None:
    pte = read(conv_pte["inline"])
    calls = list_calls(pte.find())

    def log(*vela: float) -> RunLog:
        beside = make_beside(*vela)
        return make_log(pte, "forward", file="x", engine="npu", calls=calls, outputs=[], beside=beside)

    both = log(10.0, 5.0)
    estimates = [delegate.estimate for delegate in both.delegates]
    assert both.cycles == sum(e.cycles for e in estimates if e is not None) > 0
    assert both.vela == 15.0
    assert both.target == "ethos-u85-256"
    macs = sum(row.mac_cycles for e in estimates if e is not None for row in e.rows)
    text = both.to_text()
    assert "NPU Inferences : 2" in text
    assert f"ethosu_pmu_cntr5 : {macs} (estimate from the commands)" in text
    assert "ethosu_pmu_cntr6 : (not known)" in text
    assert "aten::native_dropout.out : 1 calls : cycle_cnt : (not known) CPU cycles" in text
    # Figures that are not those of all delegates belong to another file.
    assert log(10.0).vela is None


def test_program_without_delegates(softmax_pte: dict[str, bytes]) -> None:
    pte = read(softmax_pte["inline"])
    log = make_log(pte, "forward", file="x", engine="npu", calls=list_calls(pte.find()), outputs=[])
    assert "NPU Inferences : 0" in log.to_text()
    assert "PMU" not in log.to_text()
    assert log.target == ""


def _make_estimate(accelerator: str, **traffic: Traffic) -> Estimate:
    row = Row(0, "CONV", "", 9, 7, 3, {}, "mac", 1, 0.5, {})
    return Estimate(accelerator, 1e9, (row, row), 20, 2, 0.5, traffic)


def test_counters_of_each_family() -> None:
    assert [len(PMU_EVENTS[family]) for family in Family] == [4, 4, 7]
    moved = {"Sram": Traffic(512 + 9, 1024), "OffChipFlash": Traffic(1360, 0), "Dram": Traffic(0, 33)}
    assert count_events(_make_estimate("ethos-u55-128", **moved)) == {
        "ETHOSU_PMU_AXI0_RD_DATA_BEAT_RECEIVED": 66,
        "ETHOSU_PMU_AXI1_RD_DATA_BEAT_RECEIVED": 170,
        "ETHOSU_PMU_AXI0_WR_DATA_BEAT_WRITTEN": 128,
    }
    assert list(count_events(_make_estimate("ethos-u65-512", **moved)).values()) == [33, 85, 64]
    assert count_events(_make_estimate("ethos-u85-256", **moved)) == {
        "ETHOSU_PMU_SRAM_RD_DATA_BEAT_RECEIVED": 33,
        "ETHOSU_PMU_SRAM_WR_DATA_BEAT_WRITTEN": 64,
        "ETHOSU_PMU_EXT_RD_DATA_BEAT_RECEIVED": 85,
        "ETHOSU_PMU_EXT_WR_DATA_BEAT_WRITTEN": 3,
        "ETHOSU_PMU_MAC_ACTIVE": 14,
    }
