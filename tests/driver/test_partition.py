"""What goes to the NPU, in how many delegates, and the reasons for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.operator_support import DontPartition, DontPartitionModule, DontPartitionName
from torch import nn
from torch.utils._pytree import tree_leaves

import tosaic
from support.models import quantize_model
from support.modules import Call
from tosaic import zoo
from tosaic.api.prepare import quantize
from tosaic.core.reason import Reason
from tosaic.driver.delegate import build
from tosaic.driver.exported import export
from tosaic.engines import engine
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.fx.source import Source
from tosaic.tools import vela
from tosaic.tosa import TosaCompileSpec


def quantized(model: nn.Module, *inputs: torch.Tensor) -> tuple[Any, Any]:
    """The converted module and the re-exported program."""
    module = quantize(export(model.eval(), inputs), [inputs])
    return module, torch.export.export(module, inputs)


def lower_edge(program: Any, partitioner: EthosUPartitioner) -> Any:
    config = EdgeCompileConfig(_check_ir_validity=False)
    return to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=config)


def count_delegates(edge: Any) -> int:
    return sum("call_delegate" in str(n.target) for n in edge.exported_program().graph.nodes)


def compute(reasons: Any) -> list[Reason]:
    return [r for r in reasons if not r.is_io]


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


SPEC = EthosUCompileSpec("ethos-u55-128")


def close(program: tosaic.Program, model: nn.Module, *inputs: torch.Tensor) -> None:
    """The compiled program computes what the model computes, up to quantization."""
    with torch.no_grad():
        expected = tree_leaves(model(*inputs))
    for got, want in zip(program.run(*inputs), expected, strict=True):
        assert got.shape == tuple(want.shape)
        if want.is_floating_point():
            assert np.abs(got - want.numpy()).max() <= 0.05 * float(want.abs().max())
        else:
            assert np.array_equal(got, want.numpy())


@pytest.mark.parametrize(
    "function",
    [
        lambda t: F.max_pool2d(t, 2),
        lambda t: F.avg_pool2d(torch.sigmoid(t), 2),
        lambda t: tuple(t.max(-1)),
    ],
    ids=["max_pool2d", "avg_pool2d_sigmoid", "max_with_indices"],
)
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_pools_and_maxima_through_both_apis(function: Any, target: str) -> None:
    model, inputs = Call(function).eval(), (x(1, 3, 8, 8),)
    program = tosaic.compile(model, inputs, target, calibration=[inputs, (x(1, 3, 8, 8) * 0.5,)])
    close(program, model, *inputs)
    _, exported = quantized(model, *inputs)
    partitioner = EthosUPartitioner(EthosUCompileSpec(target))
    edge = lower_edge(exported, partitioner)
    edge.to_executorch()
    assert all(r.why for r in partitioner.reasons)
    assert count_delegates(edge) == len(program.delegates)


class Mixed(nn.Module):
    """Two convolutions around an operator that no target has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(t))
        z = torch.native_dropout(y, 0.0, True)[0]
        return self.second(z + y)


def test_cpu_op_in_the_middle_has_a_reason() -> None:
    model, inputs = Mixed().eval(), (x(1, 3, 6, 6),)
    program = tosaic.compile(model, inputs, "ethos-u55-128", calibration=[inputs, (x(1, 3, 6, 6) * 2,)])
    assert len(program.delegates) == 2
    left = compute(program.reasons)
    assert [r.op for r in left] == ["aten.native_dropout.default"]
    assert left[0].why.startswith("Tosaic has no lowering") and left[0].fix
    assert left[0].where.split(":")[0] == __file__
    assert "aten::native_dropout.out" in program.cpu_ops
    close(program, model, *inputs)


