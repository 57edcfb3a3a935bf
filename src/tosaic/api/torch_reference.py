"""Compares a program with torch: the expected outputs are those of the compiled graph, run by torch.

float      float32 within 1e-5 of the largest magnitude (at least 1e-5), 16-bit floats within 16 steps there
int8       99 % within one quantization step, none more than 2 off; int16: 99.9 % within 2, none more than 4
SQNR       a deep network drifts by more steps: then it must be as close to float as torch's graph, by 0.5 dB
integers   equal; after rounded floats 1 % may differ, after quantized values 5 %, and always one number:
           a comparison or argmax near a tie
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tosaic.core.dtypes import SMALL_FLOATS
from tosaic.core.errors import Invalid
from tosaic.core.tensor_info import TensorInfo
from tosaic.formats.npy import Array
from tosaic.formats.sidecar import Sidecar, Trait

Reals: TypeAlias = npt.NDArray[np.float64]

#: tolerance of float32, relative to the largest magnitude, and of 16-bit floats in ULPs at that magnitude
_FP32_RTOL, _FP16_ULPS = 1e-5, 16
_FRACTION_BITS = {"float16": 10, "bfloat16": 7}
#: per quantized type: the tolerance in steps for most numbers, their share, and the tolerance for all
_GRIDS = {"int8": (1, 0.99, 2), "uint8": (1, 0.99, 2), "int16": (2, 0.999, 4)}
#: allowed loss of the program against float compared with torch's graph, in dB
_LOSS = 0.5
#: without float outputs to compare with: the least SQNR against torch's graph, in dB
_LEAST = 10.0
#: the share of integers that may differ after rounded floats, and after quantized values
_FLIPPED, _FLIPPED_QUANTIZED = 0.01, 0.05


@dataclass(frozen=True, slots=True)
class Match:
    """Comparison of one output with torch's, over all samples.

    rule       criterion: float, steps, SQNR, equal, or flips (integers of which some may differ)
    differing  how many of all `size` numbers differ
    largest    the largest distance, in steps if the output is quantized
    within     the share of them that is at most `steps` off; both are None for an output that is not quantized
    sqnr, torch_sqnr  dB against float, of the program and of torch's graph; None without float outputs
    """

    output: int
    rule: str
    ok: bool
    quantized: bool
    size: int
    differing: int
    largest: float
    steps: int | None = None
    within: float | None = None
    sqnr: float | None = None
    torch_sqnr: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether torch's graph is quantized and its distance from float is known."""
        return self.quantized and self.torch_sqnr is not None

    def to_json(self) -> dict[str, Any]:
        # JSON has no infinity.
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}

    def __str__(self) -> str:
        return self.describe("torch's quantized graph" if self.quantized else "torch")

    def describe(self, reference: str) -> str:
        """Describe the distance from a reference in one line."""
        text = f"output {self.output} against {reference}: "
        if self.steps is not None and self.within is not None:
            unit = "step" if self.steps == 1 else "steps"
            text += f"{100 * self.within:.4g} % within {self.steps} {unit}, at most {self.largest:g} off"
        elif self.rule in ("equal", "flips") or not self.differing:
            text += f"{self.size - self.differing} of {self.size} values are equal"
        else:
            text += f"off by at most {self.largest:.3g}"
        if self.rule == "SQNR":
            text += " (judged by SQNR)"
        return text if self.ok else f"DIFFERENT: {text}"


def allow(largest: float, dtype: str) -> float:
    """Return the tolerance of a float in a tensor whose largest magnitude is given."""
    if dtype not in _FRACTION_BITS:
        return _FP32_RTOL * max(1.0, largest)
    return _FP16_ULPS * 2.0 ** (math.frexp(largest)[1] - 1 - _FRACTION_BITS[dtype]) if largest else 0.0


def measure_gap(got: Reals, want: Reals) -> Reals:
    """Return the distance of each number; infinity where only one side is NaN or infinite."""
    with np.errstate(invalid="ignore"):
        gap = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, np.abs(got - want))
    return np.where(np.isnan(gap), np.inf, gap)


def decode_real(array: Array, dtype: str) -> Reals:
    """Decode an array to real numbers; floats that numpy lacks are kept as their bits."""
    return (array.view(SMALL_FLOATS[dtype]) if dtype in SMALL_FLOATS else array).astype(np.float64)


def as_logical(array: Array, declared: TensorInfo) -> Array:
    """Return an output with channels second, as in torch."""
    return array.transpose(0, 3, 1, 2) if declared.layout == "nhwc" and array.ndim == 4 else array


def as_real(array: Array, declared: TensorInfo) -> Reals:
    """Return an output as dequantized numbers, channels second."""
    value = decode_real(as_logical(array, declared), declared.dtype)
    if declared.scale is not None and declared.zero_point is not None:
        value = (value - declared.zero_point) * declared.scale
    return value


