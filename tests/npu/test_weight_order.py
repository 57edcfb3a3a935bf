"""The order of weights in a stream of U55 and U65, against plain loops over the blocks that their order is made of."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from tosaic.npu.errors import Malformed
from tosaic.npu.weight_order_u55 import OrderU55

Weights = npt.NDArray[np.int16]


def make_order(taps: tuple[int, int], inputs: int, outputs: int, kind: str, block: int = 16) -> OrderU55:
    return OrderU55(
        outputs=outputs,
        inputs=1 if kind == "depthwise" else inputs,
        taps_y=taps[0],
        taps_x=taps[1],
        part_y=8,
        part_x=8,
        depthwise=kind == "depthwise",
        part_kernel=kind == "part kernel",
        wide=False,
        block=block,
        group=8,
        streams=1,
    )


def list_weights(order: OrderU55) -> Iterator[tuple[int, int, int, int] | None]:
    """List (kernel row, kernel column, input, output) in the order of the stream, None for padding."""
    deep = 1 if order.depthwise else 8
    in_block = 1 if order.depthwise else 16 if order.part_kernel else 32
    step = 1 if not order.depthwise and not order.part_kernel else 4
    for first_out, first_in in itertools.product(
        range(0, order.outputs, order.block), range(0, order.inputs, in_block)
    ):
        out_groups = range(-(-min(order.block, order.outputs - first_out) // order.group))
        filled = in_block if not order.part_kernel else min(in_block, order.inputs - first_in)
        in_groups = range(-(-filled // deep))
        for y, x in itertools.product(range(0, order.taps_y, order.part_y), range(0, order.taps_x, order.part_x)):
            rows, columns = range(y, min(y + order.part_y, order.taps_y)), range(x, min(x + order.part_x, order.taps_x))
            elements: list[tuple[int, int] | None] = list(itertools.product(rows, columns))
            elements += [None] * (-len(elements) % step)
            nest = (
                ((e, g_in, g_out) for g_in in in_groups for g_out in out_groups for e in elements)
                if order.part_kernel
                else ((e, g_in, g_out) for g_out in out_groups for e in elements for g_in in in_groups)
            )
            for element, g_in, g_out in nest:
                for out, into in itertools.product(range(order.group), range(deep)):
                    output, channel = first_out + g_out * order.group + out, first_in + g_in * deep + into
                    inside = element is not None and output < order.outputs and channel < order.inputs
                    yield (*element, channel, output) if inside and element is not None else None


def encode(order: OrderU55, weights: Weights) -> Weights:
    return np.array([0 if place is None else weights[place] for place in list_weights(order)], np.int16)


@pytest.mark.parametrize("kind", ["depth first", "part kernel", "depthwise"])
@pytest.mark.parametrize(
    ("taps", "inputs", "outputs"),
    [((1, 1), 8, 8), ((3, 3), 3, 5), ((3, 3), 40, 20), ((2, 5), 17, 33), ((9, 10), 4, 8)],
)
def test_streams_become_kernels(taps: tuple[int, int], inputs: int, outputs: int, kind: str) -> None:
    order = make_order(taps, inputs, outputs, kind)
    shape = (*taps, order.inputs, outputs)
    weights = (np.arange(np.prod(shape)) % 32749 + 1).astype(np.int16).reshape(shape)
    assert order.count == weights.size
    assert np.array_equal(order.arrange([encode(order, weights)], 0), weights)


def test_output_channels_are_dealt_out_between_cores() -> None:
    one = make_order((1, 1), 8, 5, "depth first")
    two = dataclasses.replace(one, outputs=10, streams=2)
    weights = np.arange(1, 81, dtype=np.int16).reshape(1, 1, 8, 10)
    cores = [dataclasses.replace(one, block=8).arrange([encode(one, weights[..., core::2])], 0) for core in (0, 1)]
    streams = [encode(one, weights[..., core::2]) for core in (0, 1)]
    assert np.array_equal(two.arrange(streams, 0), weights)
    assert np.array_equal(np.stack(cores, -1).reshape(weights.shape), weights)


def test_padding_must_be_zero() -> None:
    order = make_order((1, 1), 3, 5, "depth first")
    stream = encode(order, np.ones((1, 1, 3, 5), np.int16))
    stream[-1] = 1
    with pytest.raises(Malformed, match="padding"):
        order.arrange([stream], 0)
    with pytest.raises(Malformed, match="does not fit"):
        order.arrange([stream[:-1]], 0)
