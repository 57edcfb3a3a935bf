"""Results of operators that give several tensors, or a number without dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from executorch.exir import to_edge_transform_and_lower
from torch.utils._pytree import tree_leaves

import tosaic
from support import samples
from support.apis import Call
from tosaic.core.errors import Invalid
from tosaic.tosa import TosaCompileSpec, TOSAPartitioner

SPECS = ("TOSA-1.0+FP", "TOSA-1.0+INT")
IMAGE = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(5))


def norm(x: torch.Tensor) -> Any:
    return torch.native_layer_norm(x * 2.0, (8,), None, None, 1e-5)


def group_norm(x: torch.Tensor) -> Any:
    return torch.native_group_norm(x * 2.0, None, None, 2, 4, 64, 2, 1e-5)


def pool(x: torch.Tensor) -> Any:
    return F.max_pool2d(x * 2.0, 2, return_indices=True)


CASES = {
    "pool": (pool, "aten._to_copy.default"),
    "spread_pool": (lambda x: F.max_pool2d(x * 2.0, 2, 1, 1, 2, return_indices=True), "aten._to_copy.default"),
    "pool_values": (lambda x: pool(x)[0] * 2.0, None),
    "adaptive_pool": (lambda x: F.adaptive_max_pool2d(x * 2.0, 2, return_indices=True), "aten._to_copy.default"),
    "max": (lambda x: (x * 2.0).max(1), "aten._to_copy.default"),
    "topk_values": (lambda x: (x * 2.0).topk(2, -1)[0] * 2.0, None),
    "sort": (lambda x: (x * 2.0).sort(-1), "aten._to_copy.default"),
    "layer_norm": (norm, None),
    "layer_norm_values": (lambda x: norm(x)[0] * 2.0, None),
    "group_norm": (group_norm, None),
    "group_norm_values": (lambda x: group_norm(x)[0] * 2.0, None),
    "first_part": (lambda x: (x * 2.0).split(4, -1)[0] * 2.0, None),
    "last_part": (lambda x: (x * 2.0).unbind(1)[-1] * 2.0, None),
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", CASES)
def test_every_result_is_that_of_torch(name: str, spec: str) -> None:
    """Whether all of them are used or not; what the target does not have keeps its operator and q/dq on the CPU."""
    function, left = CASES[name]
    program = tosaic.compile(samples.Call(function).eval(), (IMAGE,), spec, calibration=[IMAGE])
    kept = [r.op for r in program.reasons if not r.is_io and "quantize_per_tensor" not in r.op]
    assert kept == ([] if left is None else [left])
    assert program.delegates
    got, want = program.run(IMAGE, engine="tosa"), tree_leaves(function(IMAGE))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (tuple(b.shape), b.numpy().dtype)
        if b.is_floating_point():
            bound = 1e-5 if spec.endswith("FP") else 0.02
            assert np.abs(a - b.numpy()).max() <= bound * max(1.0, float(b.abs().max()))
        elif spec.endswith("FP"):
            assert np.array_equal(a, b.numpy())


POOLS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "padded": lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True),
    "dilated": lambda x: F.max_pool3d(x, 2, 1, 1, dilation=(2, 1, 2), return_indices=True),
    "adaptive": lambda x: F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True),
    "rows": lambda x: F.adaptive_max_pool1d(x.flatten(2), 7, return_indices=True),
}


@pytest.mark.parametrize("target", ["TOSA-1.0+FP", "ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("name", POOLS)
def test_of_equal_maxima_the_first_is_found(name: str, target: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return POOLS[name](x)[1].to(torch.int32)

    x = torch.randint(-2, 3, (2, 3, 4, 5, 6), generator=torch.Generator().manual_seed(3)) * 1.0
    program = tosaic.compile(samples.Call(run).eval(), (x,), target, calibration=[x])
    assert len(program.delegates) == 1
    (got,) = program.run(x, engine="npu" if "ethos" in target else "tosa")
    assert np.array_equal(got, run(x).numpy())


@pytest.mark.parametrize("name", ["pool", "pool_values"])
def test_positions_of_maxima_through_executorch(name: str) -> None:
    exported = torch.export.export(samples.Call(CASES[name][0]).eval(), (IMAGE,))
    edge = to_edge_transform_and_lower(exported, partitioner=[TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))])
    calls = [str(n.target) for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    assert any("executorch_call_delegate" in c for c in calls)
    assert not any("max_pool2d" in c for c in calls)


def set_column(number: Any) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone() if x.dtype is torch.bool else x + x
        y[:, 1] = number
        return y

    return function


def set_columns(x: torch.Tensor) -> torch.Tensor:
    y = (x > 0.0).clone()
    y[:, 1:3] = True
    return y


NUMBERS = torch.arange(-4, 4).reshape(2, 4)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: set_column(0)(x > 0.0), NUMBERS.float()),
        (lambda x: set_column(0)(x), NUMBERS.float()),
        (set_column(7), NUMBERS.int()),
        (set_columns, NUMBERS.float()),
        (lambda x: torch.select_scatter(x + x, torch.zeros(2), 1, 2), NUMBERS.float()),
        (lambda x: (x + x).index_put((torch.tensor([0]), torch.tensor([1])), torch.tensor(3.0)), NUMBERS.float()),
        (lambda x: torch.full_like(x, 2.0).copy_(torch.tensor(3.0)) + x, NUMBERS.float()),
    ],
    ids=["bool", "float", "int32", "bool_slice", "select_scatter", "index_put", "copy"],
)
def test_a_number_is_written_into_a_tensor(function: Any, x: torch.Tensor, spec: str) -> None:
    """A constant without dimensions leaves a delegate without dimensions."""
    want = function(x.clone()).numpy()
    (got,) = tosaic.compile(samples.Call(function).eval(), (x,), spec).run(x, engine="tosa")
    assert got.dtype == want.dtype
    if want.dtype == np.float32 and spec.endswith("INT"):
        assert np.abs(got - want).max() <= 0.1
    else:
        assert np.array_equal(got, want)


@pytest.mark.parametrize("mask", [torch.tensor(True), torch.tensor([[False]])])
def test_a_mask_of_one_boolean(mask: torch.Tensor) -> None:
    model = samples.Call(lambda x: (x * 2.0).masked_fill(mask, 0.5)).eval()
    program = tosaic.compile(model, (IMAGE,), "ethos-u55-128", calibration=[(IMAGE,)])
    assert len(program.delegates) == 1
    assert program.verify().ok


@pytest.mark.parametrize("spec", SPECS)
def test_positions_of_minima_are_where_a_number_is_written(spec: str) -> None:
    """The positions are one of several results, and stay on the CPU."""
    model = samples.Call(lambda x: (x * 2.0).scatter(1, x.cummin(-1)[1], -4.5)).eval()
    # They fall: each is a new minimum, and no position is written twice, which TOSA does not define.
    x = -torch.arange(24.0).reshape(3, 8)
    program = tosaic.compile(model, (x,), spec, calibration=[(x,)])
    assert program.verify().ok


def test_a_number_of_a_constant_is_taken() -> None:
    """What is made of constants alone is computed by torch, which takes int64 indices and no others."""
    numbers, index = torch.arange(8.0), torch.tensor([5])
    model = samples.Call(lambda x: x * torch.take(numbers, index)).eval()
    program = tosaic.compile(model, (IMAGE,), SPECS[0])
    assert len(program.delegates) == 1
    assert np.array_equal(program.run(IMAGE, engine="tosa")[0], IMAGE.numpy() * 5.0)


def test_a_clamp_of_integers_by_fractions() -> None:
    """Torch gives float there, which is quantized: the target must not give integers."""
    x = torch.arange(-4, 4, dtype=torch.int32)
    program = tosaic.compile(samples.Call(lambda x: (x + 1).clamp(0.5, 2.5)).eval(), (x,), "TOSA-1.0+INT")
    found, wanted = program.run(x, engine="tosa")[0], (x + 1).clamp(0.5, 2.5).numpy()
    assert found.dtype == wanted.dtype and np.abs(found - wanted).max() <= 2.5 / 255


@pytest.mark.parametrize("spec", SPECS)
def test_strides_of_a_tensor_in_another_memory_order(spec: str) -> None:
    """Torch keeps the order of a transposed tensor in memory, and `as_strided` sees it; quantized too."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.t() * 1.5).as_strided((2, 2), (1, 2), 1)

    x = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
    program = tosaic.compile(samples.Call(function).eval(), (x,), spec, calibration=[(x,)])
    assert [r.op for r in program.reasons if not r.is_io] == []
    assert np.abs(program.run(x, engine="tosa")[0] - function(x).numpy()).max() < 0.02