def test_branches_share_a_delegate() -> None:
    """Parts that do not wait for each other are one delegate, connected or not."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 4), nn.Linear(6, 3)

        def forward(self, p: torch.Tensor, q: torch.Tensor) -> Any:
            return self.a(p), self.b(q)

    program = tosaic.compile(Two().eval(), (x(2, 8), x(2, 6)), "ethos-u55-128", calibration=[(x(2, 8), x(2, 6))])
    assert len(program.delegates) == 1
    assert compute(program.reasons) == []


def test_methods_with_constants_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One partitioner for all methods; each is compiled once, with its own weights."""
    compiled: list[bytes] = []
    compile_ = vela.compile
    monkeypatch.setattr(vela, "compile", lambda tosa, *a, **k: compiled.append(tosa) or compile_(tosa, *a, **k))
    models = {
        "narrow": nn.Sequential(nn.Conv2d(3, 5, 3), nn.Sigmoid()),
        "wide": nn.Sequential(nn.Conv2d(3, 9, 1)),
        "again": nn.Sequential(nn.Conv2d(3, 9, 1)),
    }
    made = {name: quantized(model, x(1, 3, 7, 7)) for name, model in models.items()}
    config = EdgeCompileConfig(_check_ir_validity=False)
    partitioner = EthosUPartitioner(SPEC, [DontPartition(torch.ops.aten.sigmoid.default)])
    programs = {name: program for name, (_, program) in made.items()}

    def lower() -> Any:
        edge = to_edge_transform_and_lower(programs, partitioner=[partitioner], compile_config=config)
        assert [r.op for r in partitioner.reasons if "aten" in r.op] == ["aten.sigmoid.default"]
        return edge

    lower()
    edge = lower()
    assert len(compiled) == len(set(compiled)) == len(models)
    pte = bytes(edge.to_executorch().buffer)
    for name, (module, _) in made.items():
        (found,) = engine.run(pte, [x(1, 3, 7, 7).numpy()], method=name).outputs
        expected = module(x(1, 3, 7, 7)).detach().numpy()
        assert np.abs(found - expected).max() <= np.ptp(expected) / 200


