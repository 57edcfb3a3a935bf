"""The algebra of views against numpy, for all permutations of small shapes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tosaic.lower.layout import Shape, join, simplify

SHAPES: tuple[Shape, ...] = ((6,), (2, 3), (1, 4), (2, 1, 3), (2, 3, 4), (1, 2, 1, 3), (2, 3, 2, 2))
RESHAPES: tuple[Shape, ...] = ((12,), (2, 6), (6, 2), (3, 4), (2, 2, 3), (1, 12, 1), (3, 1, 2, 2))


def list_permuted(shapes: tuple[Shape, ...]) -> list[tuple[Shape, Shape]]:
    return [(shape, perm) for shape in shapes for perm in itertools.permutations(range(len(shape)))]


def number(shape: Shape) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.arange(math.prod(shape)).reshape(shape)


@pytest.mark.parametrize(("shape", "perm"), list_permuted(SHAPES))
def test_simplify_is_the_same_transposition_in_fewer_dimensions(shape: Shape, perm: Shape) -> None:
    small, order = simplify(shape, perm)
    stored = number(shape)
    assert np.array_equal(stored.reshape(small).transpose(order).reshape(-1), stored.transpose(perm).reshape(-1))
    assert 1 not in small
    assert all(b != a + 1 for a, b in itertools.pairwise(order)), "neighbors that stay together are one dimension"


@pytest.mark.parametrize(("shape", "perm"), list_permuted(((12,), (3, 4), (2, 6), (2, 2, 3), (1, 4, 3))))
@pytest.mark.parametrize("wanted", RESHAPES)
def test_join_reshapes_a_permuted_value_without_moving_it(shape: Shape, perm: Shape, wanted: Shape) -> None:
    stored = number(shape)
    viewed = stored.transpose(perm)
    axes = join(viewed.shape, perm, wanted)
    if axes is not None:
        kept = stored.reshape([wanted[axis] for axis in axes])
        assert np.array_equal(kept.transpose(np.argsort(axes)), viewed.reshape(wanted))


@pytest.mark.parametrize(
    ("viewed", "perm", "shape", "axes"),
    [
        ((2, 3, 4), (0, 1, 2), (6, 4), (0, 1)),
        ((2, 4, 3), (0, 2, 1), (2, 2, 2, 3), (0, 3, 1, 2)),
        ((2, 4, 3), (0, 2, 1), (2, 12), None),
        ((4, 3), (1, 0), (6, 2), None),
        ((2, 4, 3), (0, 2, 1), (1, 2, 4, 3), (0, 1, 3, 2)),
    ],
    ids=["plain", "cut", "joined", "across", "ones"],
)
def test_join_by_example(viewed: Shape, perm: Shape, shape: Shape, axes: Shape | None) -> None:
    assert join(viewed, perm, shape) == axes
