"""The memories that a command stream sees: regions, the NPU's internal RAM and the buffers of chained operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tosaic.npu.accelerator import BRICK
from tosaic.npu.errors import Fault, OutOfRange, TooMuch, Uninitialized
from tosaic.npu.operation import FeatureMap, Layout, Shape, Storage

Bytes: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[Any]

#: Key of the NPU's internal RAM, next to the numbers of the regions.
INTERNAL = -1
#: No access needs more elements than this at once.
_MAX_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Region:
    """One address space. `written` marks the bytes that were written, where that is tracked."""

    name: str
    data: Bytes
    writable: bool
    written: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """A strided set of bytes that an operation reads or writes."""

    region: int
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writes: bool

    @property
    def bounds(self) -> tuple[int, int]:
        """Offsets of the first byte and of the one after the last."""
        reach = [(count - 1) * stride for count, stride in zip(self.shape, self.strides, strict=True)]
        return self.start + sum(min(0, r) for r in reach), self.start + sum(max(0, r) for r in reach) + 1


@dataclass(slots=True)
class Memory:
    """All memory that a stream can read and write. With `accesses` set, every access is recorded there.

    `chains` are the buffers of chained operations, `sums` the accumulators that an operation left behind.
    """

    regions: dict[int, Region]
    chains: dict[int, Numbers] = field(default_factory=dict[int, Numbers])
    sums: Numbers | None = None
    accesses: list[Access] | None = None

    def view(
        self,
        region: int,
        start: int,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: str,
        at: int | None,
        write: bool,
    ) -> Numbers:
        """Return the elements at these strides as an array view of the memory, after all checks.

        `at` is the offset of the command, for errors.
        """
        item = np.dtype(dtype).itemsize
        access = Access(region, start, (*shape, item), (*strides, 1), write)
        found = self._note(access, at)
        if found.written is not None:
            self._track(found, access, at)
        return np.ndarray(shape, np.dtype(dtype), found.data, start, strides)

    def copy(self, source: Access, target: Access, at: int) -> None:
        """Copy bytes; bytes that were never written are marked unwritten in the target too."""
        taken, given = self._note(source, at), self._note(target, at)
        _at(given.data, target)[...] = _at(taken.data, source).copy()
        if given.written is not None:
            marks = True if taken.written is None else _at(taken.written, source).copy()
            _at(given.written, target)[...] = marks

    def _note(self, access: Access, at: int | None) -> Region:
        """Check and record an access; return its region."""
        found = self.regions.get(access.region)
        if found is None:
            raise Fault(f"there is no region {access.region}", offset=at, why=f"there are {sorted(self.regions)}")
        low, high = access.bounds
        if low < 0 or high > len(found.data):
            raise OutOfRange(found.name, low, high - low, len(found.data), offset=at)
        if access.writes and not found.writable:
            raise Fault(f"{found.name} is written to", offset=at, why="it can only be read")
        if self.accesses is not None:
            self.accesses.append(access)
        return found

    def _track(self, region: Region, access: Access, at: int | None) -> None:
        assert region.written is not None
        marks = _at(region.written, access)
        if access.writes:
            marks[...] = True
        elif not marks.all():
            low, high = access.bounds
            missing = int(np.count_nonzero(~marks))
            first = low + int(np.argmin(region.written[low:high]))
            raise Uninitialized(region.name, first, missing, offset=at)

    def read_bytes(self, region: int, start: int, size: int, at: int | None) -> Bytes:
        """Return consecutive bytes, as a view."""
        return self.view(region, start, (size,), (1,), "u1", at, write=False)

    def load(self, source: FeatureMap, shape: Shape, first_row: int = 0) -> Numbers:
        """Load rows from `first_row` on as [rows, columns, channels]; return a view where the layout allows."""
        if source.layout is None:
            return self._load_chained(source, shape, first_row)
        if shape.size > _MAX_ELEMENTS:
            raise TooMuch(f"{source.name} has {shape.size} elements", offset=source.offset)
        parts = list(self._parts(source, source.layout, shape, first_row, write=False))
        if len(parts) == 1 and parts[0].part.ndim == 3:
            return parts[0].part
        result = np.empty(tuple(shape), np.dtype(source.dtype))
        for piece in parts:
            piece.select(result)[...] = piece.part
        return result

    def _load_chained(self, source: FeatureMap, shape: Shape, first_row: int) -> Numbers:
        kept = self.chains.get(source.region) if source.storage is Storage.CHAINED else None
        if kept is None:
            raise Fault(f"{source.name} is read from an empty chain buffer", offset=source.offset)
        rows = kept[first_row : first_row + shape.height]
        if rows.shape != tuple(shape) or rows.dtype != np.dtype(source.dtype):
            wanted = f"{source.dtype}{list(shape)}"
            raise Fault(f"{source.name} reads {wanted} from a chain buffer", offset=source.offset, why=f"{kept.shape}")
        return rows

    def store(self, target: FeatureMap, values: Numbers, first_row: int = 0) -> None:
        """Write [rows, columns, channels], keeping the low bits of each number."""
        height, width, depth = values.shape
        if target.layout is None:
            raise Fault(f"{target.name} is written to, but has no address", offset=target.offset)
        for piece in self._parts(target, target.layout, Shape(height, width, depth), first_row, write=True):
            np.copyto(piece.part, piece.select(values), casting="unsafe")

    def _parts(self, source: FeatureMap, layout: Layout, shape: Shape, first_row: int, write: bool) -> Iterator[_Part]:
        """Yield the pieces of a block: one per tile and, in bricks, one more for a last brick that is not full."""
        item = source.bits // 8
        for rows, columns, start in _cut_tiles(layout, shape, first_row):
            height, width = rows.stop - rows.start, columns.stop - columns.start
            if not layout.bricks:
                sizes, strides = (height, width, shape.depth), (layout.stride_y, layout.stride_x, item)
                view = self.view(source.region, start, sizes, strides, source.dtype, source.offset, write)
                yield _Part(rows, columns, slice(0, shape.depth), view)
                continue
            full = shape.depth // BRICK
            for first, count, channels in ((0, full, BRICK), (full, 1, shape.depth % BRICK)):
                if count and channels:
                    sizes = (height, width, count, channels)
                    strides = (layout.stride_y, BRICK * item, layout.stride_c, item)
                    at = start + first * layout.stride_c
                    view = self.view(source.region, at, sizes, strides, source.dtype, source.offset, write)
                    begin = first * BRICK
                    yield _Part(rows, columns, slice(begin, begin + count * channels), view)


def _at(data: Numbers, access: Access) -> Numbers:
    """Select the bytes of an access in an array that has one element per byte."""
    return np.ndarray(access.shape, data.dtype, data, access.start, access.strides)


@dataclass(frozen=True, slots=True)
class _Part:
    """The position of a piece in its block, and its data: [rows, columns, channels], or bricks of them."""

    rows: slice
    columns: slice
    channels: slice
    part: Numbers

    def select(self, block: Numbers) -> Numbers:
        """Return the view of a block that this piece covers; splitting the last axis into bricks makes no copy."""
        return block[self.rows, self.columns, self.channels].reshape(self.part.shape)


def _cut_tiles(layout: Layout, shape: Shape, first_row: int) -> Iterator[tuple[slice, slice, int]]:
    """Yield rows and columns (relative to the block) and the corner address of each tile that the block touches."""
    last_row = first_row + shape.height
    sides = ((0, min(shape.width, layout.width0), layout.height0, 0), (layout.width0, shape.width, layout.height1, 1))
    for left, right, split, side in sides:
        if left >= right:
            continue
        for top, bottom, tile, origin in (
            (first_row, min(last_row, split), side, 0),
            (max(first_row, split), last_row, side + 2, split),
        ):
            if top < bottom:
                start = layout.bases[tile] + (top - origin) * layout.stride_y
                yield slice(top - first_row, bottom - first_row), slice(left, right), start


def make_region(name: str, size: int, *, data: bytes | None = None, track: bool = False) -> Region:
    """Make a read-only region with these contents, or a writable region of this size that is not yet written."""
    if data is not None:
        return Region(name, np.frombuffer(data, np.uint8), writable=False)
    return Region(name, np.zeros(size, np.uint8), True, np.zeros(size, np.bool_) if track else None)
