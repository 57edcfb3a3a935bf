"""Looks into a .pt2 file before torch does: torch.export.load would run code that such a file can bring along."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from tosaic.errors import Invalid

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"

#: parts of an archive that torch unpickles without limits or loads as native code
_CODE = ("/data/constants/custom_obj", "/data/constants/opaque_obj", "/data/aotinductor/")
#: where the operators of a graph may come from
_NAMESPACES = ("torch.ops.", "_operator.")
_MAX_JSON = 1 << 28
#: the environment variable that makes torch.load careful
FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def check(path: Path) -> None:
    """Raise Invalid for a file that is no archive of torch.export.save, or one that could do more than describe."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_names(path, archive)
            for entry in archive.infolist():
                if entry.filename.lower().endswith(".json"):
                    _check_json(path, entry, archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise Invalid(
            f"`{path}` is no exported program", why=str(error), fix="write it with torch.export.save"
        ) from None


@contextmanager
def only_weights() -> Generator[None]:
    """Make every torch.load inside refuse pickles that hold more than tensors and plain values."""
    before = os.environ.get(FORCE)
    os.environ[FORCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCE]
        else:
            os.environ[FORCE] = before


def _check_names(path: Path, archive: zipfile.ZipFile) -> None:
    # torch finds entries without regard to case, so two spellings of one name could hide one from us.
    names = [name.lower() for name in archive.namelist()]
    if len(set(names)) != len(names):
        raise Invalid(f"`{path}` is no exported program", why="two of its parts have the same name")
    for name in names:
        if any(part in f"/{name}" for part in _CODE):
            raise Invalid(
                f"`{path}` holds an object or native code that would be run on loading",
                where=f"`{name}`",
                fix="export a model of tensors and operators only",
            )
    if not any("/models/" in name and name.endswith(".json") for name in names):
        raise Invalid(
            f"`{path}` is no exported program",
            why="it has no part `models/*.json`, as torch.export.save writes it since torch 2.8",
            fix="export the model again and write it with torch.export.save",
        )


def _check_json(path: Path, entry: zipfile.ZipInfo, archive: zipfile.ZipFile) -> None:
    if entry.file_size > _MAX_JSON:
        raise Invalid(f"`{path}` is no exported program", where=f"`{entry.filename}`", why="it is far too large")
    try:
        content: Json = json.loads(archive.read(entry))
    except RecursionError:
        raise Invalid(f"`{path}` is no exported program", where=f"`{entry.filename}`", why="nested too deep") from None
    for record in _walk(content):
        # torch would evaluate the expressions and guards as code.
        if "expr_str" in record or record.get("guards_code"):
            raise Invalid(
                "the program has dynamic shapes",
                where=f"`{path}`",
                why="an NPU command stream is made for one shape",
                fix="export without dynamic_shapes, once per shape",
            )
        target = record.get("target")
        if isinstance(target, str) and "metadata" in record and not target.startswith(_NAMESPACES):
            raise Invalid(f"`{path}` calls `{target}`, which is no operator", fix="export the model again")


def _walk(content: Json) -> Iterator[Mapping[str, Json]]:
    """Every JSON object in the content."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