def check_samples(sidecar: Sidecar) -> None:
    """Check that the samples fit the program."""
    for index, sample in enumerate(sidecar.samples):
        for what, arrays, tensors in (
            ("inputs", sample.inputs, sidecar.inputs),
            ("float outputs", sample.outputs or None, sidecar.outputs),
            ("outputs of torch", sample.torch or None, sidecar.outputs),
        ):
            wanted = [_logical_shape(declared) for declared in tensors]
            if arrays is not None and [array.shape for array in arrays] != wanted:
                found = ", ".join(str(list(array.shape)) for array in arrays)
                raise Invalid(
                    "the .tosaic file is damaged",
                    where=f"sample {index}",
                    why=f"its {what} have shapes {found}, the program has {', '.join(str(list(s)) for s in wanted)}",
                )
        if sample.torch and len(sidecar.traits) != len(sidecar.outputs):
            raise Invalid("the .tosaic file is damaged", why=f"it has traits for {len(sidecar.traits)} outputs")


def _logical_shape(declared: TensorInfo) -> tuple[int, ...]:
    shape = declared.shape
    return (shape[0], shape[3], shape[1], shape[2]) if declared.layout == "nhwc" and len(shape) == 4 else shape


def find_sqnr(results: Sequence[Reals], expected: Sequence[Reals]) -> float:
    """Compute the signal-to-noise ratio over several tensors, in dB."""
    pairs = list(zip(results, expected, strict=True))
    signal = sum(float(np.square(want).sum()) for want in expected)
    # Infinity minus infinity is NaN, and so is the ratio then.
    with np.errstate(invalid="ignore"):
        noise = sum(float(np.square(got - want).sum()) for got, want in pairs)
    return math.inf if noise == 0 else 10.0 * float(np.log10(max(signal, 1e-300) / noise))


def judge(results: Sequence[Sequence[Array]], sidecar: Sidecar) -> tuple[Match, ...]:
    """Compare every output of every sample with torch's."""
    positions = range(len(sidecar.outputs))
    return tuple(_judge(i, [result[i] for result in results], sidecar) for i in positions)


def _judge(position: int, results: Sequence[Array], sidecar: Sidecar) -> Match:
    declared, trait, samples = sidecar.outputs[position], sidecar.traits[position], sidecar.samples
    given = [sample.torch[position] for sample in samples]
    if given[0].dtype.kind in "iub" and declared.dtype != "bfloat16":
        return _judge_integers(position, [as_logical(array, declared) for array in results], given, trait)
    got, want = [as_real(a, declared) for a in results], [decode_real(a, declared.dtype) for a in given]
    gaps = [measure_gap(a, b) for a, b in zip(got, want, strict=True)]
    flat = np.concatenate([gap.reshape(-1) for gap in gaps])
    known = all(sample.outputs for sample in samples)
    floats = [decode_real(sample.outputs[position], declared.dtype) for sample in samples] if known else []
    within = steps = None
    if trait.scale is not None and trait.dtype in _GRIDS:
        rule, (steps, most, limit) = "steps", _GRIDS[trait.dtype]
        flat = np.rint(flat / trait.scale)
        within = float(np.mean(flat <= steps)) if flat.size else 1.0
        ok = within >= most and float(flat.max(initial=0.0)) <= limit
    else:
        rule, limits = "float", [allow(_find_largest(b), trait.dtype) for b in want]
        ok = all(bool((gap <= most).all()) for gap, most in zip(gaps, limits, strict=True))
    if not ok and trait.quantized:
        rule = "SQNR"
        least = find_sqnr(want, floats) - _LOSS if floats else _LEAST
        ok = find_sqnr(got, floats or want) >= least
    return Match(
        output=position,
        rule=rule,
        ok=ok,
        quantized=trait.quantized,
        size=flat.size,
        differing=int(np.count_nonzero(flat)),
        largest=float(flat.max(initial=0.0)),
        steps=steps,
        within=within,
        sqnr=find_sqnr(got, floats) if floats else None,
        torch_sqnr=find_sqnr(want, floats) if floats else None,
    )


def _find_largest(numbers: Reals) -> float:
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def _judge_integers(position: int, results: Sequence[Array], given: Sequence[Array], trait: Trait) -> Match:
    """Compare integers: equal, but for a few where a comparison or a cast follows a differently rounded number."""
    pairs = list(zip(results, given, strict=True))
    size = sum(want.size for want in given)
    differing = sum(int(np.count_nonzero(got != want)) for got, want in pairs)
    gaps = [measure_gap(got.astype(np.float64), want.astype(np.float64)) for got, want in pairs]
    largest = max((float(gap.max(initial=0.0)) for gap in gaps), default=0.0)
    if not (trait.rounded or trait.quantized):
        return Match(position, "equal", not differing, False, size, differing, largest)
    share = _FLIPPED_QUANTIZED if trait.quantized else _FLIPPED
    ok = differing <= max(1, int(share * size))
    return Match(position, "flips", ok, trait.quantized, size, differing, largest)
