"""Checks of every lowered call: its result is torch's, and its operators are legal on the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tosaic.core.errors import Unsupported
from tosaic.fx.source import DTYPES, Val
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Op
from tosaic.ir.verifier import verify_legality
from tosaic.lower.constraints import COMPLEX_FIX, NO_STORED_BOOLEANS, SHAPE
from tosaic.lower.convert import is_real
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Result, Stored, Tensor

#: ops that only copy values, and convolutions: one torch operator may become several, each of which rounds its results
_EXACT = frozenset(
    (
        *("RESHAPE", "TRANSPOSE", "SLICE", "CONCAT", "PAD", "TILE", "REVERSE", "GATHER", "SCATTER", "SELECT"),
        *("IDENTITY", "CLAMP", "MAXIMUM", "MINIMUM", "MAX_POOL2D", "REDUCE_MAX", "REDUCE_MIN", "NEGATE", "ABS"),
        *("CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D", "CAST"),
    )
)


def check_call(lo: Lowering, result: Result, val: Val, made: Sequence[Op], perm: tuple[int, ...] | None) -> None:
    """Check the result of a call against torch's `val`, and the operators that were emitted for it.

    `perm` is the permutation of the result outside a delegate.
    """
    if isinstance(result, tuple) and isinstance(val, (tuple, list)):
        for got, want in zip(result, val, strict=False):
            _check_result(got, want)
    else:
        _check_result(result, val)
    if isinstance(result, Stored):
        _check_storage(lo, result, perm)
    for op in made:
        verify_legality(op, lo.spec)
        for value in op.outputs:
            # The shape of a tensor without dimensions is a list without numbers.
            if value.dtype is not DType.SHAPE:
                SHAPE.enforce(lo, {"result": value})


def rounds_twice(made: Sequence[Op]) -> bool:
    """Tell whether operators round to 16-bit floats more than once: torch rounds once per operator, at the end."""
    return sum(_rounds_to_16_bit(op) for op in made) > 1


def _rounds_to_16_bit(op: Op) -> bool:
    small = bool(op.inputs) and op.outputs[0].dtype in (DType.F16, DType.BF16)
    return small and op.kind not in _EXACT


def _check_result(got: Result | Unsupported, want: Val) -> None:
    """Reject a tensor that differs from torch's: it would be a silent miscompile."""
    if not isinstance(got, Tensor) or not isinstance(want, torch.Tensor):
        return
    if got.shape != tuple(want.shape):
        raise AssertionError(f"it was lowered to shape {list(got.shape)} instead of {list(want.shape)}")
    if isinstance(got, Stored):
        _check_dtype(got, want.dtype)


def _check_dtype(got: Stored, want: torch.dtype) -> None:
    """Reject a result of another kind than torch's; int64 is int32 here, and quantized values are float."""
    if want not in DTYPES and want is not torch.int64 and not got.unsigned:
        raise Unsupported(
            f"its result is {str(want).removeprefix('torch.')}, which the target does not support",
            COMPLEX_FIX if want.is_complex else "cast its operands to float32 or int32",
        )
    codes = got.q is not None or got.lut is not None
    is_bool = got.lut.dtype == np.bool_ if got.lut is not None else got.dtype is DType.BOOL
    found = "bool" if is_bool else "float" if codes or got.is_float else "integer"
    wanted = "bool" if want is torch.bool else "float" if want.is_floating_point else "integer"
    if found != wanted:
        kind = {"float": "float32", "integer": "int32"}.get(wanted, wanted)
        raise Unsupported(
            f"its result is {wanted} in torch, {found} on the target", f"cast its operands to {kind} before"
        )


def _check_storage(lo: Lowering, result: Stored, perm: tuple[int, ...] | None) -> None:
    """Reject a result that cannot be stored: its view becomes a RESHAPE or TRANSPOSE, which must support its type."""
    if not is_real(result):
        return
    NO_STORED_BOOLEANS.enforce(lo, {"result": result})
    if not result.is_materialized or perm is not None:
        verify_legality(Op(tosa.RESHAPE, (result.value,), (result.value,)), lo.spec)
