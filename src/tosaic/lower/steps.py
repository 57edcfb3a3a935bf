"""The lowering of one call to TOSA: a list of named steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.fx import Node

from tosaic.core.errors import InputRefused, ResultRefused, Unsupported
from tosaic.fx.arrays import find_memory_order, from_bits, has_bits, to_numpy, to_torch
from tosaic.fx.dynamic import has_fixed_shape
from tosaic.fx.source import (
    DEQUANTIZE,
    DTYPES,
    FILLS,
    QDQ,
    QUANTIZE,
    Source,
    Val,
    aten,
    bind,
    bind_arguments,
    fill,
    has_tag,
    input_node,
    overload,
    torch_op,
)
from tosaic.ir.graph import RANGES, Array, DType
from tosaic.ir.qparams import QParams
from tosaic.lower.arguments import find_qparams, make_movable
from tosaic.lower.aten import Aten
from tosaic.lower.constraints import refuse_booleans
from tosaic.lower.convert import convert_all, is_list, is_real, is_small, narrow, to_real, widen
from tosaic.lower.interpolation import Steps
from tosaic.lower.lowering import Lowering
from tosaic.lower.powers import is_power
from tosaic.lower.registry import Record, registry
from tosaic.lower.tensor import Const, Opaque, Result, Stored, Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the program while the steps process it.

    arguments  bound to the names of the schema; previous results are tensors
    wide       whether it must be computed in float32: it cannot be lowered in its own types, or it rounds too often
    """

    source: Source
    node: Node
    arguments: Mapping[str, object]
    wide: bool = False

    @property
    def name(self) -> str:
        return overload(self.node)

    @property
    def record(self) -> Record | None:
        return registry().find(self.name)

    def tensors(self) -> list[Tensor]:
        """Return all tensors among the arguments, those in lists too."""
        return list(find_tensors(self.arguments.values()))


#: A step returns the call to continue with, or the call's result.
Step: TypeAlias = Callable[[Lowering, Call], Call | Result]


def lower_call(lo: Lowering, call: Call) -> Result:
    """Run the steps; a call that reaches the end of the list is lowered by its record."""
    for step in STEPS:
        outcome = step(lo, call)
        if not isinstance(outcome, Call):
            return outcome
        call = outcome
    return narrow_result(lo, call, lower_by_record(lo, call))


def fold(lo: Lowering, call: Call) -> Call | Result:
    """Fold what depends on constants alone; data movement and (de)quantization keep quantized values unchanged."""
    if call.name in FILLS:
        return make_constant(fill(call.node, call.source.tensor(bind(call.node)["self"])))
    constants = all(isinstance(t, Const) for t in call.tensors())
    if not constants or has_tag(call.node, torch.Tag.nondeterministic_seeded):
        return call
    if call.record is not None and (call.record.is_qdq or call.record.moves):
        return call
    nodes = bind(call.node)
    given = {name: _to_torch(value, nodes.get(name), call.source) for name, value in call.arguments.items()}
    out = torch_op(call.node)(**given)
    return make_constant(out) if isinstance(out, torch.Tensor) else call


def refuse_unknown(lo: Lowering, call: Call) -> Call:
    """Reject an operator that has no record and is not elementwise (which may still become a table)."""
    if call.record is None and not _is_pointwise(call):
        raise no_lowering(call.name)
    return call


def refuse_int64(lo: Lowering, call: Call) -> Call:
    """Reject a cast to int64, which is int32 on the target, unless its results are only used as indices."""
    wide = getattr(call.source.val(call.node), "dtype", None) is torch.int64
    if wide and call.record is not None and call.record.moves and not _makes_indices(call.node):
        made = [n for n in call.node.all_input_nodes if getattr(call.source.val(n), "dtype", None) is not torch.int64]
        if made:
            raise ResultRefused(
                "its result is int64, which the target does not support", "cast it to int32", kind="int64"
            )
    return call


def refuse_unsigned(lo: Lowering, call: Call) -> Call:
    """Reject uint8 operands; only a dequantize accepts one."""
    if call.name != DEQUANTIZE and any(isinstance(t, Stored) and t.unsigned for t in call.tensors()):
        raise InputRefused(
            "its input is uint8, which the target does not support", "call the model with int32 tensors", kind="uint8"
        )
    return call


