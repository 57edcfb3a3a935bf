"""All files made by hand to harm whoever reads them, in one list: (name, kind, bytes)."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support import hostile
from support.handmade import Spec, Step, call, loop, make_program
from support.hostile_kernels import LARGE, LONG_CALLS, TRUSTED, UNREACHABLE, call_large, call_unreachable
from support.hostile_tables import add_data_header, make_blob, make_ptd, make_tosa, make_vgf, share_table
from tosaic.formats.pte_schema import DATA_FIELDS, FIELDS

File = tuple[str, str, bytes]
MILLION = 1 << 20
MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
#: A part of each kind of zip that its reader looks at.
PARTS = {"npz": "x.npy", "pt": "inputs/data.pkl", "tosaic": "manifest.json", "pt2": f"net/{MODEL}"}


def list_files(good: Mapping[str, bytes], mark: Path) -> Iterator[File]:
    """The corpus. `good` has a whole .pt2, .pt, .npz, .tosaic and blob by kind; code that is run makes `mark`."""
    yield from list_zips(good)
    yield from list_models(hostile.unpack(good["pt2"]), mark)
    yield from list_inputs(mark)
    yield from list_programs()
    yield from list_tables()
    at = good["blob"].index(b"scratch_size".ljust(16, b"\0")) + 32
    yield "gigabytes of scratch", "blob", good["blob"][:at] + struct.pack("<I", 3 << 30) + good["blob"][at + 4 :]
    yield "zeros without end", "device", b"/dev/zero"
    yield "a pipe without end", "fifo", b""


def list_zips(good: Mapping[str, bytes]) -> Iterator[File]:
    """Directories that two readers see differently, and parts that unpack to gigabytes."""
    for kind, part in PARTS.items():
        for name, make in hostile.AMBIGUOUS.items():
            yield name, kind, make(hostile.unpack(good[kind]))
        yield "a zip bomb", kind, make_bomb(part, 18)
        yield "a part larger than declared", kind, hostile.bomb(part, 64 * MILLION, declared=1000)
        yield "deep nesting", kind, hostile.plain({part: b"[" * 100_000})


def make_bomb(name: str, times: int) -> bytes:
    """A part of so many times 64 MiB, packed once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece, crc = bytes(64 * MILLION), 0
    packed = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(times):
        crc = zlib.crc32(piece, crc)
    data = packed * times + b"\3\0"
    sizes = struct.pack("<3L", crc, len(data), times * len(piece))
    names = struct.pack("<2H", len(name), 0)
    parts = b"PK\3\4" + struct.pack("<5H", 20, 0, 8, 0, 33) + sizes + names + name.encode() + data
    entry = b"PK\1\2" + struct.pack("<6H", 20, 20, 0, 8, 0, 33) + sizes
    entry += names + struct.pack("<3H2L", 0, 0, 0, 0, 0) + name.encode()
    return parts + entry + hostile.end(1, len(entry), len(parts))


def list_models(files: dict[str, bytes], mark: Path) -> Iterator[File]:
    """Archives of models that run code, call what they may not, or are larger than they look."""

    def edit(name: str, key: str, value: Any) -> bytes:
        return hostile.plain(hostile.edit_json(files, f"net/{name}", lambda content: content.update({key: value})))

    def call_operator(target: str) -> bytes:
        def change(content: Any) -> None:
            content["graph_module"]["graph"]["nodes"][0]["target"] = target

        return hostile.plain(hostile.edit_json(files, f"net/{MODEL}", change))

    pickled = pickle.dumps({"x": hostile.Danger(mark)})
    bomb = b'{"x": [' + b"[]," * (6 * MILLION) + b"0]}"
    yield "a pickled constant", "pt2", hostile.plain(hostile.pickled_constant(files, mark))
    yield "pickled examples", "pt2", hostile.plain({**files, "net/data/sample_inputs/model.pt": pickled})
    yield (
        "a guard of Python code",
        "pt2",
        edit(MODEL, "guards_code", [f"__import__('pathlib').Path({str(mark)!r}).touch()"]),
    )
    for target in ("torch.ops.aten.from_file.default", "torch.ops.load_library", "_operator.call", "#aten:add"):
        yield f"a call of {target.lstrip('#').replace(':', ' ')}", "pt2", call_operator(target)
    yield "a JSON bomb", "pt2", hostile.plain({**files, f"net/{MODEL}": bomb})
    config = json.loads(files[f"net/{WEIGHTS}"])["config"]
    first = next(iter(config))
    for name, change in {
        "a weight behind its bytes": {"storage_offset": {"as_int": 1 << 40}},
        "a weight of a huge rank": {"sizes": [{"as_int": 1}] * 9999, "strides": [{"as_int": 0}] * 9999},
        "a weight that repeats": {"sizes": [{"as_int": 1 << 20}] * 2, "strides": [{"as_int": 0}] * 2},
    }.items():
        changed = {**config[first], "tensor_meta": {**config[first]["tensor_meta"], **change}}
        yield name, "pt2", edit(WEIGHTS, "config", {**config, first: changed})


