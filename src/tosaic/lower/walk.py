"""Lowering of fx nodes to TOSA: one walk, one record per node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from tosaic.core.errors import FloatInput, Invalid, Unsupported
from tosaic.core.specification import Specification
from tosaic.core.targets import Target
from tosaic.fx.dynamic import has_fixed_shape
from tosaic.fx.source import DTYPES, FILLS, QDQ, QUANTIZE, Source, bind, fill, overload, torch_op
from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType, Graph, Op, Type
from tosaic.ir.qparams import QParams
from tosaic.ir.verifier import verify_legality
from tosaic.lower.constraints import MOST_DIMENSIONS, NO_STORED_BOOLEANS, SHAPE
from tosaic.lower.convert import can_be_real, convert_all, is_real, is_small, narrow, to_real, widen
from tosaic.lower.lowering import NHWC, Lowering
from tosaic.lower.registry import AtenOps, Record, registry
from tosaic.lower.tensor import Tensor, inverse, of_array


@dataclass(frozen=True, slots=True)
class Foreign:
    """A result that TOSA cannot hold (int64, float64, complex ...)."""

    what: str


#: ops that give their input's numbers, and convolutions, which round once and may be several for one operator
_EXACT = frozenset(
    (
        *("RESHAPE", "TRANSPOSE", "SLICE", "CONCAT", "PAD", "TILE", "REVERSE", "GATHER", "SCATTER", "SELECT"),
        *("IDENTITY", "CLAMP", "MAXIMUM", "MINIMUM", "MAX_POOL2D", "REDUCE_MAX", "REDUCE_MIN", "NEGATE", "ABS"),
        *("CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D", "CAST"),
    )
)

#: what a node has become: a tensor, several of them, or nothing TOSA knows
Result = Any


class Walk:
    """The state of one walk over a graph: the lowering context and what every node has become."""

    def __init__(self, source: Source, target: Target, nhwc: frozenset[Node] = frozenset()) -> None:
        self.source, self.nhwc = source, nhwc
        self.lo = Lowering(target, Specification.parse(target.tosa_spec))
        self.results: dict[Node, Result] = {}

    def receive(self, node: Node) -> Result:
        """Make a node's result an input of the graph."""
        fake = self.source.fake(node)
        if isinstance(fake, (tuple, list)):
            self.results[node] = Foreign("several tensors")
        else:
            self.results[node] = self._input(fake, find_permutation(self.source, node, self.nhwc))
        return self.results[node]

    def _input(self, fake: Any, permutation: tuple[int, ...] | None) -> Result:
        if not isinstance(fake, torch.Tensor):
            return Foreign(type(fake).__name__)
        if fake.dtype not in DTYPES:
            return Foreign(str(fake.dtype).removeprefix("torch."))
        # Asking a size that can vary for its number would fix it.
        if not has_fixed_shape(fake):
            return Foreign("of a shape that can vary")
        if 0 in fake.shape or fake.dim() > MOST_DIMENSIONS:
            return Foreign(f"of shape {list(fake.shape)}")
        shape = tuple(int(d) for d in fake.shape)
        perm = permutation or tuple(range(len(shape)))
        value = self.lo.b.input(Type(DTYPES[fake.dtype], tuple(shape[i] for i in inverse(perm))))
        return Tensor(shape, value.dtype, value, perm=perm)

    def get(self, node: Node) -> Result:
        if node in self.results:
            return self.results[node]
        if node in self.source.constants:
            self.results[node] = _constant(self.source.constants[node])
            return self.results[node]
        return self.receive(node)

    def run(self, node: Node) -> Result:
        """Lower one node. Raises Unsupported; the graph may then hold ops that nobody reads."""
        self.lo.b.origin = (*self._pending_before(node), node.name)
        try:
            result = self._attempt(node)
        except Unsupported:
            if not self.lo.has_float or overload(node) in QDQ or not self._can_widen(node):
                raise
            # What has no form in integers or in 16-bit floats may well have one in float32.
            result = self._attempt(node, wide=True)
        self.results[node] = result
        return result

    def _can_widen(self, node: Node) -> bool:
        results = [self.get(n) for n in node.all_input_nodes]
        return any(isinstance(r, Tensor) and (is_small(r) or not is_real(r)) for r in results)

    def _attempt(self, node: Node, wide: bool = False) -> Result:
        start = len(self.lo.b.ops)
        try:
            result = self._run(node, wide)
            self._check(node, result)
            self._check_storage(result)
            made = self.lo.b.ops[start:]
            for op in made:
                verify_legality(op, self.lo.spec)
                for value in op.outputs:
                    SHAPE.enforce(self.lo, {"result": value})
        except Invalid as error:
            raise Unsupported(error.what, error.fix) from error
        if not wide and sum(_rounds(op) for op in made) > 1:
            return self._attempt(node, wide=True)
        return result

    def _pending_before(self, node: Node) -> list[str]:
        """The nodes whose pending results a quantize turns into operators: those operators are theirs as well."""
        names: list[str] = []
        todo = list(node.all_input_nodes) if overload(node) == QUANTIZE else []
        while todo:
            one = todo.pop()
            if one.op != "call_function" or overload(one) in QDQ or one.name in names:
                continue
            if is_pending(self.results.get(one)):
                names.append(one.name)
                todo.extend(one.all_input_nodes)
        return names[::-1]

    def _run(self, node: Node, wide: bool) -> Result:
        name = overload(node)
        if name == "getitem":
            source: Any = node.args[0]
            items = self.get(source)
            if isinstance(items, Foreign):
                raise Unsupported(f"it takes {items.what} from an operator that is not on the NPU")
            item = items[node.args[1]]
            if isinstance(item, Unsupported):
                if node.users:
                    raise item
                return ()
            return item
        record = registry().find(name)
        if not hasattr(torch_op(node), "_schema"):
            raise _no_lowering(name)
        arguments = {k: self._argument(v) for k, v in bind(node).items()}
        folded = self._fold(node, record, arguments)
        if folded is not None:
            return folded
        if record is None and not _is_pointwise(node):
            raise _no_lowering(name)
        self._refuse_float(name, arguments)
        if wide or (self.lo.has_float and name not in QDQ and _is_mixed(arguments)):
            arguments = convert_all(arguments, lambda t: to_real(self.lo, t))
        if wide or (record is not None and _is_summing(record)):
            arguments = convert_all(arguments, lambda t: widen(self.lo, t))
        table = self._tabulate(node, record, arguments)
        if table is not None:
            return table
        if record is None:
            raise _no_lowering(name)
        self.lo.next_q = quantized_to(node)
        return self._narrow(node, apply(self.lo, record, arguments))

    def _narrow(self, node: Node, result: Result) -> Result:
        """The result in torch's dtype, where it was computed in a wider float."""
        fake = self.source.fake(node)
        if isinstance(result, Tensor) and isinstance(fake, torch.Tensor) and fake.dtype in DTYPES:
            return narrow(self.lo, result, DTYPES[fake.dtype])
        if isinstance(result, (tuple, list)) and isinstance(fake, (tuple, list)):
            kinds = [DTYPES.get(f.dtype) if isinstance(f, torch.Tensor) else None for f in fake]
            return tuple(
                narrow(self.lo, r, k) if isinstance(r, Tensor) and k is not None else r
                for r, k in zip(result, kinds, strict=False)
            )
        return result

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Node):
            got = self.get(value)
            if isinstance(got, Foreign):
                raise Unsupported(
                    f"its input is {got.what}, which the target has no type for", "cast it to int32 or float32"
                )
            return got
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        return value

    def _refuse_float(self, name: str, arguments: Mapping[str, Any]) -> None:
        if self.lo.has_float or name == QUANTIZE:
            return
        given = next((t for t in _tensors(arguments) if t.is_float and not t.is_const), None)
        if given is not None and is_small(given):
            raise FloatInput(
                f"its input is {given.dtype.torch_name} and only float32 is quantized",
                "call .float() on this part of the model",
            )
        if given is not None:
            raise FloatInput("its input is float and the target is integer only", "quantize this part of the model")

    def _tabulate(self, node: Node, record: Record | None, arguments: Mapping[str, Any]) -> Tensor | None:
        """Apply an elementwise op to all 256 numbers its one quantized input can be; None if it is not that case."""
        if not (record.pointwise if record is not None else _is_pointwise(node)) or not self.lo.spec.support_integer():
            return None
        tensors = [a for a in arguments.values() if isinstance(a, Tensor)]
        moving = [t for t in tensors if not t.is_const]
        fits = all(_can_tabulate(t) and _same_base(t, moving[0]) for t in moving)
        if not moving or not fits or any(t.size != 1 for t in tensors if t.is_const):
            return None
        base = moving[0]
        given = {k: (_table_input(a) if isinstance(a, Tensor) else a) for k, a in arguments.items()}
        out = torch_op(node)(**given)
        if not isinstance(out, torch.Tensor) or out.shape != (256,):
            return None
        if self.lo.has_float and out.dtype is not torch.float32:
            # A bool that comes from a table could not be stored; the comparison itself can.
            return None
        return replace(base, lut=out.detach().numpy(), clamp=None)

    def _fold(self, node: Node, record: Record | None, arguments: Mapping[str, Any]) -> Tensor | None:
        """Compute what depends on constants alone; data movement and (de)quantization keep codes as codes."""
        if overload(node) in FILLS:
            return _constant(fill(node, self.source.fake(bind(node)["self"])))
        tensors = _tensors(arguments)
        if not all(t.is_const for t in tensors) or torch.Tag.nondeterministic_seeded in torch_op(node).tags:
            return None
        if record is not None and (record.is_qdq or record.moves):
            return None
        out = torch_op(node)(**{k: _real(a) for k, a in arguments.items()})
        return _constant(out) if isinstance(out, torch.Tensor) else None

    def _check(self, node: Node, result: Result) -> None:
        """A record must give what torch gives: anything else would be a silent miscompile."""
        fake = self.source.fake(node)
        several = isinstance(result, (tuple, list)) and isinstance(fake, (tuple, list))
        for got, want in zip(result, fake, strict=False) if several else ((result, fake),):
            if not isinstance(got, Tensor) or not isinstance(want, torch.Tensor):
                continue
            if got.shape != tuple(want.shape):
                raise AssertionError(f"it was lowered to shape {list(got.shape)} instead of {list(want.shape)}")
            if not got.is_const:
                _check_dtype(got, want.dtype)

    def _check_storage(self, result: Result) -> None:
        """Refuse a result that could not be stored: a view is a RESHAPE or TRANSPOSE then, which must have its type."""
        if not isinstance(result, Tensor) or result.value is None or not is_real(result):
            return
        NO_STORED_BOOLEANS.enforce(self.lo, {"result": result})
        if not result.is_settled:
            verify_legality(Op(tosa.RESHAPE, (result.value,), (result.value,)), self.lo.spec)

    def finish(self, outputs: Sequence[Node]) -> Graph:
        """The graph with these nodes' results as outputs, in logical layout."""
        values = []
        for node in outputs:
            result = self.results[node]
            self.lo.b.origin = (node.name,)
            if isinstance(result, Tensor) and can_be_real(self.lo, result):
                result = to_real(self.lo, result)
            if not isinstance(result, Tensor) or is_pending(result):
                raise Unsupported("its result exists only inside the NPU", "quantize it")
            perm = find_permutation(self.source, node, self.nhwc)
            values.append(self.lo.emit(result) if perm is None else self.lo.arrange(result, perm))
        return self.lo.b.finish(values)


