"""Makes an ExportedProgram from a checked .pt2 file; torch sees neither the file nor a pickle."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import SerializedArtifact, deserialize, deserialize_scalar_type
from torch.export import ExportedProgram

from tosaic.api import model_ops
from tosaic.core.errors import Invalid
from tosaic.formats.plain_json import Json
from tosaic.formats.pt import read_pt
from tosaic.formats.pt2 import Archive, Payload
from tosaic.formats.storage import Storage

#: the module that registers the operators of quantized programs
_QUANTIZED = "torch.ao.quantization.fx._decomposed"


def load(archive: Archive, allow_ops: Collection[str] = ()) -> ExportedProgram:
    """Load the program if it calls only operators that compute or that the user allows."""
    importlib.import_module(_QUANTIZED)
    model_ops.refuse(archive.operators, archive.path, allow_ops)
    examples = read_examples(archive)
    weights, constants = _make_tensors(archive, archive.weights), _make_tensors(archive, archive.constants)
    # Tensors instead of the pickles that the class declares: torch accepts them as they are.
    make_artifact: Any = SerializedArtifact
    text = json.dumps(archive.program).encode()
    return deserialize(make_artifact(text, weights, constants, examples))


def read_examples(archive: Archive) -> Any:
    """Read the example inputs in the file, None if there are none."""
    if not archive.samples:
        return None
    content: Any = read_pt(archive.samples, f"the example inputs of `{archive.path}`", archive.budget)
    if not issubclass(type(content), tuple) or [type(part) for part in content] != [tuple, dict]:
        raise Invalid(
            f"`{archive.path}` has example inputs of an unsupported kind", fix="write it with torch.export.save"
        )
    return content


def _make_tensors(archive: Archive, payloads: Sequence[Payload]) -> dict[str, torch.Tensor]:
    storages: dict[tuple[int, torch.dtype], Storage] = {}
    tensors: dict[str, torch.Tensor] = {}
    for payload in payloads:
        where = f"`{payload.name[:80]}` of `{archive.path}`"
        dtype = _find_dtype(payload.meta.get("dtype"), where)
        key = (id(payload.content), dtype)
        if key not in storages:
            storages[key] = Storage(payload.content, dtype, where, archive.budget)
        sizes, strides = _as_ints(payload.meta.get("sizes")), _as_ints(payload.meta.get("strides"))
        (offset,) = _as_ints([payload.meta.get("storage_offset")])
        tensor = storages[key].view(sizes, strides, offset)
        needs_grad = payload.meta.get("requires_grad") is True
        tensors[payload.name] = torch.nn.Parameter(tensor, needs_grad) if payload.is_parameter else tensor
    return tensors


def _find_dtype(number: Json, where: str) -> torch.dtype:
    try:
        return deserialize_scalar_type(schema.ScalarType(number))
    except (KeyError, ValueError):
        raise Invalid(f"{where} cannot be used", why=f"unknown type {number}") from None


def _as_ints(values: Json) -> list[object]:
    items = values if isinstance(values, list) else [None]
    return [item.get("as_int") if isinstance(item, dict) else None for item in items]
