"""Reads untrusted .pte files: returns a Pte, or raises Invalid with the field and the offset."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tosaic.core.budget import Budget
from tosaic.core.dtypes import BY_SCALAR_TYPE, DTYPES
from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.formats.pte_schema import IDENTIFIER, Row, open_program

#: The most dimensions that ExecuTorch's runtime supports.
MAX_RANK = 16
_HEADER = struct.Struct("<4sIQQ")
_HEADER_AT = 8
_DYNAMISM: tuple[Literal["static", "bound", "unbound"], ...] = ("static", "bound", "unbound")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Location of a tensor in the planned memory: the buffer, and the byte in it."""

    memory_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's type and location. `data` is a constant, or with `allocation` the initial data of a mutable tensor.

    `dim_order` lists the dimensions from outer to inner as they are in memory. `external` data are not in the file:
    they are found by `name`.
    """

    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    allocation: Allocation | None = None
    data: memoryview | None = None
    dynamism: Literal["static", "bound", "unbound"] = "static"
    name: str = ""
    external: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].bytes


@dataclass(frozen=True, slots=True)
class IntList:
    """Indices of the values that hold the numbers: a kernel may compute some of them."""

    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DoubleList:
    items: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BoolList:
    items: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class TensorList:
    """Indices of tensor values."""

    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OptionalTensorList:
    """Indices of tensor values; -1 stands for None."""

    items: tuple[int, ...]


#: A value of the program; whole numbers, floats, bools and texts are Python's own.
Value: TypeAlias = (
    Tensor | IntList | DoubleList | BoolList | TensorList | OptionalTensorList | int | float | bool | str | None
)


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel by its name (`aten::add`) and overload (`out`; empty for the default)."""

    name: str
    overload: str

    def __str__(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True, slots=True)
class KernelCall:
    operator: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DelegateCall:
    delegate: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoveCall:
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class JumpFalseCall:
    condition: int
    destination: int


@dataclass(frozen=True, slots=True)
class FreeCall:
    value: int


Instruction: TypeAlias = KernelCall | DelegateCall | MoveCall | JumpFalseCall | FreeCall


@dataclass(frozen=True, slots=True)
class Chain:
    """A sequence of instructions."""

    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Delegate:
    """Input of a backend: its blob, the blob's offset and size in the file, and the settings it was compiled with."""

    id: str
    blob: bytes
    location: Literal["inline", "segment"]
    offset: int
    compile_specs: tuple[tuple[str, bytes], ...]
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One method of the program."""

    name: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]
    chains: tuple[Chain, ...]
    delegates: tuple[Delegate, ...]
    buffer_sizes: tuple[int, ...]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions of all chains, in order."""
        return tuple(step for chain in self.chains for step in chain.instructions)

    @property
    def planned_sizes(self) -> tuple[int, ...]:
        """The sizes of the planned buffers; the first entry of the file's list is not one of them."""
        return self.buffer_sizes[1:]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the file after the program; the offset is from the start of the file."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Pte:
    """A program. `named_data` are the blobs that delegates look up by key; `taken` is the memory that reading took.

    `data_size` is the size of the .ptd files that were read with it.
    """

    version: int
    size: int
    plans: tuple[Plan, ...]
    segments: tuple[Segment, ...]
    named_data: Mapping[str, bytes]
    taken: int = 0
    data_size: int = 0

    def make_budget(self, max_memory: int | None = None) -> Budget:
        """Make the budget of what is done with the program, less what reading it took."""
        budget = Budget(self.size + self.data_size, max_memory)
        budget.take(self.taken, "the .pte file")
        return budget

    def find(self, name: str = "forward") -> Plan:
        """Find the method of that name."""
        for plan in self.plans:
            if plan.name == name:
                return plan
        names = ", ".join(f"`{plan.name}`" for plan in self.plans) or "none"
        raise Invalid(
            f"the .pte file has no method `{name}`",
            why=f"its methods are: {names}",
            fix=Hint("name one of these as `method`", "name one of these with `--method`"),
        )