class _Caller:
    """What a `decompose` function sees when it runs inside a lowering: aten ops by name on tensors."""

    def __init__(self, lo: Lowering) -> None:
        self._lo = lo

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        full = f"aten.{name}"
        record = registry().find(full)
        assert record is not None, full
        packet, _, variant = name.partition(".")
        target = getattr(getattr(torch.ops.aten, packet), variant)
        names = [a.name for a in target._schema.arguments]
        bound = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
        bound.update(zip(names, args, strict=False))
        bound.update(kwargs)
        return apply(self._lo, record, bound)

    def constant(self, array: Array) -> Tensor:
        return of_array(array, DType.F32)

    @staticmethod
    def shape(t: Tensor) -> tuple[int, ...]:
        return t.shape

    @staticmethod
    def data(t: Tensor) -> Array | None:
        return t.array

    @staticmethod
    def is_bool(t: Tensor) -> bool:
        return t.dtype is DType.BOOL


def apply(lo: Lowering, record: Record, arguments: Mapping[str, Any]) -> Result:
    """Lower through the record's own function, or through its decomposition where the data is float."""
    for constraint in record.constraints:
        constraint.enforce(lo, arguments)
    if record.lower is not None:
        return record.lower(lo, **arguments)
    assert record.decompose is not None
    if any(isinstance(a, Tensor) and a.q is not None for a in arguments.values()):
        raise Unsupported(
            f"`{record.name}` is quantized as a whole, so the ranges inside it are unknown",
            "quantize with tosaic's quantizer, which decomposes it before calibration",
        )
    aten: AtenOps = _Caller(lo)
    result = record.decompose(aten, **arguments)
    if result is None:
        raise Unsupported(f"`{record.name}` has no form for these arguments", "write it with simpler operators")
    return result