@pytest.mark.parametrize(
    ("shape", "size"), [((1, 3, 2, 97), (4, 194)), ((1, 2, 5, 7), (9, 10)), ((1, 1, 3, 4), (6, 8))]
)
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_an_interpolation_is_clamped_after_it(shape: tuple[int, ...], size: tuple[int, int], target: str) -> None:
    """Its pixels are not limited before they are weighted."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(F.interpolate(x, size=size, mode="bilinear"), -0.75, 1.5)

    x = torch.linspace(-40.0, 40.0, math.prod(shape)).reshape(shape).sin() * 2.0 + 1.0
    program = tosaic.compile(samples.Call(function).eval(), (x,), target, calibration=[(x,)])
    # One step of the input and one of the output.
    assert np.abs(program.run(x)[0] - function(x).numpy()).max() <= 4.0 / 255 + 2.25 / 255


class Parts(torch.nn.Module):
    """Three tensors that are a part of another one: of an input, and of a constant its end and its start."""

    def __init__(self, part: int) -> None:
        super().__init__()
        self.part, self.table = part, torch.nn.Parameter(torch.arange(120.0).reshape(2, 60))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (x.diagonal(1, -2, -1), self.table[1:], self.table[:1, :8])
        return parts[self.part].as_strided([4, 3], [1, 4], 2)


@pytest.mark.parametrize("part", range(3))
def test_the_memory_behind_a_view_is_refused(part: int) -> None:
    for target in ("TOSA-1.0+FP", "ethos-u55-128"):
        with pytest.raises(Invalid, match=r"part of another one(.|\n)*test_results.py(.|\n)*contiguous\(\)"):
            tosaic.compile(Parts(part).eval(), (torch.randn(3, 4, 17),), target)


def test_the_strides_of_a_quantized_tensor() -> None:
    model = samples.Call(lambda x: (x + 1.0).as_strided([4, 3], [1, 4])).eval()
    x = torch.randn(3, 4)
    exported = torch.export.export(model, (x,))
    program = tosaic.compile(tosaic.quantize(exported, [(x,)]), (x,), "ethos-u55-128")
    assert program.verify(rounds=1).ok
    assert np.abs(program.run(x)[0] - model(x).numpy()).max() < 0.05


@pytest.mark.parametrize("name", ["amax", "amin", "sum", "mean", "prod", "logsumexp", "softmax"])
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256", "TOSA-1.0+FP"])
def test_reductions_of_a_number_that_was_cut_from_a_tensor(name: str, target: str) -> None:
    """Its memory has a dimension that the number itself does not have."""
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(6))
    model = Call(lambda _, x: getattr(torch, name)((x * 2.0).reshape(-1)[:1].reshape([]), -1) + 1.0).eval()
    program = tosaic.compile(model, (x,), target)
    assert all(r.is_io for r in program.reasons)
    assert program.verify().ok
    np.testing.assert_allclose(program.run(x)[0], model(x).numpy(), atol=0.02)