def refuse_float(lo: Lowering, call: Call) -> Call:
    """Reject computed float operands on a target of integers; only a quantize accepts one."""
    if lo.has_float or call.name == QUANTIZE:
        return call
    given = next((t for t in call.tensors() if t.is_float and not t.is_const), None)
    if given is not None and is_small(given):
        raise InputRefused(
            f"its input is {given.dtype.torch_name} and only float32 is quantized",
            "make the model float32 with model.float(), and pass float32 tensors",
            kind="float",
        )
    if given is not None:
        raise InputRefused(
            "its input is float, and the target is integer only",
            "quantize this part of the model, its activations as well as its weights",
            kind="float",
        )
    return call


def convert_mixed(lo: Lowering, call: Call) -> Call:
    """Convert quantized operands next to float ones to float32, as torch does."""
    mixed = lo.has_float and call.name not in QDQ and _is_mixed(call.tensors())
    return _convert(call, lambda t: to_real(lo, t)) if call.wide or mixed else call


def widen_operands(lo: Lowering, call: Call) -> Call:
    """Widen 16-bit floats of an operator of many steps: torch computes it in float32 and rounds once."""
    summing = call.record is not None and _is_summing(call.record)
    return _convert(call, lambda t: widen(lo, t)) if call.wide or summing else call


def tabulate(lo: Lowering, call: Call) -> Call | Result:
    """Apply an elementwise operator to all possible values of its one quantized input: the table stays pending."""
    pointwise = call.record.pointwise if call.record is not None else _is_pointwise(call)
    if not pointwise or not lo.spec.support_integer():
        return call
    tensors = [a for a in call.arguments.values() if isinstance(a, Tensor)]
    computed = [t for t in tensors if isinstance(t, Stored)]
    if not computed or any(t.size != 1 for t in tensors if t.is_const):
        return call
    base = computed[0]
    if not all(_can_tabulate(lo, t) and _same_base(t, base) for t in computed) or _is_exact(call, base):
        return call
    given = {name: _list_inputs(a) if isinstance(a, Tensor) else a for name, a in call.arguments.items()}
    out = torch_op(call.node)(**given)
    if not isinstance(out, torch.Tensor) or out.shape != (256 if base.dtype is DType.I8 else 1 << 16,):
        return call
    if out.dtype is torch.bool and base.dtype is DType.I16 and bool((out == out[0]).all()):
        return Const(np.full(base.shape, bool(out[0])), DType.BOOL)
    if out.dtype is not torch.float32 and (lo.has_float or out.dtype is not torch.bool or base.dtype is DType.I16):
        # The comparison itself can be stored in float models and done in 16 bits, and integers always.
        return call
    if base.dtype is DType.I16 and (q := quantized_to(call.node)) is not None:
        # Here the reason names the function.
        lo.tables.fit(np.asarray(to_numpy(out), np.float32), q)
    return replace(base, lut=to_numpy(out), clamp=None)


def tabulate_power(lo: Lowering, call: Call) -> Call | Result:
    """Apply an elementwise operator to a sum of squares of 32 bits, which was never rounded to 16."""
    pointwise = call.record is not None and call.record.pointwise
    power = next((t for t in call.tensors() if is_power(t)), None)
    q = quantized_to(call.node)
    if not pointwise or power is None or q is None or q.dtype is DType.I32:
        return call
    if any(t is not power and not (t.is_const and t.size == 1) for t in call.tensors()):
        return call

    def function(reals: Steps) -> Steps:
        numbers = to_torch(reals.astype(np.float32))
        given = {
            name: numbers if a is power else _list_inputs(a) if isinstance(a, Tensor) else a
            for name, a in call.arguments.items()
        }
        return to_numpy(torch_op(call.node)(**given)).astype(np.float64)

    return lo.tables.apply_to_sum(power, function, q)


def lower_by_record(lo: Lowering, call: Call) -> Result:
    """Lower the call by the operator's record."""
    if call.record is None:
        raise no_lowering(call.name)
    lo.next_q = quantized_to(call.node)
    lo.memory_order = _find_order(call)
    return apply(lo, call.record, call.arguments)