def find_permutation(source: Source, node: Node, nhwc: frozenset[Node]) -> tuple[int, ...] | None:
    """What turns a tensor at the edge of a region, as it lies in memory, into torch's; None if nothing has to be."""
    order = source.orders.get(node)
    return NHWC if node in nhwc else None if order is None else inverse(order)


def is_pending(result: Result) -> bool:
    """Whether a result has no stored form of its own outside the NPU: a float meaning on integer storage."""
    if isinstance(result, Tensor):
        return result.q is not None or result.lut is not None or (result.is_const and result.is_float)
    return isinstance(result, (tuple, list)) and any(is_pending(r) for r in result)


def lower(
    source: Source,
    nodes: Iterable[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    target: Target,
    nhwc: frozenset[Node] = frozenset(),
) -> Graph:
    """The TOSA graph of a region that the partitioner has found to be supported. `nhwc`: borders with channels last."""
    walk = Walk(source, target, nhwc)
    for node in inputs:
        walk.receive(node)
    for node in nodes:
        walk.run(node)
    return walk.finish(outputs)


def quantized_to(node: Node) -> QParams | None:
    """What a node's result is quantized to, looking through ops that bound or move it."""
    while len(node.users) == 1:
        user = next(iter(node.users))
        if user.op != "call_function":
            return None
        name = overload(user)
        if name == QUANTIZE:
            a = bind(user)
            return qparams_of(a["scale"], a["zero_point"], a["quant_min"], a["quant_max"], a["dtype"])
        record = registry().find(name)
        if record is None or not (record.bounds or record.moves):
            return None
        node = user
    return None


def qparams_of(scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype) -> QParams:
    if dtype not in DTYPES:
        raise Unsupported(f"it is quantized to {str(dtype).removeprefix('torch.')}", "use int8")
    return QParams((float(scale),), (int(zero_point),), DTYPES[dtype], int(quant_min), int(quant_max))


def _constant(tensor: torch.Tensor) -> Result:
    if tensor.dtype not in DTYPES:
        if tensor.dtype in (torch.int64, torch.float64):
            narrow = tensor.to(torch.int32 if tensor.dtype is torch.int64 else torch.float32)
            return of_array(_numpy(narrow), DTYPES[narrow.dtype])
        return Foreign(str(tensor.dtype).removeprefix("torch."))
    return of_array(_numpy(tensor), DTYPES[tensor.dtype])


def _numpy(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype is torch.bfloat16 else tensor.numpy()


def _no_lowering(name: str) -> Unsupported:
    return Unsupported(f"Tosaic has no lowering for `{name}`", "replace the operator, or leave it on the CPU")


def _check_dtype(got: Tensor, want: torch.dtype) -> None:
    """Refuse a result of another kind than torch's: where int64 is int32, and a code is a float."""
    if want not in DTYPES and want is not torch.int64:
        raise Unsupported(
            f"its result is {str(want).removeprefix('torch.')}, which the target has no type for",
            "cast its operands to float32 or int32",
        )
    codes = got.q is not None or got.lut is not None
    is_bool = got.lut.dtype == np.bool_ if got.lut is not None else got.dtype is DType.BOOL
    found = "bool" if is_bool else "float" if codes or got.is_float else "integer"
    wanted = "bool" if want is torch.bool else "float" if want.is_floating_point else "integer"
    if found != wanted:
        raise Unsupported(f"its result is {wanted} in torch, {found} on the target", "cast its operands to one dtype")


def _tensors(arguments: Mapping[str, Any]) -> list[Tensor]:
    """All tensors among bound arguments, those in lists too."""
    return [t for a in arguments.values() for t in (a if isinstance(a, list) else [a]) if isinstance(t, Tensor)]


def _real(value: Any) -> Any:
    """Constants as torch tensors of the real numbers they stand for."""
    if isinstance(value, list):
        return [_real(v) for v in value]
    if not isinstance(value, Tensor):
        return value
    assert value.array is not None
    if value.dtype is DType.BF16:
        return torch.from_numpy(value.array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(value.real().astype(np.float32) if value.q is not None else value.array.copy())


def _is_mixed(arguments: Mapping[str, Any]) -> bool:
    """Whether a float tensor meets a quantized one: the operator is then computed in float, as torch does."""
    tensors = _tensors(arguments)
    return any(t.is_float and not t.is_const for t in tensors) and not all(is_real(t) for t in tensors)


def _is_summing(record: Record) -> bool:
    """Operators of many steps: torch computes them in float32 and rounds once, also for 16-bit floats."""
    return record.decompose is not None or record.computes_in_float32


def _rounds(op: Op) -> bool:
    """Whether an op rounds to a 16-bit float: torch does that once per operator, after all its steps."""
    small = bool(op.inputs) and op.outputs[0].dtype in (DType.F16, DType.BF16)
    return small and op.kind not in _EXACT


def _is_pointwise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(torch_op(node), "tags", ())


def _can_tabulate(t: Tensor) -> bool:
    return t.q is not None and t.dtype is DType.I8 and (t.lut is not None or t.is_code)


def _same_base(a: Tensor, b: Tensor) -> bool:
    return (a.value, a.perm, a.shape, a.q) == (b.value, b.perm, b.shape, b.q)


def _table_input(t: Tensor) -> torch.Tensor:
    if t.is_const:
        return torch.tensor(float(t.real().reshape(-1)[0]), dtype=torch.float32)
    if t.lut is not None:
        return torch.from_numpy(t.lut.copy())
    assert t.q is not None
    codes = torch.arange(-128, 128, dtype=torch.float32)
    return (codes - t.q.zp) * t.q.s
