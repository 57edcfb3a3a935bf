"""The layer profile: complete names, figures that add up, and files that other tools open."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tosaic
from tosaic.api.program import Program
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import blob, pte, sidecar
from tosaic.npu.perf import estimate
from tosaic.npu.reads import list_reads
from tosaic.npu.stream import parse
from tosaic.report.files import open_program
from tosaic.report.layers import describe_layer, write_csv
from tosaic.report.profile import Layer, Profile
from tosaic.report.profiler import make_profile
from tosaic.report.trace import make_trace
from tosaic.tools.vela_debug import read_tables, write_tables
from tosaic.tools.vela_options import VelaOptions


@pytest.fixture(scope="module")
def profile(program: Program) -> Profile:
    return program.profile()


#: what files of earlier releases lack
NEW_KEYS = ("reasons", "warnings")


def edit_manifest(data: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    """A .tosaic file with another manifest."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts["manifest.json"])
    edit(manifest)
    parts["manifest.json"] = json.dumps(manifest).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def find(profile: Profile, module: str, op: str) -> Layer:
    (layer,) = [x for x in profile.layers if x.module == module and x.short_op == op]
    return layer


def test_cycles_add_up_to_those_of_the_program(program: Program, profile: Profile) -> None:
    wanted = sum(d.estimate.cycles for d in program.report().delegates if d.estimate is not None)
    assert profile.cycles == wanted > 0
    assert sum(layer.cycles or 0 for layer in profile.layers) == wanted
    assert sum(profile.limits.values()) == wanted
    for index, delegate in enumerate(program.report().delegates):
        assert delegate.estimate is not None
        own = [layer for layer in profile.layers if layer.delegate == index]
        assert sum(layer.cycles or 0 for layer in own) == delegate.estimate.cycles
        assert all(sum(layer.limits.values()) == layer.cycles for layer in own)


def test_traffic_macs_and_weights_add_up(program: Program, profile: Profile) -> None:
    found = [d.estimate for d in program.report().delegates if d.estimate is not None]
    assert profile.macs == sum(one.macs for one in found)
    for way in ("read", "written"):
        wanted = Counter[str]()
        got = Counter[str]()
        for one in found:
            wanted.update({name: getattr(moved, way) for name, moved in one.traffic.items()})
        for layer in profile.layers:
            got.update({name: getattr(moved, way) for name, moved in layer.traffic.items()})
        assert got == wanted
    parameters = sum(layer.weight_bytes for layer in profile.layers)
    # The rest of the network are lookup tables, and constants of operators with two inputs.
    assert 0.5 * program.memory.network < parameters <= program.memory.network


def test_layers_have_names_lines_and_shapes(profile: Profile, lines: dict[str, int]) -> None:
    first = find(profile, "body.0", "conv2d")
    assert (first.op, first.fused, first.device, first.delegate) == (
        "aten.conv2d.default",
        ("aten.relu.default",),
        "NPU",
        0,
    )
    assert first.where.endswith(f"conftest.py:{lines['self.body']}")
    assert first.inputs == ("int8[1,3,16,16]",) and first.outputs == ("int8[1,16,16,8]",)
    assert first.activation_bytes == 3 * 16 * 16 + 8 * 16 * 16
    assert first.macs is not None and first.macs >= 3 * 3 * 3 * 8 * 16 * 16 and "CONV2D" in first.tosa
    skip = find(profile, "skip", "conv2d")
    assert skip.macs == 9 * 8 * 8 * 16 * 16 and skip.weight_bytes >= 9 * 8 * 8 // 2
    assert skip.reads == (first.index,) and 0 < skip.utilization <= 1
    (add,) = [x for x in profile.layers if x.short_op == "add" and x.module == ""]
    assert set(add.reads) == {first.index, skip.index}
    assert find(profile, "head", "linear").delegate == 1


