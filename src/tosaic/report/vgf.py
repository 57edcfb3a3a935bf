"""Contents of a .vgf file, ready for JSON and for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tosaic.core.budget import Budget
from tosaic.formats import vgf as reader
from tosaic.report.terminal import count


@dataclass(frozen=True, slots=True)
class ModuleContents:
    """A shader module; without SPIR-V in the file the application provides the code."""

    kind: str
    name: str
    entry_point: str
    spirv_bytes: int


@dataclass(frozen=True, slots=True)
class VgfContents:
    """A .vgf file. Inputs, outputs, segments and constants name resources by their index."""

    bytes: int
    version: str
    modules: tuple[ModuleContents, ...]
    segments: tuple[reader.Segment, ...]
    resources: tuple[reader.Resource, ...]
    constants: tuple[reader.Constant, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


def read(data: bytes, budget: Budget | None = None) -> VgfContents:
    """Read the contents of a .vgf file; raise Invalid if it is damaged."""
    found = reader.read(data, budget)
    return VgfContents(
        bytes=len(data),
        version=".".join(map(str, found.version)),
        modules=tuple(ModuleContents(m.kind, m.name, m.entry_point, len(m.spirv)) for m in found.modules),
        segments=found.segments,
        resources=found.resources,
        constants=found.constants,
        inputs=found.inputs,
        outputs=found.outputs,
        input_names=found.input_names,
        output_names=found.output_names,
    )


def pair(found: VgfContents) -> Iterator[tuple[str, str]]:
    """Yield labels and values for a terminal."""
    yield "VGF", f"version {found.version}, {found.bytes:,} bytes"
    for i, module in enumerate(found.modules):
        yield (
            f"module {i}",
            f"{module.kind}, entry point `{module.entry_point}`, {module.spirv_bytes:,} bytes of SPIR-V",
        )
    for i, segment in enumerate(found.segments):
        bound = [
            count(len(indices), noun)
            for noun, indices in (
                ("input", segment.inputs),
                ("output", segment.outputs),
                ("constant", segment.constants),
            )
        ]
        yield f"segment {i}", f"runs module {segment.module} with {', '.join(bound)}"
    kinds = Counter(resource.category for resource in found.resources)
    yield "resources", ", ".join(f"{number:,} {kind}" for kind, number in kinds.items()) or "none"
    yield "constants", f"{len(found.constants):,} with {sum(c.size for c in found.constants):,} bytes"
    for what, indices, names in (
        ("input", found.inputs, found.input_names),
        ("output", found.outputs, found.output_names),
    ):
        for i, index in enumerate(indices):
            resource = found.resources[index]
            name = f"`{names[i]}` " if names else ""
            yield f"{what} {i}", f"{name}{resource.dtype or f'format {resource.vk_format}'} {list(resource.shape)}"
