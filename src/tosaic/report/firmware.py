"""What a person reads about a firmware: where its parts are, which kernels it has, and which files were written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from tosaic.board.build import Design

SCHEMA = "tosaic-build/1"

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


def describe_firmware(design: Design, files: Mapping[Path, bytes]) -> str:
    """Describe a firmware in a few lines."""
    return "\n".join(_list_lines(design, files))


def _list_lines(design: Design, files: Mapping[Path, bytes]) -> Iterator[str]:
    npu = design.accelerator or "no NPU"
    yield f"board         {design.board.title} with {npu}"
    yield f"memory mode   {design.memory_mode}{f' ({design.note})' if design.note else ''}"
    for usage in design.usages:
        if usage.parts:
            yield f"memory        {usage}"
    names = ", ".join(kernel.operator for kernel in design.kernels) or "none"
    yield f"CPU kernels   {names}"
    if design.model.samples:
        yield f"tests         {len(design.model.samples)} samples"
    shown = [*files.items()] if len(files) <= 2 else []
    for path, data in shown:
        yield f"wrote `{path}` ({len(data):,} bytes)"
    if not shown:
        folder = min((path.parent for path in files), key=lambda folder: len(folder.parts))
        yield f"wrote {len(files)} files to `{folder}`"


def firmware_to_json(design: Design, files: Mapping[Path, bytes]) -> dict[str, Json]:
    """Return the same as data, under its schema name."""
    usages: list[Json] = [
        {"memory": usage.area, "size": usage.size, "used": usage.used, "parts": dict(usage.parts)}
        for usage in design.usages
    ]
    return {
        "schema": SCHEMA,
        "board": design.board.name,
        "accelerator": design.accelerator,
        "memory_mode": design.memory_mode,
        "note": design.note,
        "memories": usages,
        "kernels": [kernel.operator for kernel in design.kernels],
        "samples": len(design.model.samples),
        "files": {str(path): len(data) for path, data in files.items()},
    }