def test_an_operator_on_the_cpu_has_its_reason_and_no_cycles(profile: Profile, lines: dict[str, int]) -> None:
    (drop,) = [x for x in profile.layers if x.short_op == "native_dropout"]
    assert (drop.device, drop.delegate, drop.cycles, drop.macs) == ("CPU", None, None, None)
    assert drop.where.endswith(f"conftest.py:{lines['torch.native_dropout']}") and drop.reason and drop.fix
    order = [x.delegate for x in profile.layers if x.delegate is not None]
    assert order == sorted(order)
    before = [x.delegate for x in profile.layers[: drop.index] if x.delegate is not None]
    after = [x.delegate for x in profile.layers[drop.index :] if x.delegate is not None]
    assert set(before) == {0} and set(after) == {1}
    # It returns a list of tensors.
    assert (len(drop.inputs), len(drop.outputs)) == (1, 2)
    assert "cycles on the CPU: they are not modeled" in profile.missing


def test_operators_on_the_cpu_of_one_kind_keep_their_own_reasons(profile: Profile) -> None:
    before, after = [x for x in profile.layers if x.short_op == "dequantize_per_tensor"]
    assert "`native_dropout`" in before.reason and after.reason == "its result leaves the model in float"


def test_an_operator_that_exir_renames_has_its_reason() -> None:
    class Best(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x).argmax(1)

    profile = tosaic.compile(Best().eval(), (torch.randn(1, 8, 4),), target="ethos-u55-128").profile()
    cast = profile.layers[-1]
    assert (cast.device, cast.short_op, cast.outputs) == ("CPU", "_to_copy", ("int64[1,4]",))
    assert "int64" in cast.reason


def test_a_layer_without_tensors_is_described_without_them() -> None:
    layer = Layer(index=0, device="NPU", delegate=0, op="MaxPool", cycles=5, weight_bytes=80)
    assert describe_layer(layer) == "MaxPool, weights 80"


def test_commands_belong_to_the_layer_that_needs_them(program: Program, profile: Profile) -> None:
    plan = pte.read(program.pte).find()
    streams = [parse(blob.unpack(delegate.blob).cmd_data) for delegate in plan.delegates]
    assert sum(layer.commands for layer in profile.layers) == sum(len(list_reads(stream)) for stream in streams)
    skip = find(profile, "skip", "conv2d")
    assert [span.name for span in skip.transfers] and {span.name for span in skip.spans} == {"CONV"}
    for layer in profile.layers:
        assert all(0 <= span.start <= (profile.cycles or 0) - span.cycles for span in (*layer.spans, *layer.transfers))


def test_a_dma_is_followed_to_its_reader(program: Program) -> None:
    stream = parse(blob.unpack(pte.read(program.pte).find().delegates[0].blob).cmd_data)
    reads = list_reads(stream)
    transfers = [(i, read) for i, read in enumerate(reads) if not read.ofm]
    assert transfers and all(read.serves > i and reads[read.serves].ofm for i, read in transfers)
    # Parameters are where the network has them, not in the buffer they were moved to.
    assert {part.region for read in reads for part in read.parameters} == {0}


def test_rows_of_an_estimate_begin_when_the_waits_allow(program: Program) -> None:
    stream = blob.unpack(pte.read(program.pte).find().delegates[0].blob).cmd_data
    found = estimate(stream, VelaOptions("ethos-u55-128", "Ethos_U55_High_End_Embedded", "Shared_Sram"))
    kernels = [row for row in found.rows if row.kind != "DMA"]
    assert max(row.end for row in found.rows) == found.cycles
    assert all(one.end <= other.start for one, other in itertools.pairwise(kernels))
    moved = {read.serves: index for index, read in enumerate(list_reads(parse(stream))) if not read.ofm}
    assert moved and all(found.rows[user].start >= found.rows[index].end for user, index in moved.items())


def test_memory_plan(program: Program, profile: Profile) -> None:
    (plan, _) = profile.plans
    (memory,) = plan.list_memories()
    used = plan.measure(memory)
    assert memory == "Sram" and used[-1][1] == 0 and max(size for _, size in used) <= program.memory.scratch
    assert max(buffer.end for one in profile.plans for buffer in one.buffers) <= program.memory.scratch
    assert set(plan.layers.values()) == {x.index for x in profile.layers if x.delegate == 0}


