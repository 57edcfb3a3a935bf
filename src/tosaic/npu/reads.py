"""What the operations of a command stream read and write: shapes, parameters, and the operation behind every DMA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tosaic.npu.cycles import read_work
from tosaic.npu.dma import Transfer, read_transfer
from tosaic.npu.memory import INTERNAL
from tosaic.npu.operation import Kind, Op, walk
from tosaic.npu.stream import Stream

#: Registers with the start of data that a kernel operation may read, and the region of each.
_READ_BASES = (
    *((f"WEIGHT{core or ''}_BASE", "WEIGHT_REGION") for core in range(4)),
    *((f"SCALE{core or ''}_BASE", "SCALE_REGION") for core in range(2)),
    ("IFM_BASE0", "IFM_REGION"),
    ("IFM2_BASE0", "IFM2_REGION"),
)
#: DMAs whose data is followed; a stream of an unknown file may have any number of them.
_MOST_FOLLOWED = 64
_PARAMETERS = tuple(name for name, _ in _READ_BASES if not name.startswith("IFM"))


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a region."""

    region: int
    start: int
    size: int


@dataclass(slots=True)
class CommandReads:
    """One operation of a stream.

    ifm, ofm     height, width and depth of its input and output; empty for a DMA
    element      bytes of an element of its input and output
    parameters   its encoded weights and scales; those that a DMA has brought are where the DMA took them
    serves       the index of the operation that needs what a DMA moves; -1 if there is none, and for other operations
    is_indexed   whether a DMA gathers or scatters
    """

    offset: int
    ifm: tuple[int, ...] = ()
    ofm: tuple[int, ...] = ()
    element: tuple[int, int] = (0, 0)
    parameters: tuple[Range, ...] = ()
    serves: int = -1
    is_indexed: bool = False


@dataclass(slots=True)
class _Reader:
    """Follows data from DMAs to the operations that read it."""

    found: list[CommandReads] = field(default_factory=list[CommandReads])
    #: the last DMAs whose data is still there, by index
    moved: dict[int, Transfer] = field(default_factory=dict[int, Transfer])

    def add(self, op: Op) -> None:
        if op.kind is Kind.DMA:
            transfer = read_transfer(op)
            self._forget(transfer)
            self.moved[len(self.found)] = transfer
            self.found.append(CommandReads(op.offset, is_indexed=transfer.gathers or transfer.scatters))
        elif op.kind.is_kernel:
            self._serve(op)
            work = read_work(op)
            self.found.append(
                CommandReads(
                    op.offset,
                    tuple(work.ifm),
                    tuple(work.ofm),
                    (work.ifm_bits // 8, work.ofm_bits // 8),
                    tuple(self._list_parameters(op)) if op.kind in (Kind.CONV, Kind.DEPTHWISE) else (),
                )
            )

    def _forget(self, transfer: Transfer) -> None:
        """Drop the DMAs whose data this one overwrites."""
        over = [index for index, old in self.moved.items() if _overlaps(old, transfer)]
        if len(self.moved) == _MOST_FOLLOWED:
            over.append(next(iter(self.moved)))
        for index in dict.fromkeys(over):
            del self.moved[index]

    def _serve(self, op: Op) -> None:
        """Note the operation as the user of the DMAs whose data it reads; tables are for the next operation."""
        index = len(self.found)
        places = [
            (op.get(region), op.get(base))
            for base, region in _READ_BASES
            if base in op.registers and region in op.registers
        ]
        for number, transfer in self.moved.items():
            if self.found[number].serves >= 0:
                continue
            reads = any(transfer.target == region and _holds(transfer, start) for region, start in places)
            if reads or transfer.target == INTERNAL:
                self.found[number].serves = index

    def _list_parameters(self, op: Op) -> Iterator[Range]:
        if op.family.has_u85_units and op.kind is Kind.CONV and op.argument("weights_ifm2"):
            return
        for base, region in _READ_BASES:
            length = base.replace("_BASE", "_LENGTH")
            if base not in _PARAMETERS or base not in op.registers or not op.registers.get(length):
                continue
            place, start, size = op.get(region), op.get(base), op.get(length)
            source = next((t for t in self.moved.values() if t.target == place and _holds(t, start)), None)
            if source is None:
                yield Range(place, start, size)
            else:
                yield Range(source.source, source.source_start + start - source.target_start, size)


def _holds(transfer: Transfer, start: int) -> bool:
    return transfer.target_start <= start < transfer.target_start + max(1, transfer.size)


def _overlaps(old: Transfer, new: Transfer) -> bool:
    if old.target != new.target:
        return False
    return old.target_start < new.target_start + new.size and new.target_start < old.target_start + old.size


def list_reads(stream: Stream) -> tuple[CommandReads, ...]:
    """List the kernel operations and DMAs of a stream, in the order of an estimate's rows."""
    reader = _Reader()
    for op in walk(stream):
        reader.add(op)
    return tuple(reader.found)
