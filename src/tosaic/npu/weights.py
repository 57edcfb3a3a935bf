"""Weights of a convolution: the location of their streams, their decoding, and their order."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.core.budget import Budget
from tosaic.core.errors import ToolCrashed, ToolFailed
from tosaic.npu.errors import DamagedWeights, Malformed, TooMuch
from tosaic.npu.memory import Memory
from tosaic.npu.operation import Op, Shape, Window
from tosaic.npu.output import Scale, read_rounding
from tosaic.npu.weight_order_u55 import OrderU55, count_cores
from tosaic.npu.weight_order_u85 import OrderU85
from tosaic.tools.worker import Reply, Worker

_RECORD_BYTES = 10
#: No stream of a real network has more weights than this.
_MAX_WEIGHTS = 1 << 24
#: A stream also holds zeros that pad the blocks of channels.
_MAX_DECODED = 2 * _MAX_WEIGHTS
_DECODE_SECONDS = 20.0
_CACHE_BYTES = 128 << 20
#: Bytes per weight: while it is kept, and while it is being decoded.
_KEPT, _PASSING = 4, 8

Order = OrderU55 | OrderU85


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights as [kernel rows, kernel columns, input channels, output channels]; `reach` bounds any weighted sum."""

    values: npt.NDArray[np.float32]
    reach: int


class WeightCache:
    """Decoded weights by stream and geometry: stripes of one operator, and runs of one program, decode the same bytes.

    With a budget, both kept weights and decoding are charged to it. Threads may share a cache.
    """

    def __init__(self, limit: int = _CACHE_BYTES, *, budget: Budget | None = None) -> None:
        self._limit, self._budget = limit, budget
        self._kept: OrderedDict[tuple[tuple[bytes, ...], Order], Weights] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, streams: tuple[bytes, ...], order: Order, offset: int) -> Weights:
        with self._lock:
            return self._find((streams, order), offset)

    def _find(self, key: tuple[tuple[bytes, ...], Order], offset: int) -> Weights:
        streams, order = key
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        if self._budget is not None:
            # As floats to keep, and before that as decoded and as reordered numbers.
            self._budget.take((_KEPT + _PASSING) * order.count, "decoded weights")
        try:
            found = _decode(streams, order, offset)
        except Exception:
            self._give_back(_KEPT * order.count)
            raise
        finally:
            self._give_back(_PASSING * order.count)
        self._kept[key] = found
        self._bytes += found.values.nbytes
        while self._bytes > self._limit and len(self._kept) > 1:
            (_, gone), dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.values.nbytes
            self._give_back(_KEPT * gone.count)
        return found

    def _give_back(self, size: int) -> None:
        if self._budget is not None:
            self._budget.give_back(size)


def load_weights(op: Op, memory: Memory, cache: WeightCache, window: Window, depth: int, ofm: Shape) -> Weights:
    """Load the weights of a convolution with `depth` input channels (1 for a depthwise one)."""
    order = OrderU85.of(op, window, depth, ofm) if op.family.has_u85_units else OrderU55.of(op, window, depth, ofm)
    if order.count > _MAX_WEIGHTS:
        raise TooMuch(f"a convolution with {order.count} weights", offset=op.offset)
    region = op.get("WEIGHT_REGION")
    names = ("WEIGHT", "WEIGHT1", "WEIGHT2", "WEIGHT3")[: order.streams]
    streams = tuple(
        memory.read_bytes(region, op.get(f"{name}_BASE"), op.get(f"{name}_LENGTH"), op.offset).tobytes()
        for name in names
    )
    return cache.get(streams, order, op.offset)


def _decode(streams: tuple[bytes, ...], order: Order, offset: int) -> Weights:
    if isinstance(order, OrderU85) and order.fast:
        numbers = [order.expand(streams[0], offset)]
    else:
        numbers = decode_streams(streams, offset)
    values = order.arrange(numbers, offset)
    sums = np.abs(values).sum(axis=(0, 1, 2), dtype=np.float64)
    return Weights(values, int(sums.max()))


@functools.cache
def decoder() -> Worker:
    """Return the worker that decodes compressed streams."""
    return Worker("tosaic.npu.weights_child", "the weight decoder")


def _request(streams: Sequence[bytes]) -> Reply:
    """Ask the decoder, twice if it crashed: its memory is limited, and a new process has all of it."""
    try:
        return decoder().request({"most": _MAX_DECODED}, streams, timeout=_DECODE_SECONDS)
    except ToolCrashed:
        return decoder().request({"most": _MAX_DECODED}, streams, timeout=_DECODE_SECONDS)


def decode_streams(streams: Sequence[bytes], offset: int) -> list[npt.NDArray[np.int16]]:
    """Decode compressed weight streams; an empty stream has no numbers."""
    try:
        reply = _request(streams)
    except ToolFailed as error:
        raise DamagedWeights("a weight stream is damaged", offset=offset, why=error.why or error.what) from None
    if reply.failure:
        raise DamagedWeights("a weight stream is damaged", offset=offset, why=reply.failure)
    return [np.frombuffer(part, np.int16) for part in reply.parts]


def load_scales(op: Op, memory: Memory, depth: int) -> Scale:
    """Load bias, factor and shift of every output channel."""
    region = op.get("SCALE_REGION")
    cores = 1 if op.family.has_u85_units else count_cores(op)
    parts = np.zeros((depth, _RECORD_BYTES), np.uint8)
    for core in range(cores):
        rows = parts[core::cores]
        name = f"SCALE{core}" if core else "SCALE"
        # A core without channels has no records.
        if len(rows) == 0:
            continue
        size = len(rows) * _RECORD_BYTES
        if op.get(f"{name}_LENGTH") < size:
            raise Malformed(f"{name}_LENGTH is too small for {len(rows)} channels", offset=op.offset)
        data = memory.read_bytes(region, op.get(f"{name}_BASE"), size, op.offset)
        rows[...] = data.reshape(len(rows), _RECORD_BYTES)
    if not op.family.has_u85_units:
        bias, factor, shift = _number(parts[:, :5]), _number(parts[:, 5:9]), parts[:, 9].astype(np.int64)
    elif op.name("ACC_FORMAT", "acc_format") == "I32":
        bias, factor, shift = _number(parts[:, :4]), _number(parts[:, 4:8]), parts[:, 8].astype(np.int64)
    else:
        bias, factor, shift = _number(parts[:, :6]), _number(parts[:, 6:8]), parts[:, 8].astype(np.int64)
    if (shift > 63).any() or (op.family.has_u85_units and (parts[:, 9].any() or (factor < 0).any())):
        raise Malformed("a scale record has unknown bits", offset=op.offset)
    return Scale(factor, shift, bias, read_rounding(op))


def _number(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Convert each row of bytes from a signed little-endian number."""
    size = rows.shape[1]
    wide = np.zeros((len(rows), 8), np.uint8)
    wide[:, 8 - size :] = rows
    return wide.view("<i8")[:, 0] >> 8 * (8 - size)