def list_inputs(mark: Path) -> Iterator[File]:
    """Inputs that hold objects."""
    file = io.BytesIO()
    np.savez(file, x=np.array([hostile.Danger(mark)], object))
    yield "pickled objects", "npz", file.getvalue()
    for protocol in (2, 4):
        danger = pickle.dumps([hostile.Danger(mark)], protocol)
        yield f"a pickle of protocol {protocol}", "pt", hostile.plain({"x/data.pkl": danger})
    many = b"](" + b"]" * (20 * MILLION) + b"e."
    yield "a pickle bomb", "pt", hostile.plain({"x/data.pkl": many})


def list_programs() -> Iterator[File]:
    """Programs of kernels."""
    for name, overload, args in UNREACHABLE:
        title = f"{name.partition('::')[2]} {overload}".strip()
        yield f"kernel out of reach, {title}", "pte", call_unreachable(name, overload, args)
    for name, data in {**TRUSTED, **LONG_CALLS}.items():
        yield name, "pte", data
    for name in LARGE:
        for unbound in (False, True):
            yield f"a large result, {name}, {'open' if unbound else 'fixed'}", "pte", call_large(name, unbound)
    negate = Step("aten::neg", "out", (Spec((4,)),), (Spec((4,)),))
    add_up = Step("aten::cumsum", "out", (Spec((MILLION,)), 0, None), (Spec((MILLION,)),))
    never = Spec((4 * MILLION,), torch.bool)
    yield "a plan of 4 GiB", "pte", make_program(negate, planned=4 << 30)
    yield "a loop of kernels", "pte", loop(add_up)
    yield "a loop of jumps", "pte", make_program(Step("aten::logical_not", "out", (never,), (never,)), jumps=[(1, 1)])
    yield (
        "a jump to itself",
        "pte",
        make_program(Step("executorch_prim::eq", "Scalar", (1, 2), (False,)), jumps=[(2, 1)]),
    )
    for rank, order in ((255, ()), (9999, (0,) * 9999)):
        tensor = Spec((1,) * rank, order=order)
        yield f"tensors of {rank} dimensions", "pte", call("aten::neg", "out", (tensor,), tensor)


def list_tables() -> Iterator[File]:
    """Flatbuffers that share tables, and shapes whose product takes minutes."""
    yield "one table a million times", "pte", share_table(b"ET12", FIELDS["Program"].index("segments"), 2 * MILLION)
    yield "one table a million times", "tosa", share_table(b"TOSA", 1, 3 * MILLION)
    for slot, name in enumerate(DATA_FIELDS["FlatTensor"][1:], 1):
        shared = share_table(b"FT01", slot, 2 * MILLION)
        yield f"one table a million times, {name}", "ptd", add_data_header(shared, b"")
    yield "one segment a thousand times", "ptd", make_ptd([(0, MILLION)] * 2000, [("x", 0)], MILLION)
    yield "a segment without end", "ptd", make_ptd([(0, 1 << 63)], [("x", 0)], 16)
    yield "a key twice", "ptd", make_ptd([(0, 16)], [("x", 0)] * 2, 16)
    yield "a tensor of too many dimensions", "tosa", make_tosa(33)
    yield "a tensor of thousands of dimensions", "vgf", make_vgf(9999, (1 << 62) + 1)
    yield "a million inputs", "blob", make_blob(MILLION)