def read(data: bytes, *, max_memory: int | None = None) -> Pte:
    """Read the program in a .pte file and check every offset, index and size."""
    budget = Budget(len(data), max_memory)
    program_size, base, end = _read_header(data)
    budget.take(program_size if program_size < len(data) else 0, "the program")
    root = open_program(data[:program_size], budget)
    segments = read_segments(root, base, end)
    file = _File(data, root, segments, budget)
    plans = tuple(_read_plan(row, file) for row in root.get_rows("execution_plan", "ExecutionPlan"))
    names = [plan.name for plan in plans]
    if len(set(names)) != len(names):
        raise root.fail("has two methods of the same name")
    version, named = root.get_int("version", "<I"), file.read_named(root)
    return Pte(version, len(data), plans, segments, named, budget.limit - budget.left)


def _read_header(data: bytes) -> tuple[int, int, int]:
    """Return the flatbuffer's end, and the segments' start and end. A file without segments has no header."""
    if data[_HEADER_AT : _HEADER_AT + 4] != b"eh00" or data[4:8] != IDENTIFIER:
        return len(data), 0, 0
    if len(data) < _HEADER_AT + _HEADER.size:
        raise Invalid(f"the .pte file is damaged: it ends inside the extended header at offset {len(data)}")
    _, length, program_size, base = _HEADER.unpack_from(data, _HEADER_AT)
    if length < _HEADER.size or program_size > len(data):
        raise Invalid(
            f"the .pte file is damaged: the extended header at offset {_HEADER_AT} has length {length} and program "
            f"size {program_size}; the file has {len(data)} bytes"
        )
    end = len(data)
    if length >= _HEADER.size + 8 and len(data) >= _HEADER_AT + _HEADER.size + 8:
        (segment_bytes,) = struct.unpack_from("<Q", data, _HEADER_AT + _HEADER.size)
        end = base + segment_bytes if segment_bytes else end
    if base and (base < program_size or base > end or end > len(data)):
        raise Invalid(
            f"the .pte file is damaged: by the extended header at offset {_HEADER_AT} the segments are at {base} to "
            f"{end}; the program ends at {program_size} and the file at {len(data)}"
        )
    return program_size, base, end if base else 0


def read_segments(root: Row, base: int, end: int) -> tuple[Segment, ...]:
    """Read the places of the segments, which lie between `base` and `end` in the file."""
    segments: list[Segment] = []
    for row in root.get_rows("segments", "DataSegment"):
        segment = Segment(base + row.get_int("offset", "<Q"), row.get_int("size", "<Q"))
        # Overlapping segments would let a small file request much memory.
        start = segments[-1].offset + segments[-1].size if segments else base
        if segment.size and (segment.offset < start or segment.offset + segment.size > end):
            raise row.fail(f"is {segment}, which is not between {start} and {end}")
        segments.append(segment if segment.size else Segment(start, 0))
    return tuple(segments)


class _File:
    """The data that tables refer to by number."""

    def __init__(self, data: bytes, root: Row, segments: tuple[Segment, ...], budget: Budget) -> None:
        self.view, self.segments, self._budget = memoryview(data), segments, budget
        self._inline = [
            row.get_bytes("data") for row in root.get_rows("backend_delegate_data", "BackendDelegateInlineData")
        ]
        self._buffers = [row.get_bytes("storage") for row in root.get_rows("constant_buffer", "Buffer")]
        self._constants = self._read_offsets(root.get_row("constant_segment", "SubsegmentOffsets"))
        self._mutables = [
            self._read_offsets(row) for row in root.get_rows("mutable_data_segments", "SubsegmentOffsets")
        ]
        # One copy per piece, however many tensors refer to it.
        self._blobs: dict[tuple[int, int], bytes] = {}

    def _read_offsets(self, row: Row | None) -> list[tuple[int, int]]:
        """Return start and maximum length of each tensor in a segment."""
        if row is None:
            return []
        offsets = row.get_numbers("offsets", "Q")
        # A file without constants has one offset and no segment.
        segment = self.find_segment(row, row.get_int("segment_index", "<I")) if any(offsets) or self.segments else None
        size, start = (segment.size, segment.offset) if segment else (0, 0)
        if max(offsets, default=0) > size:
            raise row.fail(f"has an offset of {max(offsets)} in a segment of {size} bytes")
        return [(start + offset, size - offset) for offset in offsets]

    def find_segment(self, row: Row, index: int) -> Segment:
        if index >= len(self.segments):
            raise row.fail(f"refers to segment {index}; there are {len(self.segments)}")
        return self.segments[index]

    def _copy(self, start: int, size: int) -> bytes:
        found = self._blobs.get((start, size))
        if found is None:
            self._budget.take(size, "a blob of the .pte file")
            found = self._blobs[start, size] = bytes(self.view[start : start + size])
        return found

    def read_named(self, root: Row) -> dict[str, bytes]:
        named: dict[str, bytes] = {}
        for row in root.get_rows("named_data", "NamedData"):
            segment = self.find_segment(row, row.get_int("segment_index", "<I"))
            named[row.get_text("key")] = self._copy(segment.offset, segment.size)
        return named

    def read_blob(self, row: Row) -> tuple[bytes, Literal["inline", "segment"], int]:
        """Return a delegate's blob and its location."""
        location, index = row.get_int("location", "<B"), row.get_int("index", "<I")
        if location == 1:
            segment = self.find_segment(row, index)
            return self._copy(segment.offset, segment.size), "segment", segment.offset
        if location or index >= len(self._inline):
            raise row.fail(f"has location {location}, index {index}; there are {len(self._inline)} inline blobs")
        start, size = self._inline[index]
        return self._copy(start, size), "inline", start

    def read_tensor_data(self, row: Row, index: int, mutable: int | None, size: int) -> memoryview:
        """Return the data of a tensor; `mutable` is the list that holds a mutable tensor's initial data."""
        if mutable is not None and not self._buffers:
            table = self._mutables[mutable] if mutable < len(self._mutables) else []
        else:
            table = self._constants if self._constants and not self._buffers else self._buffers
        if index >= len(table):
            raise row.fail(f"refers to data {index}; there are {len(table)}")
        start, available = table[index]
        if size > available:
            raise row.fail(f"needs {size} bytes of data, but has {available}")
        return self.view[start : start + size]


