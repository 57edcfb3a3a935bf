"""The ETDump of a run, opened by ExecuTorch's Inspector together with the ETRecord of the program."""

from __future__ import annotations

import importlib.resources
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import executorch.devtools.etdump as etdump_package
import pytest
import torch
from executorch.devtools import Inspector
from executorch.exir import to_edge_transform_and_lower
from typer.testing import CliRunner

import tosaic
from tosaic.cli import app
from tosaic.formats import etdump, sidecar


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


INPUTS = (torch.linspace(-1, 1, 3 * 64).reshape(1, 3, 8, 8),)
LAYERS = ["body.0.conv2d", "body.2.conv2d_1", "mean", "head.linear"]


@pytest.fixture(scope="module")
def program() -> tosaic.Program:
    torch.manual_seed(0)
    return tosaic.compile(Net().eval(), INPUTS, "ethos-u55-128", calibration=[INPUTS], etrecord=True)


@pytest.fixture
def folder(program: tosaic.Program, tmp_path: Path) -> Path:
    program.save(tmp_path / "net.pte")
    assert program.etrecord is not None
    (tmp_path / "net.etrecord").write_bytes(program.etrecord)
    return tmp_path


def run(folder: Path, **options: Any) -> list[Any]:
    """Run net.pte with --etdump; return the events that Inspector finds."""
    file = folder / "net.etdp"
    done = CliRunner().invoke(app, ["run", str(folder / "net.pte"), "--etdump", str(file)])
    assert done.exit_code == 0, done.output
    (block,) = Inspector(etdump_path=str(file), **options).event_blocks
    assert block.name == "Execute"
    return block.events


def test_layers_have_names_and_estimates(folder: Path, program: tosaic.Program) -> None:
    events = run(folder, etrecord=str(folder / "net.etrecord"))
    layers = [event for event in events if event.is_delegated_op]
    assert [event.name for event in layers] == LAYERS
    assert {event.delegate_backend_name for event in layers} == {"EthosUBackend"}
    assert all(event.perf_data.avg > 0 for event in layers)
    others = {event.name: event for event in events if not event.is_delegated_op}
    assert list(others) == [
        "Method::execute",
        "native_call_quantize_per_tensor.out",
        "DELEGATE_CALL",
        "native_call_dequantize_per_tensor.out",
    ]
    found = program.delegates[0].artifact.estimate_cycles()
    assert found is not None
    assert others["DELEGATE_CALL"].perf_data.avg == pytest.approx(found.seconds * 1e3, rel=1e-3)
    assert sum(event.perf_data.avg for event in layers) == pytest.approx(others["DELEGATE_CALL"].perf_data.avg)
    assert others["native_call_quantize_per_tensor.out"].op_types == [
        "quantized_decomposed.quantize_per_tensor.default"
    ]
    assert others["native_call_quantize_per_tensor.out"].perf_data.avg == 0


def test_layers_are_those_of_the_profile(tmp_path: Path) -> None:
    """Their cycles have the waits for DMAs, and add up to those of the delegate."""
    program = tosaic.compile(Net().eval(), INPUTS, "ethos-u65-512")
    program.save(tmp_path / "net.pte")
    events = [event for event in run(tmp_path) if event.is_delegated_op]
    found = [json.loads(bytes(event.raw_delegate_debug_metadatas[0])) for event in events]
    profile = program.profile()
    expected = [layer for layer in profile.layers if layer.device == "NPU"]
    assert [(one["cycles"], one["limit"]) for one in found] == [(layer.cycles, layer.limit) for layer in expected]
    assert sum(one["cycles"] for one in found) == profile.cycles
    assert any("DMA" in layer.limits for layer in expected)


def test_every_layer_says_that_it_is_an_estimate(folder: Path) -> None:
    (layer, *_) = (event for event in run(folder) if event.is_delegated_op)
    (raw,) = layer.raw_delegate_debug_metadatas
    found = json.loads(bytes(raw))
    assert (found["source"], found["op"]) == ("estimate from the commands", "aten.conv2d.default")
    assert found["cycles"] > 0 and found["macs"] > 0 and found["limit"]


def test_without_sidecar_layers_are_operations(folder: Path) -> None:
    (folder / "net.tosaic").unlink()
    names = [event.name for event in run(folder) if event.is_delegated_op]
    assert len(names) >= len(LAYERS)
    assert all(re.fullmatch(r"0x[0-9a-f]{6} .+", name) for name in names)


@pytest.mark.parametrize("damage", ["", "queue", "scheduled_id"])
def test_damaged_debug_database(folder: Path, damage: str) -> None:
    """Whatever the database of an unknown .tosaic file lacks, the run has its ETDump."""
    beside = sidecar.read((folder / "net.tosaic").read_bytes())
    text = beside.delegates[0].debug_db.replace(damage, "x") if damage else ""
    changed = replace(beside, delegates=(replace(beside.delegates[0], debug_db=text),))
    (folder / "net.tosaic").write_bytes(sidecar.write(changed))
    assert not set(LAYERS) & {event.name for event in run(folder)}


def test_executorch_api_has_operators_and_lines(tmp_path: Path) -> None:
    torch.manual_seed(0)
    quantized = tosaic.quantize(torch.export.export(Net().eval(), INPUTS), [INPUTS])
    ours = tosaic.EthosUPartitioner(tosaic.EthosUCompileSpec("ethos-u55-128"))
    edge = to_edge_transform_and_lower(
        torch.export.export(quantized, INPUTS), partitioner=[ours], generate_etrecord=True
    )
    made = edge.to_executorch()
    made.save(str(tmp_path / "net.pte"))
    made.get_etrecord().save(str(tmp_path / "net.etrecord"))
    tosaic.write_sidecar(tmp_path / "net.pte")
    layers = [e for e in run(tmp_path, etrecord=str(tmp_path / "net.etrecord")) if e.is_delegated_op]
    operators = {event.name: event.op_types for event in layers}
    # exir gives one number to all nodes that come from one line: the quantize after the linear has it too.
    assert "aten.linear.default" in operators.pop("head.aten_linear_default")
    assert all(name.startswith("body.") or "mean" in name for name in operators)
    assert all("forward" in trace for event in layers for trace in event.stack_traces.values() if trace)
    assert all(event.stack_traces for event in layers)


def test_slots_are_those_of_the_schema() -> None:
    text = (importlib.resources.files(etdump_package) / "etdump_schema_flatcc.fbs").read_text()
    plain = re.sub(r"//.*", "", text)
    tables = {name: re.findall(r"(\w+)\s*:", body) for name, body in re.findall(r"table (\w+) \{(.*?)\}", plain, re.S)}
    event = tables["ProfileEvent"]
    assert [event[slot] for slot in (etdump._NAME, etdump._CHAIN, etdump._INSTRUCTION)] == [
        "name",
        "chain_index",
        "instruction_id",
    ]
    assert event[etdump._LAYER] == "delegate_debug_id_str" and event[etdump._METADATA] == "delegate_debug_metadata"
    assert (event[etdump._START], event[etdump._END]) == ("start_time", "end_time")
    assert tables["Event"][etdump._PROFILE_EVENT] == "profile_event"
    assert (tables["RunData"][etdump._RUN_NAME], tables["RunData"][etdump._RUN_EVENTS]) == ("name", "events")
    assert tables["ETDump"][etdump._RUNS] == "run_data"
    assert f'file_identifier "{etdump.IDENTIFIER.decode()}"' in text
