"""The log of a run: the information of the device's log in its order, and every figure marked for what it is."""

import json
import re

import numpy as np
import pytest

from tosaic.runtime.host import Method, list_calls
from tosaic.runtime.log import PMU_EVENTS, VERSION, Figures, RunLog, estimate, find_target, make_log
from tosaic.runtime.pte import read

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


def run_add(data: bytes, figures: tuple[Figures, ...] = ()) -> RunLog:
    pte = read(data)
    method = Method(pte, executors={"EthosUBackend": lambda _b, _s, inputs, _o: [inputs[0] * 2]})
    outputs = method.run([np.arange(5, dtype=np.int32)])
    return make_log(pte, "forward", file="x.pte", engine="npu", calls=method.calls, outputs=outputs, figures=figures)


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
    text = run_add(add_pte["inline"], (Figures(1234.0, {"ETHOSU_PMU_NPU_IDLE": 7.0}, "Vela's estimate"),)).to_text()
    assert f"Size: {len(add_pte['inline'])} bytes." in text
    assert "EthosUBackend::init at 0x70 of the file" in text
    assert "EthosUBackend 0 : cycle_cnt : 1234 (Vela's estimate) NPU cycles" in text
    assert "ethosu_pmu_cycle_cntr : 1234 (Vela's estimate)" in text
    assert "ethosu_pmu_cntr0 : (not known)" in text
    assert "ethosu_pmu_cntr3 : 7 (Vela's estimate)" in text
    assert "method_allocator_input:    20 bytes" in text
    assert [line for line in text.splitlines() if line.startswith("Output")] == [
        f"Output[0][{i}]: (int) {2 * i}" for i in range(5)
    ]


def test_every_cycle_figure_is_marked(add_pte: dict[str, bytes]) -> None:
    for figures in ((), (Figures(99.0, {}, "Vela's estimate"),), (Figures(99.0, {}, ""),)):
        for line in run_add(add_pte["inline"], figures).to_text().splitlines():
            if "cycle" in line.lower() and re.search(r" : .*\d", line):
                assert "estimate" in line, line


def test_values_can_be_cut(add_pte: dict[str, bytes]) -> None:
    log = run_add(add_pte["inline"])
    assert "Output[0][1]: (int) 2\nOutput[0]: 3 values more\n" in log.to_text(max_values=2)
    assert log.to_dict(max_values=2)["outputs"] == [{"dtype": "int32", "shape": [5], "values": [0, 2]}]


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
def test_typed_outputs(add_pte: dict[str, bytes], array: np.ndarray, line: str) -> None:
    log = make_log(read(add_pte["inline"]), "forward", file="x", engine="npu", calls=[], outputs=[array])
    assert f"Output[0][0]: {line}" in log.to_text().splitlines()
    json.dumps(log.to_dict(), allow_nan=False)


def test_dict_is_json_and_versioned(add_pte: dict[str, bytes]) -> None:
    data = json.loads(json.dumps(run_add(add_pte["inline"]).to_dict(), allow_nan=False))
    assert data["version"] == VERSION == 1
    assert data["estimate"] == {"npu_cycles": None, "events": {}, "source": None}
    assert data["calls"] == [{"kind": "delegate", "name": "EthosUBackend", "index": 0}]
    assert data["target"] == "ethos-u55-128"
    assert data["delegates"][0]["scratch"] > 0
    assert data["memory"]["scratch"] == data["delegates"][0]["scratch"]


def test_two_delegates_add_up(conv_pte: dict[str, bytes]) -> None:
    pte = read(conv_pte["inline"])
    calls = list_calls(pte.find())
    one = Figures(10.0, {"ETHOSU_PMU_MAC_ACTIVE": 4.0}, "Vela's estimate")
    two = Figures(5.0, {}, "the simulator's estimate")
    log = make_log(pte, "forward", file="x", engine="npu", calls=calls, outputs=[], figures=(one, two))
    assert log.total() == Figures(15.0, {}, "Vela's estimate, the simulator's estimate")
    assert log.target == find_target(pte.find()) == "ethos-u85-256"
    text = log.to_text()
    assert "NPU Inferences : 2" in text
    assert "ethosu_pmu_cntr6 : (not known)" in text
    assert "aten::cumsum.out : 1 calls : cycle_cnt : (not known) CPU cycles" in text
    # One delegate without figures leaves the total open.
    log = make_log(pte, "forward", file="x", engine="npu", calls=calls, outputs=[], figures=(one,))
    assert log.total().cycles is None


def test_program_without_delegates(softmax_pte: dict[str, bytes]) -> None:
    pte = read(softmax_pte["inline"])
    log = make_log(pte, "forward", file="x", engine="npu", calls=list_calls(pte.find()), outputs=[])
    assert "NPU Inferences : 0" in log.to_text()
    assert "PMU" not in log.to_text()
    assert log.target == ""


def test_figures_from_velas_summary() -> None:
    summary = {
        "cycles_total": 1536.0,
        "sram_feature_map_read_bytes": 512.0,
        "sram_feature_map_write_bytes": 1024.0,
        "sram_weight_read_bytes": 16.0,
        "off_chip_flash_weight_read_bytes": 1360.0,
        "dram_feature_map_write_bytes": 32.0,
    }
    assert estimate(summary, "u55") == Figures(
        1536.0,
        {
            "ETHOSU_PMU_AXI0_RD_DATA_BEAT_RECEIVED": 66,
            "ETHOSU_PMU_AXI1_RD_DATA_BEAT_RECEIVED": 170,
            "ETHOSU_PMU_AXI0_WR_DATA_BEAT_WRITTEN": 128,
        },
        "Vela's estimate",
    )
    assert list(estimate(summary, "u85").events.values()) == [33, 64, 85, 2]
    assert estimate({}, "u55") == Figures()


def test_counters_of_each_family() -> None:
    assert [len(PMU_EVENTS[family]) for family in ("u55", "u65", "u85", "tosa")] == [4, 4, 7, 0]