def _read_plan(row: Row, file: _File) -> Plan:
    sizes = row.get_numbers("non_const_buffer_sizes", "q")
    if min(sizes, default=0) < 0:
        raise row.fail(f"has a negative buffer size in {list(sizes)}")
    values = tuple(_read_value(value, file, sizes) for value in row.get_rows("values", "EValue"))
    _check_lists(row, values)
    inputs, outputs = row.get_numbers("inputs", "i"), row.get_numbers("outputs", "i")
    _check_indices(row, "inputs and outputs", (*inputs, *outputs), len(values))
    operators = tuple(
        Operator(operator.get_text("name"), operator.get_text("overload"))
        for operator in row.get_rows("operators", "Operator")
    )
    delegates = tuple(_read_delegate(delegate, file) for delegate in row.get_rows("delegates", "BackendDelegate"))
    counts = (len(values), len(operators), len(delegates))
    chains = tuple(_read_chain(chain, *counts) for chain in row.get_rows("chains", "Chain"))
    return Plan(row.get_text("name"), values, inputs, outputs, operators, chains, delegates, sizes)


def _check_indices(row: Row, what: str, indices: Sequence[int], count: int, lowest: int = 0) -> None:
    if indices and (min(indices) < lowest or max(indices) >= count):
        raise row.fail(f"has {what} that are not all between {lowest} and {count - 1}")


def _check_lists(row: Row, values: tuple[Value, ...]) -> None:
    """Check that the members of lists exist and have the list's type."""
    for position, value in enumerate(values):
        match value:
            case IntList(items):
                wanted, lowest = int, 0
            case TensorList(items):
                wanted, lowest = Tensor, 0
            case OptionalTensorList(items):
                wanted, lowest = (Tensor, type(None)), -1
            case _:
                continue
        _check_indices(row, f"members of the list in value {position}", items, len(values), lowest)
        if not all(isinstance(values[item], wanted) for item in items if item >= 0):
            raise row.fail(f"has members of another type in the {type(value).__name__} of value {position}")


def _read_value(row: Row, file: _File, sizes: Sequence[int]) -> Value:
    member = row.get_union("val", "KernelTypes")
    if member is None:
        return None
    match member.kind:
        case "Int":
            return member.get_int("int_val", "<q")
        case "Bool":
            return bool(member.get_int("bool_val", "<B"))
        case "Double":
            return member.get_float("double_val")
        case "String":
            return member.get_text("string_val")
        case "IntList":
            return IntList(member.get_numbers("items", "q"))
        case "DoubleList":
            return DoubleList(member.get_floats("items"))
        case "BoolList":
            return BoolList(tuple(map(bool, member.get_numbers("items", "B"))))
        case "TensorList":
            return TensorList(member.get_numbers("items", "i"))
        case "OptionalTensorList":
            return OptionalTensorList(member.get_numbers("items", "i"))
        case _:
            return _read_tensor(member, file, sizes)


