"""Precisions by name, for a whole model and for parts of it, and the types of its inputs and outputs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from torch.fx import Graph

from tosaic.core.errors import Invalid, check_choice
from tosaic.fx.source import list_enclosing, module_stack
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import (
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)

#: The smallest scale of 16 bits: then the smallest range is that of int8. The function's own default is ExecuTorch's,
#: and too large for the probabilities of an attention.
_SMALLEST_SCALE = 2.0**-24
_get_a16w8 = partial(get_symmetric_a16w8_quantization_config, epsilon=_SMALLEST_SCALE)

#: The recipe of each precision, after training.
PRECISIONS: Mapping[str, Callable[..., QuantizationConfig]] = MappingProxyType(
    {
        "int8": get_symmetric_quantization_config,
        "a16w8": _get_a16w8,
        "a8w4": partial(get_symmetric_a8w4_quantization_config, is_qat=False),
    }
)
#: The type of activations of each. A part of the model can also stay in float.
ACTIVATIONS: Mapping[str, str] = MappingProxyType({"int8": "int8", "a16w8": "int16", "a8w4": "int8", "float": "float"})
DEFAULT = "int8"

#: The recipe for inputs and outputs of each integer type.
_IO: Mapping[str, Callable[[], QuantizationConfig]] = MappingProxyType(
    {
        "int8": get_symmetric_quantization_config,
        "uint8": get_uint8_io_quantization_config,
        "int16": _get_a16w8,
    }
)
IO_KINDS = ("float", *_IO)


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of a model: of all of it, and of modules by their path or class name."""

    everywhere: str = DEFAULT
    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    #: a scale per channel of a weight, or one for all of it
    per_channel: bool = True

    def __post_init__(self) -> None:
        check_choice("precision", self.everywhere, PRECISIONS)
        for name, chosen in self.parts.items():
            check_choice(f"the precision of `{name}`", chosen, ACTIVATIONS)

    @property
    def is_default(self) -> bool:
        return self.everywhere == DEFAULT and not self.parts and self.per_channel

    def describe(self) -> dict[str, str]:
        """Describe what differs from the default, for reports."""
        parts = ", ".join(f"{name}={chosen}" for name, chosen in self.parts.items())
        shown = {
            "precision": self.everywhere,
            "precision_for": parts,
            "weights": "" if self.per_channel else "per tensor",
        }
        return {} if self.is_default else {name: text for name, text in shown.items() if text}

    def make_quantizer(self, graph: Graph, io: str, *, stores_int16: bool = True) -> TosaQuantizer:
        """Make the quantizer for an exported graph; raise Invalid for a module that it does not have."""
        quantizer = TosaQuantizer(stores_int16=stores_int16)
        quantizer.set_global(PRECISIONS[self.everywhere](is_per_channel=self.per_channel))
        paths, classes = _list_modules(graph)
        for name, chosen in self.parts.items():
            config = None if chosen == "float" else PRECISIONS[chosen](is_per_channel=self.per_channel)
            if name in paths:
                quantizer.set_module_name(name, config)
            elif name in classes:
                for kind in classes[name]:
                    quantizer.set_module_type(kind, config)
            else:
                raise _unknown_module(name, (*paths, *classes))
        if io != "float" and any(ACTIVATIONS[chosen] != io for chosen in (self.everywhere, *self.parts.values())):
            quantizer.set_io(_IO[io]())
        return quantizer


def _list_modules(graph: Graph) -> tuple[set[str], dict[str, set[str]]]:
    """List the paths of all modules with operators inside, and their full class names by the short ones."""
    paths: set[str] = set()
    classes: dict[str, set[str]] = {}
    for node in graph.nodes:
        for path, kind in module_stack(node):
            classes.setdefault(kind.rpartition(".")[2], set()).add(kind)
            paths.update(list_enclosing(path))
    return paths, classes


def _unknown_module(name: str, known: Iterable[str]) -> Invalid:
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.4)
    fix = f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else "use a path of `model.named_modules()`"
    return Invalid(f"the model has no module or class `{name}`", why="no operator is inside one of that name", fix=fix)
