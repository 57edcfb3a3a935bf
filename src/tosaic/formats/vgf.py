"""Reads untrusted .vgf files: returns a Vgf, or raises Invalid with the field and the offset.

A file is a header with the offsets of four sections: modules (SPIR-V), the sequence in which they run, the resources
they bind, and the data of constant resources. Each of the first three is a separate flatbuffer.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tosaic.core.budget import Budget
from tosaic.core.dtypes import BY_VK_FORMAT, count_item_bytes
from tosaic.core.errors import Invalid
from tosaic.formats.flatbuffer import Buffer, Table

MAGIC = b"VGF1"
HEADER_SIZE = 128
#: The file version that the runtime of ExecuTorch 1.4 reads: equal major, minor at most this one.
VERSION = (0, 4)
#: More dimensions than any device supports; a product of thousands of sizes would take minutes.
MAX_RANK = 32

Category: TypeAlias = Literal["input", "output", "intermediate", "constant"]
ModuleKind: TypeAlias = Literal["compute", "graph"]
CATEGORIES: tuple[Category, ...] = ("input", "output", "intermediate", "constant")
MODULE_KINDS: tuple[ModuleKind, ...] = ("compute", "graph")

_SECTIONS = ("modules", "sequence", "resources", "constants")
_CONSTANTS_MAGIC = b"CONST00\0"
_CONSTANT = struct.Struct("<IiQQ")
_SPIRV_MAGIC = 0x07230203
_SPIRV_UNION = 1


@dataclass(frozen=True, slots=True)
class Module:
    """One shader module. `spirv` is its code, empty where the application provides it."""

    kind: ModuleKind
    name: str
    entry_point: str
    spirv: bytes


@dataclass(frozen=True, slots=True)
class Resource:
    """A tensor that modules bind. `dtype` is empty for a format that Tosaic has no name for."""

    category: Category
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    vk_format: int
    vk_descriptor_type: int

    @property
    def item_size(self) -> int:
        """The bytes of an element; 0 for a format that Tosaic has no name for."""
        return count_item_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor, one per element for a format that Tosaic has no name for."""
        return (self.item_size or 1) * max(0, math.prod(self.shape))


@dataclass(frozen=True, slots=True)
class Segment:
    """One step of the sequence: a module with the resources it reads and writes."""

    kind: ModuleKind
    name: str
    module: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[int, ...]
    dispatch_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """Location of the data of a constant resource in the file."""

    resource: int
    offset: int
    size: int
    sparsity_dimension: int


