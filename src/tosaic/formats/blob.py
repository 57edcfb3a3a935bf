"""The delegate blob of an Ethos-U .pte: Vela's output as the blocks that ExecuTorch's runtime reads."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.tools.vela import Compiled, Slot

#: The name of the backend in ExecuTorch's runtime.
BACKEND = "EthosUBackend"
_FIRST, _LAST = "vela_bin_stream", "vela_end_stream"
_CONTENT = ("cmd_data", "weight_data", "scratch_size", "inputs", "outputs")
#: Blocks whose payload may be outside the blob, under a key in the program's named data; and what they contain.
EXTERNAL = {"cmd_data": "commands", "weight_data": "weights"}
_HEADER = struct.Struct("<16sIB11x")
_IO = struct.Struct("<9i")
_KEY = re.compile(rb"[0-9a-f]{64}")
#: The runtime needs blocks at multiples of this, in a blob and outside.
ALIGNMENT = 16
_SCRATCH_REGION = 1
#: The memory mode in a compile spec. Without a size it means the size that the official runtime reserves.
_DEDICATED = re.compile(rb"Dedicated_Sram(?:_(\d{1,6})(KB|MB))?")
_DEDICATED_DEFAULT = 0x60000


@dataclass(frozen=True, slots=True)
class Blob:
    """The content of a blob."""

    cmd_data: bytes
    weight_data: bytes
    scratch_size: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Payload:
    """The data of a block that is outside the blob. `placement` names the .ptd file that holds it."""

    block: str
    placement: str
    data: bytes

    @property
    def key(self) -> str:
        """The name of the data in the program's named data."""
        return hashlib.sha256(self.placement.encode("ascii") + b"\0" + self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class _Block:
    name: str
    offset: int
    external: bool
    data: bytes

    def fail(self, why: str, at: int = 0) -> Invalid:
        place = f"block `{self.name}` at offset {self.offset + _HEADER.size + at}"
        return Invalid("the Ethos-U blob is damaged", where=place, why=why)


def pack(compiled: Compiled | Blob, external: Sequence[Payload] = ()) -> bytes:
    """Pack the blob of a compiled network. Blocks in `external` have the key of their payload as data."""
    keys = {payload.block: payload.key.encode() for payload in external}
    try:
        blocks = {
            _FIRST: b"",
            "cmd_data": compiled.cmd_data,
            "weight_data": compiled.weight_data,
            "scratch_size": struct.pack("<I", compiled.scratch_size),
            "inputs": _pack_ios(compiled.inputs),
            "outputs": _pack_ios(compiled.outputs),
            _LAST: b"",
        } | keys
        # Piece by piece: the weights may be large, and are copied once.
        return b"".join(
            piece
            for name, data in blocks.items()
            for piece in (_HEADER.pack(name.encode(), len(data), name in keys), data, bytes(-len(data) % ALIGNMENT))
        )
    except struct.error as error:
        raise Invalid(
            "the compiled network does not fit in an Ethos-U blob",
            why=f"its sizes and offsets are 32-bit numbers ({error})",
            fix="delegate less, or use smaller inputs",
        ) from None


def _pack_ios(ios: tuple[Slot, ...]) -> bytes:
    rows = (_IO.pack(*io.shape, io.element_bytes, io.offset, io.region) for io in ios)
    return struct.pack("<i", len(ios)) + b"".join(rows)


def detect(data: bytes) -> bool:
    """Tell whether this is a blob, by its first bytes."""
    return data.startswith(f"{_FIRST}\0".encode())


def list_keys(data: bytes) -> dict[str, str]:
    """List the keys of an untrusted blob's blocks that are outside it, by the name of the block."""
    return {name: block.data.decode() for name, block in _read_blocks(data).items() if block.external}


def unpack(data: bytes, *, named: Mapping[str, bytes] | None = None) -> Blob:
    """Read an untrusted blob. `named` is the program's named data, for payloads outside the blob."""
    blocks = _read_blocks(data)
    command, weights = (_resolve(blocks[name], named or {}) for name in EXTERNAL)
    if command[:4] not in (b"COP1", b"COP2"):
        raise blocks["cmd_data"].fail(f"it begins with {command[:4]!r}; `COP1` or `COP2` is needed")
    size = blocks["scratch_size"]
    if len(size.data) != 4:
        raise size.fail(f"it has {len(size.data)} bytes; 4 are needed")
    scratch_size = int.from_bytes(size.data, "little")
    inputs, outputs = (_read_ios(blocks[name], scratch_size) for name in ("inputs", "outputs"))
    return Blob(command, weights, scratch_size, inputs, outputs)


def _read_blocks(data: bytes) -> dict[str, _Block]:
    """Read the content blocks by name; each must occur once, between the first and the last marker."""
    blocks: dict[str, _Block] = {}
    at = 0
    while _LAST not in blocks:
        block = _read_block(data, at)
        if (block.name == _FIRST) != (at == 0):
            raise block.fail(f"the first block, and only the first, must be `{_FIRST}`")
        if block.name in blocks:
            raise block.fail("the name occurs twice")
        if block.name in (_FIRST, _LAST) and block.data:
            raise block.fail(f"it has {len(block.data)} bytes; it must be empty")
        blocks[block.name] = block
        at += _HEADER.size + len(block.data) + -len(block.data) % ALIGNMENT
    if at != len(data):
        raise blocks[_LAST].fail(f"the blob has {len(data)} bytes, but this last block ends at {at}")
    for name in _CONTENT:
        if name not in blocks:
            raise Invalid("the Ethos-U blob is damaged", where=f"block `{name}`", why="it is missing")
    return blocks


def _read_block(data: bytes, at: int) -> _Block:
    if at + _HEADER.size > len(data):
        where = f"block header at offset {at}"
        raise Invalid("the Ethos-U blob is damaged", where=where, why=f"the blob ends at {len(data)}")
    raw_name, size, external = _HEADER.unpack_from(data, at)
    name = raw_name.partition(b"\0")[0].decode("ascii", "backslashreplace")
    start = at + _HEADER.size
    block = _Block(name, at, external == 1, data[start : start + size])
    if name not in (_FIRST, *_CONTENT, _LAST):
        raise block.fail("unknown block name")
    if external > 1 or (external and name not in EXTERNAL):
        raise block.fail(f"its `external` flag is {external}")
    if external and not _KEY.fullmatch(block.data):
        raise block.fail("its data is outside the blob, but its key is not 64 hexadecimal digits")
    if len(block.data) != size or start + size + -size % ALIGNMENT > len(data):
        raise block.fail(f"its size is {size}, but the blob ends at {len(data)}")
    return block


def _resolve(block: _Block, named: Mapping[str, bytes]) -> bytes:
    if not block.external:
        return block.data
    key = block.data.decode()
    if key not in named:
        raise Invalid(
            f"the {EXTERNAL[block.name]} of an Ethos-U delegate are missing",
            why=f"they are in a .ptd file, under the key `{key}`",
            fix=Hint(
                "pass the content of the .ptd file that was written with the .pte as `data`",
                "put the .ptd file that was written with the .pte next to it, or pass it with `--data`",
            ),
        )
    return named[key]


def _read_ios(block: _Block, scratch_size: int) -> tuple[Slot, ...]:
    if len(block.data) < 4:
        raise block.fail(f"it has {len(block.data)} bytes; the count alone takes 4")
    (count,) = struct.unpack_from("<i", block.data)
    if len(block.data) != 4 + count * _IO.size:
        raise block.fail(
            f"its count is {count}, which takes {4 + count * _IO.size} bytes, but it has {len(block.data)}"
        )
    ios: list[Slot] = []
    for index in range(count):
        at = 4 + index * _IO.size
        *shape, elem_size, offset, region = _IO.unpack_from(block.data, at)
        ios.append(Slot(tuple(shape), elem_size, offset, region))
        _check_io(block, at, ios[-1], scratch_size)
    return tuple(ios)


def _check_io(block: _Block, at: int, io: Slot, scratch_size: int) -> None:
    if min(io.shape) < 1 or io.element_bytes < 1 or io.offset < 0 or io.region < 0:
        raise block.fail(f"{io} has a field that is out of range", at)
    size = math.prod(io.shape) * io.element_bytes
    if io.region == _SCRATCH_REGION and io.offset + size > scratch_size:
        raise block.fail(f"{io} takes {size} bytes and ends outside the scratch area of {scratch_size} bytes", at)


def find_fast_scratch(specs: Sequence[tuple[str, bytes]]) -> int:
    """Return the bytes of SRAM dedicated to the NPU, by the memory mode that a blob was compiled for."""
    found = _DEDICATED.search(b" ".join(value for _, value in specs))
    if found is None:
        return 0
    return int(found[1]) * (1024 if found[2] == b"KB" else 1 << 20) if found[1] else _DEDICATED_DEFAULT
