"""The tables of ExecuTorch's program schema that we read, and checked access to their fields by name."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats.flatbuffer import Buffer

IDENTIFIER = b"ET12"

#: The fields of each table in the order of the schema; a union is two fields, its kind and its value.
FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Program": (
            "version",
            "execution_plan",
            "constant_buffer",
            "backend_delegate_data",
            "segments",
            "constant_segment",
            "mutable_data_segments",
            "named_data",
        ),
        "ExecutionPlan": (
            "name",
            "container_meta_type",
            "values",
            "inputs",
            "outputs",
            "chains",
            "operators",
            "delegates",
            "non_const_buffer_sizes",
            "non_const_buffer_device",
        ),
        "Chain": ("inputs", "outputs", "instructions", "stacktrace"),
        "Instruction": ("instr_args_type", "instr_args"),
        "KernelCall": ("op_index", "args"),
        "DelegateCall": ("delegate_index", "args"),
        "MoveCall": ("move_from", "move_to"),
        "JumpFalseCall": ("cond_value_index", "destination_instruction"),
        "FreeCall": ("value_index",),
        "Operator": ("name", "overload"),
        "BackendDelegate": ("id", "processed", "compile_specs"),
        "BackendDelegateDataReference": ("location", "index"),
        "BackendDelegateInlineData": ("data",),
        "CompileSpec": ("key", "value"),
        "Buffer": ("storage",),
        "DataSegment": ("offset", "size"),
        "SubsegmentOffsets": ("segment_index", "offsets"),
        "NamedData": ("key", "segment_index"),
        "EValue": ("val_type", "val"),
        "Tensor": (
            "scalar_type",
            "storage_offset",
            "sizes",
            "dim_order",
            "requires_grad",
            "data_buffer_idx",
            "allocation_info",
            "layout",
            "shape_dynamism",
            "extra_tensor_info",
        ),
        "ExtraTensorInfo": (
            "mutable_data_segments_idx",
            "fully_qualified_name",
            "location",
            "device_type",
            "device_index",
        ),
        "AllocationDetails": ("memory_id", "memory_offset_low", "memory_offset_high"),
        "Int": ("int_val",),
        "Bool": ("bool_val",),
        "Double": ("double_val",),
        "String": ("string_val",),
        "IntList": ("items",),
        "DoubleList": ("items",),
        "BoolList": ("items",),
        "TensorList": ("items",),
        "OptionalTensorList": ("items",),
    }
)

#: The members of each union from number 1 on; 0 is "nothing".
UNIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "KernelTypes": (
            "Null",
            "Int",
            "Bool",
            "Double",
            "Tensor",
            "String",
            "IntList",
            "DoubleList",
            "BoolList",
            "TensorList",
            "OptionalTensorList",
        ),
        "InstructionArguments": ("KernelCall", "DelegateCall", "MoveCall", "JumpFalseCall", "FreeCall"),
    }
)

#: The root table of a .ptd file; the tables in it begin as those of a .pte do.
DATA_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType({"FlatTensor": ("version", "segments", "named_data")})

#: The tables of a .bpte file. Its tensors and values have the names of other tables in a .pte.
BUNDLE_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "BundledProgram": ("version", "method_test_suites", "program"),
        "BundledMethodTestSuite": ("method_name", "test_cases"),
        "BundledMethodTestCase": ("inputs", "expected_outputs"),
        "BundledValue": ("val_type", "val"),
        "BundledTensor": ("scalar_type", "sizes", "data", "dim_order"),
    }
)
BUNDLE_UNIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"BundledValues": ("BundledTensor", "Int", "Bool", "Double")}
)

_SLOTS = {
    kind: {name: slot for slot, name in enumerate(names)}
    for kind, names in {**FIELDS, **DATA_FIELDS, **BUNDLE_FIELDS}.items()
}
_MEMBERS = {**UNIONS, **BUNDLE_UNIONS}


class PteBuffer(Buffer):
    """The flatbuffer part of a .pte file."""

    def fail(self, what: str, at: int) -> Invalid:
        return Invalid(f"the .pte file is damaged: {what} at offset {at}")


class Row:
    """One table with its fields by name; `what` names it in errors.

    Not `flatbuffer.Table`: the Python writer behind exir lets tables of different sizes share one field list, so the
    size in a field list is wrong in valid files. Every field is checked against the file instead.
    """

    def __init__(self, buffer: Buffer, at: int, kind: str, what: str) -> None:
        self.buffer, self.at, self.kind, self.what = buffer, at, kind, what
        self._list = at - buffer.read("<i", at, what)
        self._list_size = buffer.read("<H", self._list, what)
        buffer.need(self._list, self._list_size, what)
        if self._list_size < 4:
            raise buffer.fail(f"{what} has a broken field list", self._list)
        buffer.spend(4, at)

    def fail(self, why: str) -> Invalid:
        return self.buffer.fail(f"{self.what} {why}, in the table", self.at)

    def get_int(self, field: str, form: str) -> int:
        at = self._find(field)
        return 0 if at is None else self.buffer.read(form, at, self._label(field))

    def get_float(self, field: str) -> float:
        # The shared reader returns integers: read the bits of a double as one.
        (value,) = struct.unpack("<d", struct.pack("<q", self.get_int(field, "<q")))
        return value

    def get_text(self, field: str) -> str:
        start, size = self.get_bytes(field)
        # The bytes, and a text with up to four bytes per character.
        self.buffer.budget.take(5 * size, self._label(field))
        try:
            return self.buffer.data[start : start + size].decode("utf-8")
        except UnicodeDecodeError:
            raise self.buffer.fail(f"{self._label(field)} is not UTF-8 text", start) from None

    def get_bytes(self, field: str) -> tuple[int, int]:
        """Return the start of a vector of bytes in the file, and its length."""
        return self._vector(field, 1)

    def get_numbers(self, field: str, form: str) -> tuple[int, ...]:
        """Read a vector of integers, in `struct` notation."""
        start, count = self._vector(field, struct.calcsize(f"<{form}"))
        self.buffer.make(self._label(field), numbers=count)
        return struct.unpack_from(f"<{count}{form}", self.buffer.data, start)

    def get_floats(self, field: str) -> tuple[float, ...]:
        start, count = self._vector(field, 8)
        self.buffer.make(self._label(field), numbers=count)
        return struct.unpack_from(f"<{count}d", self.buffer.data, start)

    def get_row(self, field: str, kind: str) -> Row | None:
        at = self._find(field)
        return None if at is None else Row(self.buffer, self.buffer.follow(at, kind), kind, kind)

    def get_rows(self, field: str, kind: str) -> list[Row]:
        start, count = self._vector(field, 4)
        # What is read from a table is about as large again.
        self.buffer.make(self._label(field), objects=2 * count)
        places = range(start, start + 4 * count, 4)
        return [Row(self.buffer, self.buffer.follow(at, kind), kind, f"{kind} {i}") for i, at in enumerate(places)]

    def get_union(self, field: str, union: str) -> Row | None:
        """Return the member of a union; None for the member that has no fields."""
        code = self.get_int(f"{field}_type", "<B")
        if not 0 < code <= len(_MEMBERS[union]):
            raise self.fail(f"has {union} number {code}; expected 1 to {len(_MEMBERS[union])}")
        kind = _MEMBERS[union][code - 1]
        if kind == "Null":
            return None
        row = self.get_row(field, kind)
        if row is None:
            raise self.fail(f"says it holds {kind}, but does not")
        return row

    def _find(self, field: str) -> int | None:
        """Find the position of a field; None if the file leaves it at its default."""
        entry = 4 + 2 * _SLOTS[self.kind][field]
        if entry + 2 > self._list_size:
            return None
        offset = self.buffer.read("<H", self._list + entry, self.what)
        return self.at + offset if offset else None

    def _vector(self, field: str, width: int) -> tuple[int, int]:
        """Return start and length of a vector whose elements have `width` bytes; an absent one is empty."""
        field_at, label = self._find(field), self._label(field)
        if field_at is None:
            return self.at, 0
        at = self.buffer.follow(field_at, label)
        count = self.buffer.read("<I", at, label)
        self.buffer.need(at + 4, count * width, label)
        self.buffer.spend(4 + count * width, at)
        return at + 4, count

    def _label(self, field: str) -> str:
        return f"{self.what}.{field}"


def open_program(data: bytes, budget: Budget) -> Row:
    """Open the root table of a .pte file's flatbuffer."""
    buffer = PteBuffer(data, budget)
    buffer.need(0, 8, "the header")
    if data[4:8] != IDENTIFIER:
        raise Invalid(
            "not a .pte file: the identifier ET12 is missing at offset 4",
            why=f"it has {data[4:8]!r} there",
            fix="pass the .pte that `tosaic compile` has written; `tosaic inspect` shows what a file is",
        )
    return Row(buffer, buffer.follow(0, "the root"), "Program", "Program")
