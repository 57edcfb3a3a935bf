"""Lowering of a graph's calls to TOSA: one walk in execution order, `lower.steps` for each call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.fx import Node

from tosaic.core.errors import InputRefused, Invalid, Unsupported
from tosaic.core.specification import Specification
from tosaic.core.targets import Target
from tosaic.fx.dynamic import has_fixed_shape
from tosaic.fx.source import DTYPES, QDQ, QUANTIZE, Source, Val, bind, has_schema, input_node, overload
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Graph, Type, Value
from tosaic.lower.arguments import UNSIGNED_OFFSET, is_sequence
from tosaic.lower.check import check_call, rounds_twice
from tosaic.lower.constraints import COMPLEX_FIX, MOST_DIMENSIONS, SHAPE
from tosaic.lower.convert import can_be_real, is_real, is_small, to_real
from tosaic.lower.lowering import NHWC, Lowering
from tosaic.lower.steps import Call, lower_call, make_constant, no_lowering, refuse_unknown
from tosaic.lower.tensor import Const, Opaque, Result, Stored, Tensor, inverse


class GraphLowering:
    """The state of one walk over a graph: the lowering context and the result of every node."""

    def __init__(self, source: Source, target: Target, nhwc: frozenset[Node] = frozenset()) -> None:
        self.source, self.nhwc = source, nhwc
        self.lo = Lowering(target, Specification.parse(target.tosa_spec))
        self.results: dict[Node, Result] = {}

    def receive(self, node: Node) -> Result:
        """Make a node's result an input of the graph."""
        val = self.source.val(node)
        if isinstance(val, (tuple, list)):
            result = Opaque("several tensors", kind="")
        else:
            result = self._input(val, find_permutation(self.source, node, self.nhwc))
        self.results[node] = result
        return result

    def _input(self, val: Val, permutation: tuple[int, ...] | None) -> Stored | Opaque:
        if not isinstance(val, torch.Tensor):
            return Opaque(type(val).__name__, type(val).__name__)
        unsigned = val.dtype is torch.uint8
        if val.dtype not in DTYPES and not unsigned:
            name = str(val.dtype).removeprefix("torch.")
            return Opaque(name, name)
        # Converting a symbolic size to a number would specialize it.
        if not has_fixed_shape(val):
            return Opaque("of dynamic shape", kind="")
        if 0 in val.shape or val.dim() > MOST_DIMENSIONS:
            return Opaque(f"of shape {list(val.shape)}", kind="")
        shape = tuple(int(d) for d in val.shape)
        perm = permutation or tuple(range(len(shape)))
        dtype = DType.I8 if unsigned else DTYPES[val.dtype]
        value = self.lo.b.input(Type(dtype, tuple(shape[i] for i in inverse(perm))))
        return Stored(shape, value, perm, unsigned=unsigned)

    def get(self, node: Node) -> Result:
        """Return the result of a node; a node that was not lowered is a constant or an input of the graph."""
        if node in self.results:
            return self.results[node]
        if node in self.source.constants:
            self.results[node] = make_constant(self.source.constants[node])
            return self.results[node]
        return self.receive(node)

    def run(self, node: Node) -> Result:
        """Lower one node. Raises Unsupported; the graph may then contain unused ops."""
        self.lo.b.origin = (*self._pending_before(node), node.name)
        try:
            result = self._attempt(node)
        except Unsupported:
            if not self.lo.has_float or overload(node) in QDQ or not self._can_widen(node):
                raise
            # What cannot be lowered in integers or in 16-bit floats may be lowered in float32.
            result = self._attempt(node, wide=True)
        self.results[node] = result
        return result

    def _take_item(self, node: Node) -> Result:
        """Take one of several results."""
        items = self.get(input_node(node))
        if isinstance(items, Opaque):
            raise Unsupported(f"it takes {items.what} from an operator that is not on the NPU")
        index = node.args[1]
        assert isinstance(items, tuple) and isinstance(index, int)
        item = items[index]
        if not node.users:
            return ()
        if isinstance(item, Unsupported):
            raise item
        return item

    def _can_widen(self, node: Node) -> bool:
        results = [self.get(n) for n in node.all_input_nodes]
        return any(isinstance(r, Tensor) and (is_small(r) or not is_real(r)) for r in results)

    def _attempt(self, node: Node, wide: bool = False) -> Result:
        """Lower a call and check the result; one computed in 16-bit floats may be retried in float32."""
        start = len(self.lo.b.ops)
        try:
            if overload(node) == "getitem":
                result = self._take_item(node)
            else:
                result = lower_call(self.lo, self._bind(node, wide))
            made = self.lo.b.ops[start:]
            perm = find_permutation(self.source, node, self.nhwc)
            check_call(self.lo, result, self.source.val(node), made, perm)
        except Invalid as error:
            raise Unsupported(error.what, error.fix) from error
        if not wide and rounds_twice(made):
            return self._attempt(node, wide=True)
        return result

    def _bind(self, node: Node, wide: bool) -> Call:
        if not has_schema(node):
            raise no_lowering(overload(node))
        try:
            arguments = {name: self._argument(value) for name, value in bind(node).items()}
        except InputRefused:
            # Another input would not help an operator without a lowering.
            refuse_unknown(self.lo, Call(self.source, node, {}))
            raise
        return Call(self.source, node, arguments, wide)

    def _argument(self, value: object) -> object:
        """Replace nodes by their results."""
        if isinstance(value, Node):
            got = self.get(value)
            if isinstance(got, Opaque):
                raise InputRefused(
                    f"its input is {got.what}, which the target does not support",
                    self._fix_input(value, got),
                    kind=got.kind,
                )
            return got
        return [self._argument(item) for item in value] if is_sequence(value) else value

    def _fix_input(self, node: Node, got: Opaque) -> str:
        """Say what the user can do about an input of the model, or a constant, that TOSA cannot hold."""
        if not got.kind:
            return SHAPE.fix
        if "complex" in got.kind:
            return COMPLEX_FIX
        if node in self.source.constants:
            return "make this constant float32, or int32 with numbers of 32 bits"
        return f"call the model with {'float32' if 'float' in got.kind else 'int32'} tensors"

    def _pending_before(self, node: Node) -> list[str]:
        """Name the nodes whose pending results a quantize materializes: those operators belong to them as well."""
        names: list[str] = []
        todo = list(node.all_input_nodes) if overload(node) == QUANTIZE else []
        while todo:
            one = todo.pop()
            if one.op != "call_function" or overload(one) in QDQ or one.name in names:
                continue
            if exists_only_inside(self.results.get(one)):
                names.append(one.name)
                todo.extend(one.all_input_nodes)
        return names[::-1]

    def finish(self, outputs: Sequence[Node]) -> Graph:
        """Make the graph with these nodes' results as outputs, in logical layout."""
        values: list[Value] = []
        for node in outputs:
            result = self.results[node]
            self.lo.b.origin = (node.name,)
            if isinstance(result, Tensor) and can_be_real(self.lo, result):
                result = to_real(self.lo, result)
            if not isinstance(result, Tensor) or exists_only_inside(result):
                raise Unsupported("its result exists only inside the NPU", "quantize it")
            perm = find_permutation(self.source, node, self.nhwc)
            value = self.lo.emit(result) if perm is None else self.lo.to_layout(result, perm)
            unsigned = isinstance(result, Stored) and result.unsigned
            values.append(self._write_unsigned(value) if unsigned else value)
        return self.lo.b.finish(values)

    def _write_unsigned(self, value: Value) -> Value:
        """Make the bits of uint8 numbers of int8 ones. This comes last: Vela would take what is moved for int8."""
        return tosa.rescale(
            self.lo.b, value, DType.I8, multiplier=[1 << 30], shift=[30], out_zp=UNSIGNED_OFFSET, output_unsigned=True
        )


def find_permutation(source: Source, node: Node, nhwc: frozenset[Node]) -> tuple[int, ...] | None:
    """Find the permutation of a delegate's input or output from its memory layout to torch's; None if not needed."""
    order = source.orders.get(node)
    return NHWC if node in nhwc else None if order is None else inverse(order)


def exists_only_inside(result: Result | Unsupported | None) -> bool:
    """Tell whether a result cannot be stored outside the NPU: real numbers on integer storage."""
    match result:
        case Stored():
            return result.q is not None or result.lut is not None
        case Const():
            return result.q is not None or result.is_float
        case tuple():
            return any(exists_only_inside(r) for r in result)
        case _:
            return False


def lower(
    source: Source,
    nodes: Iterable[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    target: Target,
    nhwc: frozenset[Node] = frozenset(),
) -> Graph:
    """Lower a partition that is known to be supported. `nhwc`: inputs and outputs with channels last."""
    walk = GraphLowering(source, target, nhwc)
    for node in inputs:
        walk.receive(node)
    for node in nodes:
        walk.run(node)
    return walk.finish(outputs)
