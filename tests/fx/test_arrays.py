"""The memory order of tensors, which is found without asking torch for a permuted one."""

from __future__ import annotations

import itertools

import pytest
import torch

from tosaic.fx.arrays import find_memory_order

SHAPES = ((), (3,), (1,), (0,), (2, 3), (2, 1, 3), (1, 1), (2, 0, 3), (2, 3, 4), (1, 4, 2, 3))


def list_views(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Permuted, sliced, expanded and flattened forms of a tensor."""
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    found = [x.permute(order) for order in itertools.permutations(range(len(shape)))]
    for d in range(len(shape)):
        found += [x[(slice(None),) * d + (slice(0, shape[d] // 2 + 1),)], x[(slice(None),) * d + (slice(0, None, 2),)]]
        found += [x.narrow(d, 0, 1).expand(shape)] if shape[d] else []
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_the_order_is_one_in_which_torch_calls_the_tensor_contiguous(shape: tuple[int, ...]) -> None:
    for view in list_views(shape):
        order = sorted(range(view.dim()), key=lambda d: (-view.stride(d), d))
        want = tuple(order) if view.permute(order).is_contiguous() else None
        assert find_memory_order(view) == want
