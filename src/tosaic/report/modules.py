"""The graph of a program folded by module: delegates and operators on the CPU in the order of execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tosaic.report.profile import Layer, Profile

#: deeper paths are shown as they are
_MOST_LEVELS = 12


@dataclass(frozen=True, slots=True)
class Fold:
    """A part of the graph: a module with its parts, or one layer.

    `distant` are layers whose results a layer reads although another one is between them.
    """

    name: str
    layers: tuple[Layer, ...]
    parts: tuple[Fold, ...] = ()
    distant: tuple[int, ...] = ()

    @property
    def cycles(self) -> int:
        return sum(layer.cycles or 0 for layer in self.layers)

    @property
    def layer(self) -> Layer:
        return self.layers[0]

    @property
    def is_layer(self) -> bool:
        return not self.parts


@dataclass(frozen=True, slots=True)
class Section:
    """A delegate, or successive operators on the CPU."""

    device: str
    delegate: int | None
    layers: tuple[Layer, ...]
    parts: tuple[Fold, ...]

    @property
    def cycles(self) -> int:
        return sum(layer.cycles or 0 for layer in self.layers)


def fold_graph(profile: Profile) -> list[Section]:
    """Divide the layers into delegates and operators on the CPU, each folded by module."""
    sections: list[Section] = []
    for (device, delegate), group in groupby(profile.layers, key=lambda layer: (layer.device, layer.delegate)):
        layers = tuple(group)
        sections.append(Section(device, delegate, layers, tuple(_fold(layers, 0))))
    return sections


def _fold(layers: Sequence[Layer], depth: int) -> Iterator[Fold]:
    """Group successive layers by the next part of their module's path; a path with one child is one part."""
    for name, group in groupby(layers, key=lambda layer: _get_part(layer, depth)):
        members = tuple(group)
        if not name or depth == _MOST_LEVELS:
            yield from (_make_leaf(layer) for layer in members)
            continue
        inner = tuple(_fold(members, depth + 1))
        if len(inner) == 1:
            (only,) = inner
            yield Fold(f"{name}.{only.name}".rstrip("."), members, only.parts, only.distant)
        else:
            yield Fold(name, members, inner)


def _get_part(layer: Layer, depth: int) -> str:
    parts = layer.module.split(".") if layer.module else []
    return parts[depth] if depth < len(parts) else ""


def _make_leaf(layer: Layer) -> Fold:
    return Fold("", (layer,), (), tuple(index for index in layer.reads if index != layer.index - 1))
