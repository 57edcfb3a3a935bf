"""Writes a C header with everything that firmware needs to feed a program and to read its results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from tosaic.core.dtypes import DTYPES, ElementType
from tosaic.core.tensor_info import TensorInfo


def write_header(model: str, target: str, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> str:
    """Return the text of the header. `model` may be any text: names in C are derived from it."""
    name = sanitize(model)
    tensors = [(f"INPUT{i}", tensor) for i, tensor in enumerate(inputs)]
    tensors += [(f"OUTPUT{i}", tensor) for i, tensor in enumerate(outputs)]
    quantized = any(tensor.scale is not None for _, tensor in tensors)
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
    for label, tensor in tensors:
        lines += ["", *_write_tensor(f"{name}_{label}", tensor)]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {name}_IO_H */", ""]
    return "\n".join(lines)


def sanitize(model: str) -> str:
    """Make a name for macros: capitals, digits and underscores, and no digit first."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", model).strip("_").upper()
    return name if name and not name[0].isdigit() else f"MODEL_{name}".rstrip("_")


def _quote(text: str) -> str:
    """Escape text for a comment or a string of C."""
    return re.sub(r"[^ -~]|[\"\\]", "?", text).replace("*/", "* /").replace("/*", "/ *")


def _write_tensor(name: str, tensor: TensorInfo) -> Iterator[str]:
    yield f"/* `{_quote(tensor.name)}`: {tensor.dtype} {list(tensor.shape)} {tensor.layout}".rstrip() + " */"
    yield f'#define {name}_NAME "{_quote(tensor.name)}"'
    yield f'#define {name}_DTYPE "{_quote(tensor.dtype)}"'
    element = DTYPES.get(tensor.dtype)
    if element is None or not element.c_type:
        return
    elements = math.prod(tensor.shape)
    yield f"#define {name}_TYPE {element.c_type}"
    yield f'#define {name}_LAYOUT "{_quote(tensor.layout)}"'
    yield f"#define {name}_RANK {len(tensor.shape)}"
    # A scalar has no dimensions, and C no empty initializer.
    yield f"#define {name}_SHAPE {{{', '.join(map(str, tensor.shape or (1,)))}}}"
    yield f"#define {name}_ELEMENTS {elements}u"
    yield f"#define {name}_BYTES {tensor.nbytes}u"
    yield f"#define {name}_QUANTIZED {int(tensor.scale is not None)}"
    if tensor.scale is not None:
        yield from _write_codec(name, element, tensor.scale, tensor.zero_point or 0)


def _write_codec(name: str, element: ElementType, scale: float, zero_point: int) -> Iterator[str]:
    """Yield scale and zero point, and the two functions that use them with the rounding of torch."""
    function, kind = name.lower(), element.c_type
    limits = np.iinfo(element.name)
    yield f"#define {name}_SCALE {_float(scale)}"
    yield f"#define {name}_ZERO_POINT ({zero_point})"
    yield ""
    yield f"static inline {kind} {function}_quantize(float x)"
    yield "{"
    # The reciprocal is rounded from the exact scale, as in torch: 1.0f / SCALE could differ by one bit.
    yield f"    float q = nearbyintf(x * {_float(1.0 / scale)}) + (float){name}_ZERO_POINT;"
    yield f"    if (!(q > {limits.min}.0f)) {{"
    yield f"        return {limits.min}; /* NaN too */"
    yield "    }"
    yield f"    return q >= {limits.max}.0f ? {limits.max} : ({kind})q;"
    yield "}"
    yield ""
    yield f"static inline float {function}_dequantize({kind} q)"
    yield "{"
    yield f"    return (float)((int32_t)q - {name}_ZERO_POINT) * {name}_SCALE;"
    yield "}"


def _float(number: float) -> str:
    """Format a C float that parses to the nearest 32-bit number."""
    text = f"{number:.9g}"
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"
