"""Control flow becomes plain operators: in one delegate on every target, with the results of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from executorch.exir.lowered_backend_module import get_lowered_submodules
from torch import nn
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan, while_loop
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import tosaic
from tosaic.core.errors import Invalid
from tosaic.fx.control_flow import MOST_STEPS
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config
from tosaic.tosa import TosaCompileSpec, TOSAPartitioner

TARGETS = ("ethos-u55-128", "ethos-u85-256", "TOSA-1.0+FP")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


class Branches(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: self.a(t).relu(), lambda t: self.b(t) - 1.0, (x,))


class Nested(Layer):
    """A branch in a branch, and two results."""

    def forward(self, x: torch.Tensor) -> Any:
        def inner(t: torch.Tensor) -> Any:
            return torch.cond(t[0, 0] > 0, lambda u: (u * 2.0, u.tanh()), lambda u: (u - 1.0, u.sigmoid()), (t,))

        return torch.cond(x.sum() > 0, lambda t: (self.a(t), t * 0.5), inner, (x,))


class Rows(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return map_rows(lambda row: self.a(row).relu(), x)


class Scan(Layer):
    def forward(self, x: torch.Tensor) -> Any:
        def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = (self.a(row) + state).tanh()
            return new, new * 2.0

        return scan(step, torch.zeros(4), x)


class Loop(Layer):
    """Three steps, and a condition that depends on a number of the loop alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(count: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return count + 2, self.a(t).relu()

        return while_loop(lambda count, t: count < 5, step, (torch.tensor(0), x))[1]


class UntilLarge(nn.Module):
    """As many steps as the data needs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda t: t.sum() < 100, lambda t: (t.abs() * 2.0 + 1.0,), (x,))[0]


class Logarithm(nn.Module):
    """A branch that is defined only where it is taken."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.min() > 0, lambda t: t.log(), lambda t: t - 1.0, (x,))


def draw(count: int = 8) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(2, 4, generator=generator),) for _ in range(count)]


def make(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind().eval()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [Branches, Nested, Rows, Scan, Loop])
def test_control_flow_is_one_delegate(kind: type[nn.Module], target: str) -> None:
    model, samples = make(kind), draw()
    is_float = "FP" in target
    program = tosaic.compile(model, samples[0], target, calibration=None if is_float else samples)
    assert len(program.delegates) == 1
    assert all("quantize_per_tensor" in name for name in program.cpu_ops)
    assert [reason for reason in program.reasons if not reason.is_io] == []
    assert program.verify(rounds=1).ok
    for sample in samples[:4]:
        with torch.no_grad():
            wanted = tree_leaves(model(*sample))
        for got, want in zip(program.run(*sample), wanted, strict=True):
            bound = 1e-5 if is_float else 0.03
            assert np.abs(got - want.numpy()).max() <= bound * max(1.0, float(want.abs().max()))


def test_both_apis_unroll() -> None:
    samples = draw()
    quantizer = TosaQuantizer().set_global(get_symmetric_quantization_config())
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(make(Scan), samples[0]).module(), quantizer)
        for sample in samples:
            prepared(*sample)
        converted = convert_pt2e(prepared)
    assert not any("scan" in str(node.target) for node in converted.graph.nodes)
    assert len(tosaic.compile(converted, samples[0], "ethos-u85-256").delegates) == 1


def test_a_branch_that_is_not_always_defined_stays_on_the_cpu() -> None:
    model, samples = make(Logarithm), draw()
    program = tosaic.compile(model, samples[0], "ethos-u85-256", calibration=samples)
    (reason,) = [reason for reason in program.reasons if reason.op == "cond"]
    assert "not defined for all numbers" in reason.why and "torch.where" in reason.fix
    for sample in (samples[0], (samples[0][0].abs() + 0.1,)):
        (got,) = program.run(*sample)
        assert np.abs(got - model(*sample).numpy()).max() <= 1e-5


class Bounded(nn.Module):
    """The fix of the reason above."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.min() > 0, x.clamp(min=0.01).log(), x - 1.0)


def test_the_fix_of_that_reason_works() -> None:
    program = tosaic.compile(make(Bounded), draw()[0], "ethos-u85-256", calibration=draw())
    assert [reason for reason in program.reasons if not reason.is_io] == []


def test_a_loop_whose_steps_depend_on_the_data_is_refused() -> None:
    stages: list[str] = []
    with pytest.raises(Invalid, match="while_loop") as caught:
        tosaic.compile(make(UntilLarge), draw()[0], "ethos-u85-256", calibration=draw(), progress=stages.append)
    assert stages == ["export"]
    assert "ExecuTorch has no operator for it" in caught.value.why
    assert caught.value.where.startswith(__file__) and "torch.where" in caught.value.fix


def test_a_partitioner_refuses_it_too() -> None:
    program = torch.export.export(make(UntilLarge), draw()[0])
    with pytest.raises(Invalid, match="while_loop"):
        # ExecuTorch 1.5 would refuse the operators of the body before.
        unchecked = EdgeCompileConfig(_check_ir_validity=False)
        partitioners = [TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))]
        to_edge_transform_and_lower(program, partitioner=partitioners, compile_config=unchecked)


class FixedSteps(nn.Module):
    """The fix of the error above."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.where(x.sum() < 100, x.abs() * 2.0 + 1.0, x)
        return x


def test_the_fix_of_that_error_works() -> None:
    program = tosaic.compile(make(FixedSteps), draw()[0], "ethos-u85-256", calibration=draw())
    assert [reason for reason in program.reasons if not reason.is_io] == []


class SineOrCosine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))


@pytest.mark.parametrize("kind", [Branches, Nested, Rows, Scan, Loop, SineOrCosine])
def test_the_executorch_api_unrolls_float_models(kind: type[nn.Module]) -> None:
    spec, (sample,) = TosaCompileSpec("TOSA-1.0+FP"), draw()[0]
    partitioner = TOSAPartitioner(spec)
    exported = torch.export.export(make(kind), (sample,))
    edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])
    assert partitioner.reasons == ()
    (blob,) = [m.processed_bytes for _, m, _ in get_lowered_submodules(edge.exported_program().graph_module)]
    assert blob == tosaic.compile(make(kind), (sample,), spec).tosa()
    # The model of the user stays as it was.
    wanted, got = tree_leaves(make(kind)(sample)), tree_leaves(exported.module()(sample))
    assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))


def test_to_backend_says_how_a_cond_gets_on_the_npu() -> None:
    partitioner = TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))
    to_edge(torch.export.export(make(SineOrCosine), draw()[0])).to_backend(partitioner)
    (reason,) = [reason for reason in partitioner.reasons if reason.op == "cond"]
    assert "not defined" not in reason.why and reason.fix.startswith("use `to_edge_transform_and_lower`")
    # The fix is `test_the_executorch_api_unrolls_float_models`.


def test_a_long_loop_is_refused() -> None:
    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def step(count: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return count + 1, t * 0.5

            return while_loop(lambda count, t: count <= MOST_STEPS, step, (torch.tensor(0), x))[1]

    with pytest.raises(Invalid, match="while_loop"):
        tosaic.compile(Long().eval(), draw()[0], "ethos-u85-256", calibration=draw())