def test_programs_are_traced_no_more_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exir makes a program functional once; what is only delegates and their borders is that already."""
    traced: list[Any] = []
    run = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram, "run_decompositions", lambda p, *a, **k: traced.append(p) or run(p, *a, **k)
    )
    module, program = quantized(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), x(1, 3, 4, 4))
    lower_edge(program, EthosUPartitioner(SPEC))
    assert len(traced) == 1
    tosaic.compile(module, (x(1, 3, 4, 4),), "ethos-u55-128")
    assert len(traced) == 1


def test_exir_still_decomposes_what_stays_on_the_cpu() -> None:
    """What is left of a `silu` that a check excludes are the operators of ExecuTorch that it is made of."""
    _, program = quantized(nn.Sequential(nn.Conv2d(3, 4, 1), nn.SiLU(), nn.Conv2d(4, 4, 1)), x(1, 3, 4, 4))
    edge = lower_edge(program, EthosUPartitioner(SPEC, [DontPartitionModule(module_name="SiLU")]))
    left = {n.target.__name__ for n in edge.exported_program().graph.nodes if n.op == "call_function"}
    assert {"aten.sigmoid.default", "aten.mul.Tensor"} <= left
    assert "aten.silu.default" not in left
    assert count_delegates(edge) == 2


def test_no_delegate_without_compute() -> None:
    model = Call(lambda t: t.permute(0, 2, 1).reshape(2, -1)).eval()
    program = tosaic.compile(model, (x(2, 3, 4),), "ethos-u55-128", calibration=[(x(2, 3, 4),)])
    assert program.delegates == ()
    assert any("only moves data" in r.why for r in program.reasons)
    close(program, model, x(2, 3, 4))


@pytest.mark.parametrize("move_data", [False, True])
def test_a_constant_that_is_returned_has_a_reason_of_its_own(move_data: bool) -> None:
    """It does not leave the model in float because of a type, and no option delegates it."""
    spec = TosaCompileSpec("TOSA-1.0+FP")
    spec.delegate_data_movement = move_data
    beside = tosaic.compile(Call(lambda t: (t + 1.0, torch.full((3,), 4.5))).eval(), (x(2, 3),), spec)
    assert len(beside.delegates) == 1
    alone = tosaic.compile(Call(lambda: torch.full((3,), 4, dtype=torch.int32)).eval(), (), spec)
    assert alone.delegates == ()
    for program in (beside, alone):
        (reason,) = program.reasons
        assert (reason.op, reason.fix) == ("aten.full.default", "nothing to fix")
        assert reason.why == "its result is a constant, which no computation on the NPU needs"


@pytest.mark.parametrize(
    "check",
    [
        DontPartition(torch.ops.aten.sigmoid.default),
        DontPartitionName("sigmoid", exact=False),
        DontPartitionModule(module_name="Sigmoid"),
        DontPartitionModule(instance_name="act"),
    ],
    ids=["op", "name", "module", "instance"],
)
def test_additional_checks(check: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act, self.last = nn.Conv2d(3, 4, 1), nn.Sigmoid(), nn.Conv2d(4, 3, 1)

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return self.last(self.act(self.conv(t)))

    _, exported = quantized(Net(), x(1, 3, 4, 4))
    partitioner = EthosUPartitioner(SPEC, additional_checks=[check])
    edge = lower_edge(exported, partitioner)
    left = compute(partitioner.reasons)
    assert [r.op for r in left if "excludes it" in r.why] == ["aten.sigmoid.default"]
    assert count_delegates(edge) == 2
    edge.to_executorch()


def refuse(kind: str, *, named: bool) -> Any:
    """A Vela that takes everything but one kind of TOSA op."""
    real = vela.compile_cached

    def compile_cached(tosa: bytes, options: Any, **rest: Any) -> Any:
        from tosaic.formats.tosa_writer import names, read

        graph = read(tosa)
        bad = [names(graph)[op.outputs[0]] for op in graph.ops if op.kind == kind]
        if not bad:
            return real(tosa, options, **rest)
        error = vela.Refused(f"operator {kind} is not for this NPU", "")
        error.names = tuple(bad) if named else ()
        raise error

    return compile_cached


@pytest.mark.parametrize("named", [True, False])
def test_a_refused_node_alone_stays_on_the_cpu(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.a(t))
            return self.c(torch.tanh(self.b(y)) + y)

    module, exported = quantized(Net(), x(1, 3, 8, 8))
    monkeypatch.setattr(vela, "compile_cached", refuse("TABLE", named=named))
    front = build(Source.of_module(module), SPEC)
    left = compute(front.plan.reasons.values())
    assert [r.op for r in left] == ["aten.tanh.default"]
    assert left[0].why == "Vela: operator TABLE is not for this NPU"
    assert len(front.delegates) == 2
    partitioner = EthosUPartitioner(SPEC)
    edge = lower_edge(exported, partitioner)
    assert [r.op for r in compute(partitioner.reasons)] == ["aten.tanh.default"]
    assert count_delegates(edge) == 2
    edge.to_executorch()


def test_another_backend_of_the_same_name_is_no_obstacle() -> None:
    """Both partitioners get their own backend, though exir takes the class that was defined last."""
    import gc

    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    from tosaic.driver.exir import find_backend_class

    _, exported = quantized(nn.Linear(4, 2), x(1, 4))

    def answer(edge_program: object, compile_specs: object) -> PreprocessResult:
        return PreprocessResult(b"theirs")

    other = type("EthosUBackend", (BackendDetails,), {"preprocess": staticmethod(answer), "__module__": "elsewhere"})
    try:
        edge = lower_edge(exported, EthosUPartitioner(SPEC))
        assert b"vela_bin_stream" in edge.to_executorch().buffer
        found = find_backend_class(EthosUPartitioner.backend)
        assert found is not other and found is find_backend_class(EthosUPartitioner.backend)
        assert found.preprocess(exported, [CompileSpec("their", b"own")]).processed_bytes == b"theirs"
    finally:
        # exir walks all subclasses: take these out again for the tests that follow.
        del other
        found = None
        gc.collect()


def test_source_lines() -> None:
    """At least 99 % of the calls know their file and line, also in a program that was saved and loaded.

    The line is the model's own, unless its class is torch's (an nn.Sequential): then there is a layer to name.
    """
    import io

    from tosaic.fx.source import find_module, source_line

    for name in zoo.names():
        _, _, program = quantize_model(name)
        stored = io.BytesIO()
        torch.export.save(program, stored)
        stored.seek(0)
        for one in (program, torch.export.load(stored)):
            calls = [n for n in one.graph.nodes if n.op == "call_function"]
            known = [n for n in calls if ":" in source_line(n)]
            assert len(known) >= 0.99 * len(calls), name
            inner = [n for n in known if "/site-packages/torch/" in source_line(n)]
            assert not inner or type(zoo.load(name)[0]).__module__.startswith("torch."), name
            assert all(layer for _, layer in map(find_module, inner)), name


def test_in_place_ops_that_others_see() -> None:
    """`y.add_(1)` after a view of y changes both: the graph is functionalised, not misread."""

    class Net(nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            y = t * 2.0
            v = y.view(2, 8)
            y.add_(1.0)
            return v + y.view(2, 8)

    model, inputs = Net().eval(), (x(4, 4),)
    close(tosaic.compile(model, inputs, "ethos-u55-128", calibration=[inputs]), model, *inputs)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(16),
        lambda t: t.reshape(2, 8),
        lambda t: t.expand_as(t),
        lambda t: t.expand(4, 4),
        lambda t: t.contiguous(),
        lambda t: t.to(torch.float32),
        lambda t: t.flatten(),
        lambda t: t.t(),
        lambda t: t[1:],
        lambda t: t.chunk(2)[0],
        lambda t: t.unsqueeze(0),
        lambda t: t.detach(),
        lambda t: F.dropout(t, training=False),
    ],
)
@pytest.mark.parametrize("target", ["TOSA-1.0+FP", "ethos-u85-256"])
def test_writes_through_a_view(view: Any, target: str) -> None:
    """A tensor that is changed through a view, whose only user is the write, is read again."""

    class Net(nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            y = t * 2.0
            view(y).add_(1.0)
            return y.tanh()

    model, inputs = Net().eval(), (x(4, 4),)
    quantized = target != "TOSA-1.0+FP"
    program = tosaic.compile(model, inputs, target, calibration=[inputs] if quantized else None, quantized=quantized)
    close(program, model, *inputs)


def test_mixed_grids_in_cat_after_conv_relu() -> None:
    """A fused conv-bn-relu whose output shares its range with a cat is still on the NPU."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.relu(self.norm(self.conv(t))), t * 3.0], 1)

    model, inputs = Net().eval(), (x(1, 3, 6, 6),)
    program = tosaic.compile(model, inputs, "ethos-u55-128", calibration=[inputs])
    assert len(program.delegates) == 1
    assert compute(program.reasons) == []
    close(program, model, *inputs)