@dataclass(frozen=True, slots=True)
class Vgf:
    """The content of a .vgf file; inputs and outputs are indices of resources, in the order of the program."""

    version: tuple[int, int, int]
    modules: tuple[Module, ...]
    resources: tuple[Resource, ...]
    segments: tuple[Segment, ...]
    constants: tuple[Constant, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


class _VgfBuffer(Buffer):
    """One section as a flatbuffer; offsets in errors are those of the file."""

    def __init__(self, data: bytes, start: int, size: int, budget: Budget) -> None:
        budget.take(size, "a section of the .vgf file")
        super().__init__(data[start : start + size], budget)
        self._start = start

    def fail(self, what: str, at: int) -> Invalid:
        return _damage(what, self._start + at)

    def open(self, what: str) -> Table:
        self.need(0, 8, "the section")
        return Table(self, self.follow(0, "the root"), what)


def _damage(what: str, at: int) -> Invalid:
    return Invalid(f"the .vgf file is damaged: {what} at offset {at}")


def read(data: bytes, budget: Budget | None = None) -> Vgf:
    """Read the content of a .vgf file; `budget` is the memory that it may take, by default that of a separate file."""
    if data[:4] != MAGIC:
        raise Invalid("not a .vgf file: the identifier VGF1 is missing at offset 0")
    if len(data) < HEADER_SIZE:
        raise _damage(f"the header of {HEADER_SIZE} bytes is cut off", len(data))
    version = (data[8], data[9], data[10])
    if version[0] != VERSION[0] or version[1] > VERSION[1]:
        raise Invalid(
            f"the .vgf file has version {'.'.join(map(str, version))}",
            why=f"ExecuTorch's runtime reads {VERSION[0]}.{VERSION[1]} and older",
            fix="write it with ai-ml-sdk-model-converter 0.9.0",
        )
    places: dict[str, tuple[int, int]] = {}
    for i, name in enumerate(_SECTIONS):
        start, size = struct.unpack_from("<QQ", data, 16 + 16 * i)
        if start < HEADER_SIZE or start + size > len(data):
            raise _damage(f"the section of {name} ({size} bytes from {start}) reaches outside the file", 16 + 16 * i)
        places[name] = (start, size)
    budget = budget or Budget(len(data))
    modules = _read_modules(_VgfBuffer(data, *places["modules"], budget).open("the modules"))
    resources = _read_resources(_VgfBuffer(data, *places["resources"], budget).open("the resources"))
    sequence = _VgfBuffer(data, *places["sequence"], budget).open("the sequence")
    constants = _read_constants(data, *places["constants"], resources)
    segments = tuple(
        _read_segment(t, len(modules), len(resources), len(constants)) for t in sequence.get_tables(0, "segment")
    )
    inputs, outputs = (_read_slots(sequence, slot, len(resources)) for slot in (1, 2))
    names = [tuple(sequence.get_texts(slot, "a name")) for slot in (3, 4)]
    for what, indices, labels in (("input", inputs, names[0]), ("output", outputs, names[1])):
        if len(labels) not in (0, len(indices)):
            raise sequence.buffer.fail(f"{len(indices)} {what}s have {len(labels)} names", sequence.at)
    return Vgf(version, modules, resources, segments, constants, inputs, outputs, names[0], names[1])


def _read_modules(root: Table) -> tuple[Module, ...]:
    modules: list[Module] = []
    for table in root.get_tables(0, "module"):
        code = table.get_table(4, "code") if table.get(3, "<B") == _SPIRV_UNION else None
        spirv = b""
        if code is not None:
            start, count = code.get_vector(0, 4, "SPIR-V words")
            table.buffer.budget.take(4 * count, "SPIR-V words")
            spirv = table.buffer.data[start : start + 4 * count]
            if spirv and struct.unpack_from("<I", spirv)[0] != _SPIRV_MAGIC:
                raise table.buffer.fail(f"the code of {table.what} is not SPIR-V", start)
        kind = _pick(table, MODULE_KINDS, table.get(0, "<B"))
        modules.append(Module(kind, table.get_text(1, "a name"), table.get_text(2, "an entry point"), spirv))
    return tuple(modules)


def _pick(table: Table, kinds: tuple[ModuleKind, ...], number: int) -> ModuleKind:
    if number >= len(kinds):
        raise table.buffer.fail(f"{table.what} is of kind {number}", table.at)
    return kinds[number]


def _read_resources(root: Table) -> tuple[Resource, ...]:
    resources: list[Resource] = []
    for table in root.get_tables(0, "resource"):
        category = table.get(2, "<B")
        if category >= len(CATEGORIES):
            raise table.buffer.fail(f"{table.what} is of category {category}", table.at)
        description = table.get_table(3, "description")
        shape, strides = (_read_longs(description, slot) if description else () for slot in (0, 1))
        vk_format = table.get(1, "<I")
        element = BY_VK_FORMAT.get(vk_format)
        dtype = "" if element is None else element.name
        kind = table.get(0, "<I")
        resources.append(Resource(CATEGORIES[category], dtype, shape, strides, vk_format, kind))
    return tuple(resources)


def _read_longs(table: Table, slot: int) -> tuple[int, ...]:
    start, count = table.get_vector(slot, 8, "sizes")
    if count > MAX_RANK:
        raise table.buffer.fail(f"{table.what} has {count} dimensions; at most {MAX_RANK} are possible", table.at)
    return struct.unpack_from(f"<{count}q", table.buffer.data, start)


def _read_indices(table: Table, slot: int, count: int, what: str) -> tuple[int, ...]:
    start, length = table.get_vector(slot, 4, what)
    table.buffer.make(what, numbers=length)
    indices = struct.unpack_from(f"<{length}I", table.buffer.data, start)
    for index in indices:
        _check_index(table, index, count, what)
    return indices


def _read_slots(table: Table, slot: int, resources: int) -> tuple[int, ...]:
    """Read the resources of binding slots."""
    indices = tuple(t.get(1, "<I") for t in table.get_tables(slot, "binding"))
    for index in indices:
        _check_index(table, index, resources, "resource")
    return indices


def _check_index(table: Table, index: int, count: int, what: str) -> None:
    if index >= count:
        raise table.buffer.fail(f"{table.what} names {what} {index} of {count}", table.at)


def _read_segment(table: Table, modules: int, resources: int, constants: int) -> Segment:
    module = table.get(2, "<I")
    _check_index(table, module, modules, "module")
    for number, group in enumerate(table.get_tables(3, "descriptor set")):
        group.what = f"descriptor set {number} of {table.what}"
        _read_slots(group, 0, resources)
    start, count = table.get_vector(7, 4, "dispatch shape")
    table.buffer.make("dispatch shape", numbers=count)
    return Segment(
        kind=_pick(table, MODULE_KINDS, table.get(0, "<B")),
        name=table.get_text(1, "a name"),
        module=module,
        inputs=_read_slots(table, 4, resources),
        outputs=_read_slots(table, 5, resources),
        constants=_read_indices(table, 6, constants, "constant"),
        dispatch_shape=struct.unpack_from(f"<{count}I", table.buffer.data, start),
    )


def _read_constants(data: bytes, start: int, size: int, resources: tuple[Resource, ...]) -> tuple[Constant, ...]:
    if size < 16 or data[start : start + 8] != _CONSTANTS_MAGIC:
        raise _damage("the identifier CONST00 of the constants is missing", start)
    (count,) = struct.unpack_from("<Q", data, start + 8)
    body = start + 16 + _CONSTANT.size * count
    if body > start + size:
        raise _damage(f"the list of {count} constants reaches outside its section", start + 8)
    constants: list[Constant] = []
    for i in range(count):
        at = start + 16 + _CONSTANT.size * i
        resource, sparsity, length, offset = (int(n) for n in _CONSTANT.unpack_from(data, at))
        if resource >= len(resources):
            raise _damage(f"constant {i} names resource {resource} of {len(resources)}", at)
        if body + offset + length > start + size:
            raise _damage(f"constant {i} ({length} bytes) reaches outside its section", at)
        _check_size(resources[resource], length, i, at)
        constants.append(Constant(resource, body + offset, length, sparsity))
    return tuple(constants)


def _check_size(resource: Resource, length: int, index: int, at: int) -> None:
    width = resource.item_size
    wanted = width * math.prod(resource.shape)
    if width and wanted != length:
        raise _damage(f"constant {index} has {length} bytes, its shape takes {wanted}", at)
