"""Programs that show a reason to stay on the CPU, and the same programs with the fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

U55, U85, FP = "ethos-u55-128", "ethos-u85-256", "TOSA-1.0+FP"


def r(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 4 - 2


def i(*shape: int, low: int = 1, high: int = 100, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def mask(*shape: int) -> torch.Tensor:
    return r(*shape) > 0


class Holding(nn.Module):
    """A function that gets a buffer of the model as its last argument."""

    def __init__(self, function: Any, buffer: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("buffer", buffer)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, self.buffer)


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(40000, 2), nn.Linear(25537, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x[:, :40000]) + self.b(x[:, 40000:])


def sum_parts(x: torch.Tensor) -> torch.Tensor:
    first, second = x[:, :300].cumsum(1), x[:, 300:].cumsum(1)
    return torch.cat([first, second + first[:, -1:]], 1)


def depthwise(stride: int) -> nn.Module:
    return nn.Conv2d(4, 4, 3, stride=stride, groups=4)


def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return F.grid_sample(x, grid, align_corners=False)


def put(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return (x + 1).scatter(1, index, y)


def attend(repeats: int, **keywords: Any) -> Callable[..., torch.Tensor]:
    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k = k.repeat_interleave(repeats, 1) if repeats > 1 else k
        return F.scaled_dot_product_attention(q, k, k, **keywords)

    return run


@dataclass(frozen=True)
class Program:
    model: Any
    inputs: tuple[torch.Tensor, ...]


def program(model: Any, *inputs: torch.Tensor) -> Program:
    return Program(model, inputs)


@dataclass(frozen=True)
class Case:
    """`reason` begins the sentence, `fix` is the whole text. `fixed` is None if there is nothing to do."""

    reason: str
    fix: str
    shown: Program
    fixed: Program | None
    target: str = U55


NUMBERS = i(3, 4), i(3, 4)
PICK = torch.tensor([1, 2])
PLACES = torch.tensor([[0, 1], [2, 1], [1, 3]])
CAST = "cast to float32 or int32 instead"
FLOAT32 = "make the model float32 with model.float(), pass float32 tensors, and return no other float type"
FLOAT_BEFORE = "cast its operands to float32 before"
WEIGHT = "use a parameter or buffer as weight"

CASES = {
    "prelu": Case(
        "the slopes of a quantized prelu are constants",
        WEIGHT,
        program(F.prelu, r(1, 3, 4, 4), r(3)),
        program(Holding(F.prelu, r(3)), r(1, 3, 4, 4)),
    ),
    "pool": Case(
        "pooling takes an image of 3 or 4 dimensions",
        "reshape its input to an image of 3 or 4 dimensions",
        program(lambda x: torch.ops.aten.adaptive_avg_pool2d.default(x * 2.0, [1, 1]), r(4, 4)),
        program(lambda x: torch.ops.aten.adaptive_avg_pool2d.default((x * 2.0)[None], [1, 1]), r(4, 4)),
    ),
    "bits": Case(
        "an operator on bits takes booleans",
        "use an Ethos-U85, or int8 numbers and a constant",
        program(lambda x, y: x & y, *NUMBERS),
        program(lambda x: x & 7, i(3, 4, dtype=torch.int8)),
    ),
    "shift": Case(
        "a shift is by one constant number",
        "use an Ethos-U85, a constant amount, or int16",
        program(lambda x, y: x << y, i(3, 4), i(3, 4, high=4)),
        program(lambda x, y: x << y << 1, i(3, 4, dtype=torch.int16), i(3, 4, high=4, dtype=torch.int16)),
    ),
    "cast-float64": Case(
        "only float32 is quantized: the CPU casts the inputs and outputs",
        FLOAT32,
        program(lambda x: (x + 1.0).to(torch.float64), r(3, 4)),
        program(lambda x: (x + 1.0).to(torch.float32), r(3, 4)),
    ),
    "cast-uint8": Case(
        "a cast is between bool, int8",
        CAST,
        program(lambda x: (x + 1).to(torch.uint8), i(3, 4)),
        program(lambda x: (x + 1).to(torch.int32), i(3, 4)),
    ),
    "compare": Case(
        "a comparison takes numbers of 8 or 16 bits",
        "use an Ethos-U85, or cast both to float32, which is quantized",
        program(lambda x, y: (x > y).to(torch.int8), *NUMBERS),
        program(lambda x, y: (x.float() > y.float()).to(torch.int8), *NUMBERS),
    ),
    "select": Case(
        "a select takes quantized tensors",
        "use an Ethos-U85, or select from float32 tensors, which are quantized",
        program(lambda x: torch.where(x > 0.5, x.int(), 0), r(3, 4)),
        program(lambda x: torch.where(x > 0.5, x, 0.0), r(3, 4)),
    ),
    "copy": Case(
        "a copy keeps the dtype",
        "cast the tensor that is copied first",
        program(lambda x: torch.ops.aten.copy(torch.zeros(3, 4), x + 1), i(3, 4)),
        program(lambda x: torch.ops.aten.copy(torch.zeros(3, 4), (x + 1).float()), i(3, 4)),
    ),
    "stride": Case(
        "a stride above 3",
        "use strides of at most 3, or an Ethos-U85",
        program(depthwise(4), r(1, 4, 24, 24)),
        program(depthwise(3), r(1, 4, 24, 24)),
    ),
    "features": Case(
        "there are at most 65536 input channels",
        "split them over several layers and add the results",
        program(nn.Linear(65537, 2), r(1, 65537)),
        program(Split(), r(1, 65537)),
    ),
    "cumsum-width": Case(
        "a cumulative sum of int32 numbers has 32 bits",
        "use dtype=torch.int32",
        program(lambda x: x.cumsum(1), i(3, 4)),
        program(lambda x: x.cumsum(1, dtype=torch.int32), i(3, 4)),
    ),
    "cumsum-length": Case(
        "a quantized cumulative sum is over at most",
        "split the dimension, and add the sums of the parts before",
        program(lambda x: x.cumsum(1), r(2, 600)),
        program(sum_parts, r(2, 600)),
    ),
    "cumprod-int8": Case(
        "it is of int8",
        "cast to int32 before",
        program(lambda x: x.cumprod(1), i(3, 4, dtype=torch.int8)),
        program(lambda x: x.int().cumprod(1, dtype=torch.int32), i(3, 4, dtype=torch.int8)),
    ),
    "divide": Case(
        "integers are not divided",
        "use an Ethos-U85, or divide float tensors, which are quantized",
        program(lambda x, y: torch.div(x, y, rounding_mode="trunc"), *NUMBERS),
        program(lambda x, y: torch.div(x.float(), y.float(), rounding_mode="trunc"), *NUMBERS),
    ),
    "divide-exactly": Case(
        "its result is float in torch, integer on the target",
        FLOAT_BEFORE,
        program(lambda x, y: x / y, *NUMBERS),
        program(lambda x, y: x.float() / y.float(), *NUMBERS),
    ),
    "sine-of-integers": Case(
        "its result is float in torch, integer on the target",
        FLOAT_BEFORE,
        program(torch.sin, i(3, 4)),
        program(lambda x: torch.sin(x.float()), i(3, 4)),
    ),
    "bits-of-booleans": Case(
        "its result is integer in torch, bool on the target",
        "cast its operands to int32 before",
        program(lambda x: x & 3, mask(3, 4)),
        program(lambda x: x.int() & 3, mask(3, 4)),
        U85,
    ),
    "power": Case(
        "a power is a lookup table",
        "use a constant exponent",
        program(lambda x, y: x**y, r(3, 4) + 3, r(3, 4)),
        program(lambda x: x**2.5, r(3, 4) + 3),
    ),
    "power-of-integers": Case(
        "a power of integers has a constant exponent",
        "use a constant exponent from 1 to 8",
        program(lambda x, y: x**y, *NUMBERS),
        program(lambda x: x**8, i(3, 4, high=4)),
    ),
    "sort-length": Case(
        "at most 1024 numbers are put in order, out of at most 16384",
        "split the dimension, or put the numbers in order on the CPU",
        program(lambda x: x.topk(1100)[0], r(1, 1200)),
        program(lambda x: torch.cat([x[:, :600].topk(550)[0], x[:, 600:].topk(550)[0]], 1), r(1, 1200)),
    ),
    "sort-type": Case(
        "numbers that are put in order have 8 or 16 bits",
        "use an Ethos-U85, or cast to float32 and quantize that",
        program(lambda x: (x + 1).topk(3)[0], i(3, 20)),
        program(lambda x: (x + 1).float().topk(3)[0], i(3, 20)),
    ),
    "argmax-length": Case(
        "argmax finds the largest of at most 16384 numbers",
        "use an Ethos-U85, or argmax on the CPU",
        program(lambda x: x.argmax(-1).int(), r(1, 20_000)),
        None,
    ),
    "argmax-type": Case(
        "an argmax is of 8 or 16 bits",
        "use an Ethos-U85, or cast to float32 and quantize that",
        program(lambda x: (x + 1).argmax(-1).int(), i(3, 20)),
        program(lambda x: (x + 1).float().argmax(-1).int(), i(3, 20)),
    ),
    "index": Case(
        "indices are constants: the NPU cannot index",
        "use an Ethos-U85, or make the indices a constant of the model",
        program(lambda x, index: (x + 1).index_select(1, index), r(3, 4), i(2, high=3)),
        program(Holding(lambda x, index: (x + 1).index_select(1, index), PICK), r(3, 4)),
    ),
    "repeat": Case(
        "the number of repeats is a constant",
        "make the repeats a constant of the model",
        program(lambda x, n: (x + 1).repeat_interleave(n, 1, output_size=8), r(3, 4), i(4, low=2, high=3)),
        program(Holding(lambda x, n: (x + 1).repeat_interleave(n, 1, output_size=8), i(4, low=2, high=3)), r(3, 4)),
    ),
    "product": Case(
        "the operands of a product of two computed matrices",
        "cast both to float32, and quantize both to int8",
        program(lambda x, y: x @ y, i(3, 4), i(4, 3)),
        program(lambda x, y: x.float() @ y.float(), i(3, 4), i(4, 3)),
    ),
    "reflect": Case(
        "a dimension that is reflected at one end",
        "pad with non-negative sizes, then crop",
        program(lambda x: torch.ops.aten.reflection_pad1d(x + 1.0, [-4, 3]), r(1, 3, 6)),
        program(lambda x: torch.ops.aten.reflection_pad1d(x + 1.0, [0, 3])[..., 4:], r(1, 3, 6)),
    ),
    "mean": Case(
        "a mean takes float or quantized values",
        "cast to float before the mean",
        program(lambda x: (x + 1).mean(1, dtype=torch.float32), i(3, 4)),
        program(lambda x: (x + 1).float().mean(1), i(3, 4)),
    ),
    "sum": Case(
        "a sum or product of int32 numbers has 32 bits",
        "use dtype=torch.int32",
        program(lambda x: x.sum(1), i(3, 4)),
        program(lambda x: x.sum(1, dtype=torch.int32), i(3, 4)),
    ),
    "grid": Case(
        "the grid of samples is constant",
        "make the grid a buffer of the model",
        program(sample, r(1, 3, 4, 4), r(1, 5, 5, 2)),
        program(Holding(sample, r(1, 5, 5, 2)), r(1, 3, 4, 4)),
    ),
    "grid-of-frames": Case(
        "samples are taken from images",
        "use an input of 4 dimensions",
        program(Holding(sample, r(1, 2, 5, 5, 3)), r(1, 3, 4, 4, 4)),
        program(Holding(sample, r(1, 5, 5, 2)), r(1, 3, 4, 4)),
    ),
    "grid-size": Case(
        "pixels times samples are at most",
        "sample a smaller image or fewer points",
        program(Holding(sample, r(1, 64, 65, 2)), r(1, 3, 32, 33)),
        program(Holding(sample, r(1, 6, 5, 2)), r(1, 3, 32, 33)),
    ),
    "resize": Case(
        "an interpolation has integer factors",
        "choose sizes with a simpler ratio",
        program(lambda x: F.interpolate(x, (2, 1019), mode="bilinear"), r(1, 1, 2, 23)),
        program(lambda x: F.interpolate(x, (2, 46), mode="bilinear"), r(1, 1, 2, 23)),
    ),
    "resize-ratio": Case(
        "an interpolation has a ratio of at most 2048 to 1",
        "choose sizes with a simpler ratio",
        program(lambda x: F.interpolate(x, (2, 2100), mode="bilinear"), r(1, 1, 2, 2099)),
        program(lambda x: F.interpolate(x, (2, 200), mode="bilinear"), r(1, 1, 2, 100)),
        U85,
    ),
    "scatter": Case(
        "indices are constants: the NPU cannot write",
        "use an Ethos-U85, or make the indices a constant of the model",
        program(lambda x, y, index: put(x, y, index.long()), r(3, 4), r(3, 2), i(3, 2, high=3)),
        program(Holding(put, PLACES), r(3, 4), r(3, 2)),
    ),
    "put-rows": Case(
        "indices that are computed are int32 numbers",
        "use int32 indices, or torch.where",
        program(lambda x, m, y: torch.index_put(x + 1, (m,), y), r(3, 4), mask(3), r(4)),
        program(lambda x, m, y: torch.where(m[:, None], y, x + 1), r(3, 4), mask(3), r(4)),
        U85,
    ),
    "masked_scatter": Case(
        "the mask is a constant of the model",
        "make the mask a constant",
        program(lambda x, y, m: (x + 1).masked_scatter(m, y), r(3, 4), r(12), mask(3, 4)),
        program(Holding(lambda x, y, m: (x + 1).masked_scatter(m, y), mask(3, 4)), r(3, 4), r(12)),
        U85,
    ),
    "as_strided": Case(
        "a tensor that is read by strides is all that is in its memory; here it is a part of one",
        "call .clone() before as_strided",
        program(lambda x: (x + 1)[1:].as_strided((2, 3), (3, 1)), i(4, 3)),
        program(lambda x: (x + 1)[1:].clone().as_strided((2, 3), (3, 1)), i(4, 3)),
    ),
    "rank": Case(
        "a tensor has at most 6 dimensions",
        "use at most 6 dimensions, none of them empty",
        program(lambda x: (x + 1.0).reshape(1, 2, 1, 2, 1, 2, 1) * 2.0, r(8)),
        program(lambda x: (x + 1.0).reshape(1, 2, 2, 1, 2, 1) * 2.0, r(8)),
    ),
    "bool-result": Case(
        "boolean tensors cannot be stored; here the result is bool",
        "cast the result to int8, or use an Ethos-U85",
        program(lambda x: x > 0.5, r(3, 4)),
        program(lambda x: (x > 0.5).to(torch.int8), r(3, 4)),
    ),
    "bool-input": Case(
        "boolean tensors cannot be stored; here its input is bool",
        "pass int8 numbers to the model and compare them with zero, or use an Ethos-U85",
        program(lambda m, x: torch.where(m, x, 0.5), mask(3, 4), r(3, 4)),
        program(lambda m, x: torch.where(m != 0, x, 0.5), i(3, 4, low=0, high=2, dtype=torch.int8), r(3, 4)),
    ),
    "int64-result": Case(
        "its result is int64",
        "cast it to int32",
        program(lambda x: x.argmax(1), r(3, 4)),
        program(lambda x: x.argmax(1).to(torch.int32), r(3, 4)),
    ),
    "int64-input": Case(
        "its input is int64",
        "call the model with int32 tensors",
        program(lambda x: x + 1, i(3, 4, dtype=torch.int64)),
        program(lambda x: x + 1, i(3, 4)),
    ),
    "float64-input": Case(
        "its input is float64",
        "call the model with float32 tensors",
        program(lambda x: torch.relu(x.float()) * 2.0, r(3, 4).double()),
        program(lambda x: torch.relu(x.float()) * 2.0, r(3, 4)),
    ),
    "complex-input": Case(
        "its input is complex64",
        "compute with the real and imaginary parts as two float tensors (`torch.view_as_real`)",
        program(lambda x: x * 2.0, torch.complex(r(3, 4), r(3, 4))),
        program(lambda x: x * 2.0, r(3, 4, 2)),
    ),
    "float16": Case(
        "only float32 is quantized: the CPU casts the inputs and outputs",
        FLOAT32,
        program(lambda x: torch.sigmoid(x) + x.flip(0), r(3, 4).half()),
        program(lambda x: torch.sigmoid(x) + x.flip(0), r(3, 4)),
    ),
    "unknown": Case(
        "Tosaic has no lowering for `aten.pdist.default`",
        "write it with other operators, or leave it on the CPU",
        program(lambda x: torch.pdist(x + 1.0), r(3, 4)),
        None,
    ),
    "mixed-tensors": Case(
        "its first operand is int32 and not quantized",
        "cast it to float32 before",
        program(lambda x, y: x + y, i(3, 4), r(3, 4)),
        program(lambda x, y: x.float() + y, i(3, 4), r(3, 4)),
    ),
    "mixed-number": Case(
        "it mixes int32 and float32",
        "cast the integers to float32 before",
        program(lambda x: x * 1.5, i(3, 4)),
        program(lambda x: x.float() * 1.5, i(3, 4)),
    ),
    "mixed-number-in-float": Case(
        "it mixes int32 with the float number 1.5",
        "cast the integers to float32 before",
        program(lambda x: x + 1.5, i(3, 4)),
        program(lambda x: x.float() + 1.5, i(3, 4)),
        FP,
    ),
    "mixed-select": Case(
        "it mixes int32 and int16",
        "cast both to float32 or to int32 before",
        program(lambda c, x, y: torch.where(c != 0, x, y), *NUMBERS, i(3, 4, dtype=torch.int16)),
        program(lambda c, x, y: torch.where(c != 0, x, y.int()), *NUMBERS, i(3, 4, dtype=torch.int16)),
        U85,
    ),
    "integers-in-float": Case(
        "its operands are int32",
        "cast them to float32",
        program(torch.atan2, *NUMBERS),
        program(lambda x, y: torch.atan2(x.float(), y.float()), *NUMBERS),
        FP,
    ),
    "number": Case(
        "the number 1099511627776 does not fit 32 bits",
        "use a smaller number",
        program(lambda x: x + 2**40, i(3, 4)),
        program(lambda x: x + 2**20, i(3, 4)),
    ),
    "cummax": Case(
        "the positions of `cummax` are not available",
        "use the values of cummax only",
        program(lambda x: torch.cummax(x, 1), r(3, 4)),
        program(lambda x: torch.cummax(x, 1)[0], r(3, 4)),
    ),
    "variance": Case(
        "the variance of so few values is infinite",
        "reduce over more values",
        program(lambda x: x.var(1), r(3, 1)),
        program(lambda x: x.var(1), r(3, 4)),
    ),
    "attention": Case(
        "grouped-query attention is not available",
        "repeat the keys and values",
        program(attend(1, enable_gqa=True), r(1, 4, 5, 8), r(1, 2, 5, 8)),
        program(attend(2), r(1, 4, 5, 8), r(1, 2, 5, 8)),
    ),
    "dropout": Case(
        "attention has dropout",
        "call model.eval() before export",
        program(attend(1, dropout_p=0.5), r(1, 4, 5, 8), r(1, 4, 5, 8)),
        program(attend(1), r(1, 4, 5, 8), r(1, 4, 5, 8)),
    ),
    "empty": Case(
        "its result is empty",
        "remove the empty slice",
        program(lambda x: ((x + 1.0)[:, 2:2], x + 1.0), r(3, 4)),
        program(lambda x: x + 1.0, r(3, 4)),
    ),
    "conv-weight": Case(
        "its weight is not a constant",
        WEIGHT,
        program(F.conv2d, r(1, 3, 6, 6), r(4, 3, 3, 3)),
        program(Holding(F.conv2d, r(4, 3, 3, 3)), r(1, 3, 6, 6)),
    ),
}