def _read_tensor(row: Row, file: _File, sizes: Sequence[int]) -> Tensor:
    shape, code = row.get_numbers("sizes", "i"), row.get_int("scalar_type", "<b")
    dim_order, dynamism = row.get_numbers("dim_order", "B"), row.get_int("shape_dynamism", "<B")
    element = BY_SCALAR_TYPE.get(code)
    if element is None or dynamism >= len(_DYNAMISM) or row.get_int("storage_offset", "<i"):
        raise row.fail(f"has type {code}, dynamism {dynamism} or a storage offset, which no runtime supports")
    if len(shape) > MAX_RANK or min(shape, default=0) < 0 or sorted(dim_order) != list(range(len(shape))):
        raise row.fail(f"has shape {_shorten(shape)} and dim order {_shorten(dim_order)}, which are not valid")
    nbytes = math.prod(shape) * element.bytes
    allocation = _read_allocation(row, nbytes, sizes)
    extra = row.get_row("extra_tensor_info", "ExtraTensorInfo")
    external = extra is not None and extra.get_int("location", "<B") == 1
    index = row.get_int("data_buffer_idx", "<I")
    data = None
    if index and not external:
        place = extra.get_int("mutable_data_segments_idx", "<Q") if extra else 0
        data = file.read_tensor_data(row, index, place if allocation else None, nbytes)
    name = extra.get_text("fully_qualified_name") if extra else ""
    return Tensor(element.name, shape, dim_order, allocation, data, _DYNAMISM[dynamism], name, external)


def _shorten(numbers: tuple[int, ...]) -> str:
    return str(list(numbers)) if len(numbers) <= MAX_RANK else f"of {len(numbers)} numbers"


def _read_allocation(row: Row, nbytes: int, sizes: Sequence[int]) -> Allocation | None:
    details = row.get_row("allocation_info", "AllocationDetails")
    if details is None:
        return None
    memory_id = details.get_int("memory_id", "<I")
    offset = details.get_int("memory_offset_low", "<I") | details.get_int("memory_offset_high", "<I") << 32
    if not 0 < memory_id < len(sizes) or offset + nbytes > sizes[memory_id]:
        size = sizes[memory_id] if 0 < memory_id < len(sizes) else 0
        raise details.fail(f"places {nbytes} bytes at {offset} of planned buffer {memory_id}, which has {size} bytes")
    return Allocation(memory_id, offset)


def _read_delegate(row: Row, file: _File) -> Delegate:
    reference = row.get_row("processed", "BackendDelegateDataReference")
    if reference is None:
        raise row.fail("has no data")
    blob, location, offset = file.read_blob(reference)
    specs: list[tuple[str, bytes]] = []
    for spec in row.get_rows("compile_specs", "CompileSpec"):
        start, size = spec.get_bytes("value")
        row.buffer.budget.take(size, "a compile spec")
        specs.append((spec.get_text("key"), bytes(file.view[start : start + size])))
    return Delegate(row.get_text("id"), blob, location, offset, tuple(specs), len(blob))


def _read_chain(row: Row, values: int, operators: int, delegates: int) -> Chain:
    rows = row.get_rows("instructions", "Instruction")
    return Chain(tuple(_read_instruction(item, values, operators, delegates, len(rows)) for item in rows))


def _read_instruction(row: Row, values: int, operators: int, delegates: int, length: int) -> Instruction:
    member = row.get_union("instr_args", "InstructionArguments")
    if member is None:
        raise row.fail("has no arguments")

    def index(field: str, count: int) -> int:
        number = member.get_int(field, "<i")
        _check_indices(member, f"a `{field}` of {number}", (number,), count)
        return number

    def args() -> tuple[int, ...]:
        numbers = member.get_numbers("args", "i")
        _check_indices(member, "args", numbers, values)
        return numbers

    match member.kind:
        case "KernelCall":
            return KernelCall(index("op_index", operators), args())
        case "DelegateCall":
            return DelegateCall(index("delegate_index", delegates), args())
        case "MoveCall":
            return MoveCall(index("move_from", values), index("move_to", values))
        case "JumpFalseCall":
            # The end of the chain is a valid jump target.
            return JumpFalseCall(index("cond_value_index", values), index("destination_instruction", length + 1))
        case _:
            return FreeCall(index("value_index", values))