def narrow_result(lo: Lowering, call: Call, result: Result) -> Result:
    """Convert the result to torch's dtype, if it was computed in a wider float."""
    val = call.source.val(call.node)
    if isinstance(result, Tensor):
        return _narrow_to(lo, result, val)
    if isinstance(result, tuple) and isinstance(val, (tuple, list)):
        pairs = zip(result, val, strict=False)
        return tuple(_narrow_to(lo, r, v) if isinstance(r, Tensor) else r for r, v in pairs)
    return result


#: In this order: constants need no operator, and tables are better than the record's lowering.
STEPS: tuple[Step, ...] = (
    fold,
    refuse_unknown,
    refuse_int64,
    refuse_unsigned,
    refuse_float,
    convert_mixed,
    widen_operands,
    tabulate,
    tabulate_power,
)


class LoweringAten:
    """Runs a `decompose` function inside a lowering: each ATen operator is lowered immediately."""

    def __init__(self, lo: Lowering) -> None:
        self._lo = lo

    def __call__(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        record = registry().find(f"aten.{name}")
        assert record is not None, name
        return apply(self._lo, record, bind_arguments(aten(name), args, kwargs))

    def constant(self, array: Array, /) -> Tensor:
        return make_movable(self._lo, Const(array, DType.F32 if array.dtype.kind == "f" else DType.I32))

    def shape(self, value: Tensor, /) -> tuple[int, ...]:
        return value.shape

    def data(self, value: Tensor, /) -> Array | None:
        return value.array if isinstance(value, Const) else None

    def is_bool(self, value: Tensor, /) -> bool:
        return value.dtype is DType.BOOL

    def same_dtype(self, value: Tensor, other: Tensor, /) -> bool:
        return value.dtype is other.dtype

    def as_indices(self, value: Tensor, /) -> Tensor:
        return value

    def as_numbers(self, value: Tensor, /) -> Tensor:
        return make_movable(self._lo, value)

    def made_by(self, value: Tensor, /) -> tuple[str, tuple[Tensor | float, ...]]:
        return "", ()


def apply(lo: Lowering, record: Record, arguments: Mapping[str, object]) -> Result:
    """Lower by the record's own function, or by its decomposition if there is none for these arguments."""
    for tensor in find_tensors(arguments.values()):
        refuse_booleans(lo, tensor)
    for constraint in record.constraints:
        constraint.enforce(lo, arguments)
    result: Result | list[Tensor] | None = None
    if record.lower is not None:
        result = record.lower(lo, **arguments)
    if result is None and record.decompose is not None:
        if any(isinstance(a, Tensor) and a.q is not None for a in arguments.values()):
            raise Unsupported(
                f"`{record.name}` is quantized as a whole, so the ranges inside it are unknown",
                "quantize with Tosaic's quantizer, which decomposes it before calibration",
            )
        operators: Aten[Tensor] = LoweringAten(lo)
        result = record.decompose(operators, **arguments)
    if result is None:
        raise Unsupported(f"`{record.name}` cannot be lowered with these arguments", "write it with simpler operators")
    return tuple(result) if isinstance(result, list) else result


def quantized_to(node: Node) -> QParams | None:
    """Find what a node's result is quantized to, looking through ops that clamp or move it."""
    while len(node.users) == 1:
        user = next(iter(node.users))
        if user.op != "call_function":
            return None
        name = overload(user)
        if name == QUANTIZE:
            a = bind(user)
            return find_qparams(a["scale"], a["zero_point"], a["quant_min"], a["quant_max"], a["dtype"])
        record = registry().find(name)
        if record is None or not (record.bounds or record.moves):
            return None
        node = user
    return None


def make_constant(tensor: torch.Tensor) -> Const | Opaque:
    """Make a constant from a torch tensor; int64 and float64 become 32 bits wide."""
    smaller = {torch.int64: torch.int32, torch.float64: torch.float32}.get(tensor.dtype)
    if smaller is torch.int32 and not _fits_int32(tensor):
        return Opaque("int64 with numbers beyond 32 bits", "int64")
    if smaller is not None:
        tensor = tensor.to(smaller)
    if tensor.dtype not in DTYPES:
        name = str(tensor.dtype).removeprefix("torch.")
        return Opaque(name, name)
    return Const(to_numpy(tensor), DTYPES[tensor.dtype])


def _fits_int32(tensor: torch.Tensor) -> bool:
    limits = torch.iinfo(torch.int32)
    return not tensor.numel() or bool(limits.min <= tensor.min() and tensor.max() <= limits.max)


def no_lowering(name: str) -> Unsupported:
    """Make the error for an operator without a lowering."""
    if name == "cond":
        return Unsupported(
            "a branch of `cond` has an operator that is not defined for all numbers, so only one branch may run",
            "bound the operand in the branch and choose with `torch.where`",
        )
    return Unsupported(f"Tosaic has no lowering for `{name}`", "write it with other operators, or leave it on the CPU")


def find_tensors(values: Iterable[object]) -> Iterable[Tensor]:
    """Find all tensors among values, including those in lists."""
    for value in values:
        if is_list(value):
            yield from find_tensors(value)
        elif isinstance(value, Tensor):
            yield value


def _convert(call: Call, convert: Callable[[Tensor], Tensor]) -> Call:
    return replace(call, arguments={name: convert_all(value, convert) for name, value in call.arguments.items()})


def _narrow_to(lo: Lowering, t: Tensor, val: Val) -> Tensor:
    dtype = DTYPES.get(val.dtype) if isinstance(val, torch.Tensor) else None
    return t if dtype is None else narrow(lo, t, dtype)


def _to_torch(value: object, node: object, source: Source) -> object:
    """Convert constants to torch tensors of the real numbers they stand for, as wide as those of the node."""
    if is_list(value):
        nodes = node if is_list(node) else [None] * len(value)
        return [_to_torch(*pair, source) for pair in zip(value, nodes, strict=True)]
    if not isinstance(value, Const):
        return value
    if has_bits(dtype := getattr(torch, value.dtype.torch_name)):
        return from_bits(value.array.copy(), dtype)
    tensor = to_torch(value.real().astype(np.float32) if value.q is not None else value.array.copy())
    wide = getattr(source.val(node), "dtype", None) if isinstance(node, Node) else None
    return tensor.to(wide) if wide in (torch.int64, torch.float64) else tensor


def _is_mixed(tensors: list[Tensor]) -> bool:
    """Tell whether there are both float and quantized tensors."""
    return any(t.is_float and not t.is_const for t in tensors) and not all(is_real(t) for t in tensors)


def _is_summing(record: Record) -> bool:
    return (record.decompose is not None and not record.moves) or record.computes_in_float32


def _find_order(call: Call) -> tuple[int, ...] | None:
    """Find the order of the dimensions of a call's first operand in memory."""
    node = next(iter(call.node.all_input_nodes), None)
    # Quantize and dequantize keep that order, but their types do not show it.
    while node is not None and overload(node) in QDQ:
        node = input_node(node)
    val = None if node is None else call.source.val(node)
    if not isinstance(val, torch.Tensor) or not has_fixed_shape(val) or val.storage_offset():
        return None
    return find_memory_order(val)


def _makes_indices(node: Node) -> bool:
    """Tell whether a node's result is only used as indices, possibly after data movement."""
    for user in node.users:
        record = registry().find(overload(user))
        if record is None or not (record.looks_up or (record.moves and _makes_indices(user))):
            return False
    return True


def _is_pointwise(call: Call) -> bool:
    return has_tag(call.node, torch.Tag.pointwise)


def _can_tabulate(lo: Lowering, t: Stored) -> bool:
    fits = t.dtype is DType.I8 or (t.dtype is DType.I16 and lo.spec.supports("int16"))
    return t.q is not None and fits and (t.lut is not None or t.is_plain_quantized)


def _is_exact(call: Call, base: Stored) -> bool:
    """Tell whether the record computes 16 bits better than a table, which interpolates."""
    exact = call.record is not None and call.record.computes_int16
    return exact and base.dtype is DType.I16 and base.lut is None and quantized_to(call.node) is not None


def _same_base(a: Stored, b: Stored) -> bool:
    return (a.value, a.perm, a.shape, a.q) == (b.value, b.perm, b.shape, b.q)


def _list_inputs(t: Tensor) -> torch.Tensor:
    """List the possible real values of a table's operand: one for each integer, or the one number of a constant."""
    if isinstance(t, Const):
        number = t.real().reshape(-1)[0]
        return torch.tensor(bool(number) if t.dtype is DType.BOOL else float(number))
    if t.lut is not None:
        return to_torch(t.lut.copy())
    least, most = RANGES[t.dtype]
    codes = torch.arange(least, most + 1, dtype=torch.float32)
    return (codes - t.qparams.zp) * t.qparams.s
