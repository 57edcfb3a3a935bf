"""A C header with all that firmware must know to feed a program and to read its results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class Port(Protocol):
    """An input or output, as the program and the sidecar describe it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def scale(self) -> float | None: ...
    @property
    def zero_point(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class _CType:
    """A C type with its bytes, and its range where numbers can be quantized to it."""

    name: str
    bytes: int
    lowest: int = 0
    highest: int = 0


_C_TYPES = {
    "bool": _CType("uint8_t", 1),
    "uint8": _CType("uint8_t", 1, 0, 255),
    "int8": _CType("int8_t", 1, -128, 127),
    "int16": _CType("int16_t", 2, -32768, 32767),
    "int32": _CType("int32_t", 4),
    "int64": _CType("int64_t", 8),
    "float16": _CType("uint16_t", 2),
    "bfloat16": _CType("uint16_t", 2),
    "float32": _CType("float", 4),
    "float64": _CType("double", 8),
}


def write_header(model: str, target: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """The text of the header. `model` may be any text: names in C are made of it."""
    name = sanitise(model)
    ports = [(f"INPUT{i}", port) for i, port in enumerate(inputs)]
    ports += [(f"OUTPUT{i}", port) for i, port in enumerate(outputs)]
    quantized = any(port.scale is not None for _, port in ports)
    lines = [
        f"/* How to call the program `{_quote(model)}` for {_quote(target)}. Made by Tosaic: do not edit. */",
        f"#ifndef {name}_IO_H",
        f"#define {name}_IO_H",
        "",
        "#include <stdint.h>",
        *(["#include <math.h>"] if quantized else []),
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"#define {name}_INPUT_COUNT {len(inputs)}",
        f"#define {name}_OUTPUT_COUNT {len(outputs)}",
    ]
    for label, port in ports:
        lines += ["", *_write_port(f"{name}_{label}", port)]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {name}_IO_H */", ""]
    return "\n".join(lines)


def sanitise(model: str) -> str:
    """A name for macros: capitals, digits and underscores, and no digit first."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", model).strip("_").upper()
    return name if name and not name[0].isdigit() else f"MODEL_{name}".rstrip("_")


def _quote(text: str) -> str:
    """Text that can stand in a comment or a string of C."""
    return re.sub(r"[^ -~]|[\"\\]", "?", text).replace("*/", "* /").replace("/*", "/ *")


def _write_port(name: str, port: Port) -> Iterator[str]:
    yield f"/* `{_quote(port.name)}`: {port.dtype} {list(port.shape)} {port.layout}".rstrip() + " */"
    yield f'#define {name}_NAME "{_quote(port.name)}"'
    yield f'#define {name}_DTYPE "{_quote(port.dtype)}"'
    kind = _C_TYPES.get(port.dtype)
    if kind is None:
        return
    elements = math.prod(port.shape)
    yield f"#define {name}_TYPE {kind.name}"
    yield f'#define {name}_LAYOUT "{_quote(port.layout)}"'
    yield f"#define {name}_RANK {len(port.shape)}"
    # A scalar has no dimensions, and C no empty initializer.
    yield f"#define {name}_SHAPE {{{', '.join(map(str, port.shape or (1,)))}}}"
    yield f"#define {name}_ELEMENTS {elements}u"
    yield f"#define {name}_BYTES {elements * kind.bytes}u"
    yield f"#define {name}_QUANTIZED {int(port.scale is not None)}"
    if port.scale is not None:
        yield from _write_codec(name, kind, port.scale, port.zero_point or 0)


def _write_codec(name: str, kind: _CType, scale: float, zero_point: int) -> Iterator[str]:
    """Scale and zero point, and the two functions that use them with the rounding of torch."""
    function = name.lower()
    yield f"#define {name}_SCALE {_float(scale)}"
    yield f"#define {name}_ZERO_POINT ({zero_point})"
    yield ""
    yield f"static inline {kind.name} {function}_quantize(float x)"
    yield "{"
    # The reciprocal is rounded from the exact scale, as torch does it: 1.0f / SCALE could differ by one bit.
    yield f"    float q = nearbyintf(x * {_float(1.0 / scale)}) + (float){name}_ZERO_POINT;"
    yield f"    if (!(q > {kind.lowest}.0f)) {{"
    yield f"        return {kind.lowest}; /* NaN too */"
    yield "    }"
    yield f"    return q >= {kind.highest}.0f ? {kind.highest} : ({kind.name})q;"
    yield "}"
    yield ""
    yield f"static inline float {function}_dequantize({kind.name} q)"
    yield "{"
    yield f"    return (float)((int32_t)q - {name}_ZERO_POINT) * {name}_SCALE;"
    yield "}"


def _float(number: float) -> str:
    """A C float that reads back as the nearest 32-bit number."""
    text = f"{number:.9g}"
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"
