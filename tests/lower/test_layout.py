"""The layout algebra against numpy: what a reshape of a permuted value means for the value itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tosaic.core import targets
from tosaic.core.specification import Specification
from tosaic.ir.graph import Array, DType, Type
from tosaic.lower.layout import join, simplify
from tosaic.lower.lowering import NHWC, Lowering
from tosaic.lower.tensor import Const, Stored, inverse

Shape = tuple[int, ...]


def count(shape: Shape) -> Array:
    return np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)


def shapes_of(size: int, most: int) -> Iterator[Shape]:
    """All shapes of up to `most` dimensions with this many elements."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    for rank in range(1, most + 1):
        yield from (s for s in itertools.product(divisors, repeat=rank) if int(np.prod(s)) == size)


def lowering() -> Lowering:
    target = targets.find("ethos-u85-256")
    return Lowering(target, Specification.parse(target.tosa_spec))


@pytest.mark.parametrize("stored", [(2, 3, 4), (4, 1, 6), (2, 2, 6), (1, 4, 3, 2), (24,)])
def test_join_only_splits_and_joins_neighbors(stored: Shape) -> None:
    """reshape(transpose(v, perm), shape) is transpose(reshape(v, ...), ...) wherever `join` says so."""
    value, found = count(stored), 0
    for perm in itertools.permutations(range(len(stored))):
        viewed = value.transpose(perm)
        for shape in shapes_of(value.size, 4):
            axes = join(viewed.shape, perm, shape)
            if axes is None:
                continue
            found += 1
            assert sorted(axes) == list(range(len(shape)))
            kept = value.reshape([shape[a] for a in axes])
            assert np.array_equal(kept.transpose(inverse(axes)), viewed.reshape(shape)), (perm, shape, axes)
    assert found > len(stored)


def test_join_refuses_dimensions_that_are_apart_in_memory() -> None:
    assert join((4, 2, 3), (2, 0, 1), (8, 3)) is None
    assert join((2, 3, 4), (0, 1, 2), (5, 5)) is None


def test_join_of_a_plain_value_is_plain() -> None:
    assert join((2, 3, 4), (0, 1, 2), (6, 4)) == (0, 1)
    assert join((2, 3, 4), (0, 1, 2), (2, 1, 12)) == (0, 1, 2)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5, 2), (1, 3, 1, 4, 2), (2, 1, 1, 3, 5), (3, 2, 2, 1, 1)])
def test_simplify_is_the_same_transposition(shape: Shape) -> None:
    value = count(shape)
    for perm in itertools.permutations(range(len(shape))):
        fewer, order = simplify(shape, perm)
        assert len(fewer) <= sum(d != 1 for d in shape)
        moved = value.reshape(fewer).transpose(order)
        assert np.array_equal(moved.reshape(-1), value.transpose(perm).reshape(-1)), perm


def test_simplify_joins_what_stays_together() -> None:
    assert simplify((2, 3, 4, 5), (2, 3, 0, 1)) == ((6, 20), (1, 0))
    assert simplify((2, 3, 4), (0, 1, 2)) == ((24,), (0,))


def test_a_view_costs_nothing_until_it_is_needed() -> None:
    lo = lowering()
    x = Stored((1, 3, 4, 5), lo.b.input(Type(DType.I8, (1, 4, 5, 3))), NHWC)
    last = lo.permute(x, (0, 2, 3, 1))
    flat = lo.reshape(last, (20, 3))
    assert not lo.b.ops
    assert last.is_materialized and lo.emit(last) is x.value
    assert lo.emit(flat).shape == (20, 3)
    assert [op.kind for op in lo.b.ops if not op.kind.startswith("CONST")] == ["RESHAPE"]


def test_materialize_transposes_once() -> None:
    lo = lowering()
    x = Stored((1, 3, 4, 5), lo.b.input(Type(DType.I8, (1, 4, 5, 3))), NHWC)
    assert lo.emit(x) is lo.emit(x)
    assert [op.kind for op in lo.b.ops if not op.kind.startswith("CONST")] == ["TRANSPOSE"]


def test_views_of_a_constant_are_numpys() -> None:
    lo, array = lowering(), count((2, 3, 4)).astype(np.int32)
    const = Const(array, DType.I32)
    assert np.array_equal(lo.permute(const, (2, 0, 1)).array, array.transpose(2, 0, 1))
    assert np.array_equal(lo.reshape(const, (6, 4)).array, array.reshape(6, 4))


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
def test_inverse(perm: Shape) -> None:
    value = count((2, 3, 4))
    assert np.array_equal(value.transpose(perm).transpose(inverse(perm)), value)


@pytest.mark.parametrize(
    ("viewed", "perm", "shape", "axes"),
    [
        ((2, 3, 4), (0, 1, 2), (6, 4), (0, 1)),
        ((2, 4, 3), (0, 2, 1), (2, 2, 2, 3), (0, 3, 1, 2)),
        ((2, 4, 3), (0, 2, 1), (2, 12), None),
        ((4, 3), (1, 0), (6, 2), None),
        ((2, 4, 3), (0, 2, 1), (1, 2, 4, 3), (0, 1, 3, 2)),
    ],
    ids=["plain", "split", "joined", "across", "ones"],
)
def test_join_by_example(viewed: Shape, perm: Shape, shape: Shape, axes: Shape | None) -> None:
    assert join(viewed, perm, shape) == axes