def test_without_a_sidecar_it_says_what_is_missing(program: Program, profile: Profile) -> None:
    alone = open_program(program.pte).profile
    assert alone.missing[0].startswith("names, source lines, shapes of layers and the memory plan: there is no .tosaic")
    assert alone.cycles == profile.cycles == sum(layer.cycles or 0 for layer in alone.layers)
    assert alone.macs == profile.macs
    assert {layer.module for layer in alone.layers} == {""} and alone.plans == ()
    assert any(layer.op == "CONV" and layer.outputs == ("int8[16,16,8]",) for layer in alone.layers)
    other = dataclasses.replace(sidecar.read(program.sidecar()), pte_sha256="0" * 64)
    foreign = open_program(program.pte, sidecar.write(other)).profile
    assert "does not belong to this .pte" in foreign.missing[0]


def test_reasons_and_warnings_survive_in_the_sidecar(program: Program) -> None:
    kept = sidecar.read(program.sidecar())
    assert [reason.node for reason in kept.reasons] == [reason.node for reason in program.reasons]
    assert any("native_dropout" in reason.op and reason.why for reason in kept.reasons)
    assert all(
        "/" not in reason.where.partition("conftest.py")[0] or "tests" in reason.where for reason in kept.reasons
    )
    assert any("--calibration" in warning for warning in kept.warnings)
    old = sidecar.read(edit_manifest(program.sidecar(), lambda manifest: [manifest.pop(k) for k in NEW_KEYS]))
    assert (old.reasons, old.warnings) == ((), ())
    for key, value in (("reasons", [1]), ("reasons", [{"node": 1}]), ("warnings", [1]), ("warnings", "x")):
        damaged = edit_manifest(program.sidecar(), lambda manifest, k=key, v=value: manifest.update({k: v}))
        with pytest.raises(Invalid, match="damaged"):
            sidecar.read(damaged)


@pytest.mark.parametrize("table", ["queue", "perf", "perf_debug", "source", "tensors"])
def test_a_damaged_debug_database_only_costs_names(program: Program, profile: Profile, table: str) -> None:
    kept = sidecar.read(program.sidecar())
    for damage in ("gone", "cells", "short"):
        delegates = []
        for one in kept.delegates:
            tables = read_tables(one.debug_db)
            rows = tables[table].rows
            if damage == "gone":
                del tables[table]
            elif damage == "cells":
                tables[table] = dataclasses.replace(tables[table], rows=tuple(("9" * 30,) * len(r) for r in rows))
            else:
                tables[table] = dataclasses.replace(tables[table], rows=tuple(r[:1] for r in rows))
            delegates.append(dataclasses.replace(one, debug_db=write_tables(tables)))
        found = make_profile(pte.read(program.pte), dataclasses.replace(kept, delegates=tuple(delegates)))
        assert found.cycles == profile.cycles == sum(layer.cycles or 0 for layer in found.layers)
        json.dumps(found.to_json(), allow_nan=False)
        make_trace(found)


def test_a_small_budget_is_an_error(program: Program) -> None:
    with pytest.raises(Invalid, match="memory"):
        make_profile(pte.read(program.pte), sidecar.read(program.sidecar()), budget=Budget(0, 2000))


def test_csv(profile: Profile) -> None:
    rows = list(csv.DictReader(io.StringIO(profile.to_csv())))
    assert [row["module"] for row in rows] == [layer.module for layer in profile.layers]
    assert sum(int(row["cycles"] or 0) for row in rows) == profile.cycles
    assert sum(float(row["share"] or 0) for row in rows) == pytest.approx(1, abs=1e-4)
    assert rows[1]["Sram_read"] == str(profile.layers[1].traffic["Sram"].read)
    assert rows[0]["cycles"] == rows[0]["Sram_read"] == ""
    evil = dataclasses.replace(profile, layers=(dataclasses.replace(profile.layers[1], module="=cmd()|' /C calc'!A0"),))
    assert next(iter(csv.DictReader(io.StringIO(write_csv(evil)))))["module"].startswith("'=")