def test_a_crash_of_the_compiler_costs_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    real = vela.compile_cached

    def compile_cached(tosa: bytes, options: Any, **rest: Any) -> Any:
        from tosaic.core.errors import ToolCrashed
        from tosaic.formats.tosa_writer import read

        if any(op.kind == "TABLE" for op in read(tosa).ops):
            raise ToolCrashed("Vela crashed with SIGSEGV")
        return real(tosa, options, **rest)

    module, _ = quantized(Call(lambda t, u: torch.tanh(t * u) + u), x(2, 5), x(2, 5))
    monkeypatch.setattr(vela, "compile_cached", compile_cached)
    built = build(Source.of_module(module), SPEC)
    left = {r.op: r.why for r in compute(built.plan.reasons.values())}
    assert "crashed with SIGSEGV" in left["aten.tanh.default"]


@pytest.mark.parametrize(
    "function", [lambda t: t[:, :0] * 2.0, lambda t: t.reshape(1, 1, 1, 1, 1, 2, 5) * t.reshape(1, 1, 1, 1, 1, 2, 5)]
)
def test_shapes_that_tosa_has_not(function: Any) -> None:
    model, inputs = Call(function).eval(), (x(2, 5),)
    program = tosaic.compile(model, inputs, "ethos-u55-128", calibration=[inputs])
    assert program.delegates == ()
    assert all(r.why for r in program.reasons)
