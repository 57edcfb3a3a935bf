"""Constraints that operators of several families share, and those of every operator."""

from __future__ import annotations

from collections.abc import Sequence

from tosaic.core.errors import InputRefused
from tosaic.ir.graph import DType
from tosaic.lower.arguments import spread
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint
from tosaic.lower.tensor import Stored, Tensor

#: TOSA's limit on the rank of a tensor
MOST_DIMENSIONS = 6


def describe(value: object) -> str:
    """Describe an operand in a few words: `quantized int8`, `int32`, `2.5`."""
    if not isinstance(value, Tensor):
        return str(value)
    quantized = value.q is not None or (isinstance(value, Stored) and value.lut is not None)
    return f"{'quantized ' if quantized else ''}{value.dtype.torch_name}"


def _check_strides(lo: Lowering, a: Arguments) -> str:
    """Find a stride that is too long for Vela, along a dimension with several results."""
    x, kernel, longest = a["input"], a["weight"].shape[2:], lo.target.longest_stride
    if a.get("transposed") or longest is None:
        return ""
    pads = 0 if isinstance(a["padding"], str) else a["padding"]
    stride, dilation, pad = (spread(value, len(kernel)) for value in (a["stride"], a["dilation"], pads))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    depthwise = a["groups"] == x.shape[-1 - len(kernel)] > 1
    # Each frame of a 3-D convolution is computed alone, so the kernel never moves over them.
    if reach[-2:] == list(kernel[-2:]) and not depthwise:
        return ""
    sizes = list(zip(x.shape[-len(kernel) :], reach, stride, pad, strict=True))[-2:]
    if all(step <= longest or size + 2 * p < wide + step for size, wide, step, p in sizes):
        return ""
    kind = "it is depthwise" if depthwise else f"the dilation is {_write_sizes(dilation)}"
    return f"{kind} and the stride is {_write_sizes(stride)}"


def _write_sizes(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _check_input_channels(lo: Lowering, a: Arguments) -> str:
    # The frames of a 3-D convolution become channels.
    shape, most = a["weight"].shape, lo.target.most_input_channels
    count = shape[1] * shape[2] if len(shape) == 5 else shape[1]
    return "" if a.get("transposed") or most is None or count <= most else f"there are {count}"


STRIDES = Constraint(
    "a stride above 3 needs a convolution that is neither depthwise nor dilated",
    _check_strides,
    "use strides of at most 3, or an Ethos-U85",
    lambda target: target.longest_stride is not None,
)
INPUT_CHANNELS = Constraint(
    "there are at most 65536 input channels or features",
    _check_input_channels,
    "split them over several layers and add the results",
    lambda target: target.most_input_channels is not None,
)
#: of a convolution
CONVOLUTION = (STRIDES, INPUT_CHANNELS)


def _check_shape(lo: Lowering, a: Arguments) -> str:
    shape = a["result"].shape
    return f"its shape is {list(shape)}" if 0 in shape or len(shape) > MOST_DIMENSIONS else ""


#: TOSA has no complex numbers.
COMPLEX_FIX = "compute with the real and imaginary parts as two float tensors (`torch.view_as_real`)"
SHAPE = Constraint(
    f"a tensor has at most {MOST_DIMENSIONS} dimensions, none of them empty",
    _check_shape,
    f"use at most {MOST_DIMENSIONS} dimensions, none of them empty",
)
NO_STORED_BOOLEANS = Constraint(
    "boolean tensors cannot be stored",
    lambda lo, a: "the result is bool" if isinstance(a["result"], Stored) and a["result"].dtype is DType.BOOL else "",
    "cast the result to int8, or use an Ethos-U85",
    lambda target: not target.has_booleans,
)


def refuse_booleans(lo: Lowering, operand: Tensor) -> None:
    """Reject an operand that is stored as booleans on a target that has none: a result of the CPU, or an input."""
    if NO_STORED_BOOLEANS.targets(lo.target) and NO_STORED_BOOLEANS.check(lo, {"result": operand}):
        raise InputRefused(
            f"{NO_STORED_BOOLEANS.sentence}; here its input is bool",
            "pass int8 numbers to the model and compare them with zero, or use an Ethos-U85",
            kind="bool",
        )


#: of every operator; `result` is what it has computed
RESULT = (SHAPE, NO_STORED_BOOLEANS)