def test_json(profile: Profile) -> None:
    plain: dict[str, Any] = json.loads(json.dumps(profile.to_json("x.pte"), allow_nan=False))
    assert (plain["schema"], plain["file"], plain["cycles"]) == ("tosaic-profile/1", "x.pte", profile.cycles)
    layer = plain["layers"][1]
    assert layer["limit"] == profile.layers[1].limit and layer["traffic"]["Sram"]["read"] > 0
    assert plain["memory_plans"][0]["buffers"][0]["memory"] == "Sram"


def check_trace(trace: dict[str, Any]) -> None:
    """The rules of the trace event format for the events that we write."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    fields = {"X": {"name", "cat", "ts", "dur"}, "M": {"name", "args"}, "C": {"name", "ts", "args"}}
    fields["i"] = {"name", "ts", "s"}
    open_until: dict[tuple[int, int], float] = {}
    for event in trace["traceEvents"]:
        assert fields[event["ph"]] <= set(event) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["name"], str) and event["name"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
        elif event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    for event in sorted((e for e in trace["traceEvents"] if e["ph"] == "X"), key=lambda e: (e["tid"], e["ts"])):
        track = (event["pid"], event["tid"])
        # Slices of a track must not overlap, except where one is inside the other, which these never are.
        assert event["dur"] >= 0 and event["ts"] >= open_until.get(track, 0.0) - 1e-6, event
        open_until[track] = event["ts"] + event["dur"]


def test_trace(profile: Profile) -> None:
    trace = json.loads(json.dumps(profile.to_trace(), allow_nan=False))
    check_trace(trace)
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {"body.0 conv2d", "head linear"} <= {event["name"] for event in slices}
    last = max(event["ts"] + event["dur"] for event in slices)
    assert last == pytest.approx((profile.cycles or 0) / profile.clock * 1e6)
    kernels = [event for event in slices if event["cat"] == "command"]
    assert len(kernels) + sum(e["cat"] == "dma" for e in slices) == sum(layer.commands for layer in profile.layers)
    assert any(event["ph"] == "i" and "native_dropout" in event["name"] for event in events)
    assert any(event["ph"] == "C" and event["args"]["bytes"] > 0 for event in events)


def test_a_target_without_commands_has_names_and_no_cycles() -> None:
    with torch.random.fork_rng():
        model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU()).eval()
        program = tosaic.compile(model, (torch.randn(1, 2, 6, 6),), target="TOSA-1.0+INT")
    found = program.profile()
    layer = find(found, "0", "conv2d")
    assert found.cycles is None and layer.cycles is None and layer.device == "TOSABackend"
    assert any("delegate 0" in text for text in found.missing)
    json.dumps(found.to_json(), allow_nan=False)
    check_trace(found.to_trace())
    page = program.to_html("net")
    assert "there is no model of" in page and 'id="cycles"' not in page and "Program" in program._repr_html_()


@pytest.mark.parametrize("target", ["ethos-u65-256", "ethos-u85-256"])
def test_other_families_add_up_too(target: str) -> None:
    with torch.random.fork_rng():
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(), torch.nn.Linear(16 * 36, 10)).eval()
        program = tosaic.compile(model, (torch.randn(1, 3, 8, 8),), target=target)
    found = program.profile()
    (delegate,) = program.report().delegates
    assert delegate.estimate is not None
    assert sum(layer.cycles or 0 for layer in found.layers) == delegate.estimate.cycles
    assert {"0", "2"} <= {layer.module for layer in found.layers}


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(32, 16)
        self.head = torch.nn.Linear(16, 8)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(index))


def test_a_layer_that_is_only_a_dma_has_its_cycles() -> None:
    with torch.random.fork_rng():
        program = tosaic.compile(Lookup().eval(), (torch.randint(0, 32, (1, 6)),), target="ethos-u85-256")
    found = program.profile()
    table, head = find(found, "table", "embedding"), find(found, "head", "linear")
    assert table.tosa == ("GATHER",) and table.commands == 1 and table.spans == ()
    assert table.limits == {"DMA": table.dma_cycles} and table.dma_cycles > 0
    assert head.reads == (table.index,) and (table.cycles or 0) + (head.cycles or 0) == found.cycles
