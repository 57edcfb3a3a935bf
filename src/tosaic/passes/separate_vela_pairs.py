"""Works around pairs of operations that Vela 5.2 miscompiles.

_BEFORE            Vela fuses a SLICE into its reader. If it splits that reader into several commands, they read more of
                   the tensor than the slice has, and write past the end.
_BEFORE_SPLIT      The same happens to a convolution with a large dilation or stride, also after a maximum or minimum.
_pads_images       The same happens to a convolution or pool with padding over several images.
_BEFORE_WIDENING   The same happens to a rescale of a concatenated tensor to more bits. After MAX_POOL2D, SELECT and
                   operators on bits the limits of 8 bits are kept.
_BEFORE_JOINING    The same happens to a rescale of a concatenated tensor into another one.
_is_merged         Of two rescales of which one has factor one, the first one does not saturate.
_is_unbounded      A number that is rescaled to 16 bits and then to 32, or to 8 bits and then to 16, does not saturate.
_find_unequal      Neither does a sum that is rescaled to 8 bits and then added to a number of 16 bits, or multiplied by
                   one.
_is_joined_wrongly An extremum, a sum or product of 8 and 16 bits, or a rescale to 32 bits that is concatenated with
                   others has a wrong address.
_MOVES             32-bit numbers that were sliced or concatenated are rescaled as if they had not been.
_separate_rescaled A rescaled and then reshaped tensor is read in a wrong shape by several sums, products or extrema. If
                   it is a SLICE, also by a single SELECT or operator on bits.
_separate_shapes   Two broadcast operands that are one tensor in two shapes are both read in one of the shapes.
_look_up_before_move One of two tables is not looked up if TRANSPOSE or REVERSE is between them.
_reduces_column    A maximum along the last dimension reads it as the one before the last; if that is the shape in which
                   its input was written, as that of a sum may be, Vela assumes the format of 16 channels but allocates
                   a single one.
_separate_choices  Operands of a SELECT are read in any shape that their tensors have anywhere. The operand of an ARGMAX
                   gets the format that ARGMAX needs: readers of the same tensor in another shape read it wrong, and
                   convolutions and pools of one channel write past its end.
_separate_outputs  A RESHAPE or TRANSPOSE that is returned and transposed is not returned. Booleans are 0 and 1 outside
                   and 0 and -1 inside: those that are returned and read are 1 for both.
_separate_slices   A SLICE that is reshaped to have more or fewer leading ones, with more than four dimensions before or
                   after, is read from a wrong place, or Vela crashes.
_separate_factors  A tensor that is transposed to be the second factor of a MATMUL is not returned. If it is a SLICE
                   that others read too, the MATMUL reads past it.

`tests/npu/test_pairs.py` has the smallest graph for each. REDUCE_MIN before RESHAPE is avoided by the record of `amin`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Op, Value
from tosaic.ir.infer import get_shape
from tosaic.passes.copies import copy_value as _copy
from tosaic.passes.dce import remove_dead_ops
from tosaic.passes.replace import count_uses, replace_ops, with_inputs

#: Producers of parts of a tensor: the tensor itself is what Vela reads or writes.
_MOVES = frozenset({"SLICE", "CONCAT", "PAD", "TILE"})
#: Producers of 8 bits whose limits Vela keeps when they are rescaled to more.
_KEEPS_LIMITS = frozenset({"MAX_POOL2D", "SELECT", "CAST", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BITWISE_NOT"})
#: Producers that a rescale to more bits must not read, unless that is part of a sum or product.
_BEFORE_WIDENING = _MOVES | _KEEPS_LIMITS
_AFTER_SLICE = frozenset({"SLICE"})
#: Producers that a convolution must not read if Vela splits it into several commands.
_BEFORE_SPLIT = _AFTER_SLICE | {"REDUCE_MAX", "REDUCE_MIN"}
#: The same by the reading operation.
_BEFORE: Mapping[str, frozenset[str]] = dict.fromkeys(
    ("MATMUL", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_SUM", "TRANSPOSE_CONV2D"), _AFTER_SLICE
)
#: Producers that a rescale to 8 or 16 bits must not read if its result is concatenated with others.
_BEFORE_JOINING = _MOVES - _AFTER_SLICE
_JOINS = ("CONCAT", "PAD")
#: Producers whose results get a wrong address if they are concatenated with others.
_JOINED_WRONGLY = ("REDUCE_MAX", "REDUCE_MIN", "RESCALE")
#: Operators on single numbers that are a part of the operation before.
_LOOKUPS = ("TABLE", "CLAMP")
_FUSES = ("ADD", "SUB", "MUL")
#: Operations into which Vela fuses the rescale of their sums.
_TAKES_RESCALE = frozenset({"CONV2D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D", "MATMUL", "REDUCE_SUM"})
#: Operations that write the format of 16 channels if they can.
_WRITES_BRICKS = _TAKES_RESCALE | {"MAX_POOL2D", "AVG_POOL2D"}
#: Operations on two tensors of 8 bits that need no rescale of their operands.
_READS_DIRECTLY = frozenset({"SELECT", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR"})
#: Operations that repeat an operand along dimensions in which others are larger.
_BROADCASTS = frozenset(
    (
        *(*_FUSES, "MAXIMUM", "MINIMUM", "EQUAL", "GREATER", "GREATER_EQUAL", "SELECT"),
        *("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR"),
    )
)


def separate_vela_pairs(graph: Graph) -> Graph:
    """Insert a copy, by an identity table if it has 8 bits, between two operations that Vela miscompiles together.

    before: %1 = SLICE(%0); %2 = REDUCE_MAX(%1)
    after:  %1 = SLICE(%0); %a = TABLE(%1); %2 = REDUCE_MAX(%a)

    before: %1 = RESHAPE(%0); %2 = RESCALE(%0); %3 = RESCALE(%1); %4 = MUL(%2, %3)
    after:  %1 = RESHAPE(%0); %a = TABLE(%0); %b = RESCALE(%a); %3 = RESCALE(%1); %4 = MUL(%b, %3)

    before: %1 = RESCALE(%0); %2 = RESHAPE(%1); %3 = ADD(%2, ...); %4 = MUL(%2, ...)
    after:  %a = RESHAPE(%0); %2 = RESCALE(%a); %3 = ADD(%2, ...); %4 = MUL(%2, ...)

    before: %1 = SLICE(%0); %2 = RESHAPE(%1)
    after:  %a = RESHAPE(%0); %2 = SLICE(%a)
    """
    graph = replace_ops(replace_ops(graph, _look_up_before_move), _reduce_before_last, _reduces_column)
    graph = _separate_outputs(_separate_factors(_separate_rescaled(_separate_slices(graph))))
    graph = _separate_shapes(_separate_choices(graph))
    fused, joined, unequal, uses = _find_fused(graph), _find_joined(graph), _find_unequal(graph), count_uses(graph)

    def is_computed(value: Value) -> bool:
        # A number of 32 bits with one reader is a part of that operator.
        return value.dtype is not DType.I32 or uses[value] > 1

    def is_wrong(op: Op) -> bool:
        if op.kind in _JOINS and any(map(_is_joined_wrongly, op.inputs)):
            return True
        if op.kind == "RESCALE" and op.inputs[0].dtype is DType.I32:
            return _find_source(op.inputs[0]) in _MOVES
        widens = op.kind == "RESCALE" and op.outputs[0].dtype is not DType.I8 and op.outputs[0] not in fused
        if not op.inputs or op.inputs[0].dtype not in _SMALL:
            return False
        wrong = _BEFORE_WIDENING if widens else _find_wrong(op)
        if op.kind == "RESCALE" and op.outputs[0] in joined:
            wrong = _BEFORE_JOINING
        lost = op.outputs[0] in unequal and _is_sum(op.inputs[0])
        lost = uses[op.inputs[0]] == 1 and (lost or (is_computed(op.outputs[0]) and _is_merged(op)))
        return lost or (widens and _is_unbounded(op)) or _find_source(op.inputs[0]) in wrong

    def rule(b: Builder, op: Op) -> Value:
        if op.kind not in _JOINS:
            return _separate(b, op)
        b.ops.append(with_inputs(op, tuple(_copy(b, v) if _is_joined_wrongly(v) else v for v in op.inputs)))
        return b.ops[-1].outputs[0]

    return replace_ops(graph, rule, is_wrong)


def _find_wrong(op: Op) -> frozenset[str]:
    """Find the producers that an operation must not read."""
    if _is_split(op):
        return _BEFORE_SPLIT
    return _AFTER_SLICE if _pads_images(op) else _BEFORE.get(op.kind, frozenset())


def _is_merged(op: Op) -> bool:
    """Tell whether Vela merges two rescales, of which one has factor one: the first one does not saturate then.

    A rescale of sums to 8 or 16 bits by another factor is a part of their operation, and not merged with one to 32.
    """
    before = _find_tensor(op.inputs[0]).op
    if op.kind != "RESCALE" or before is None or before.kind != "RESCALE":
        return False
    alone = op.outputs[0].dtype is not DType.I32 or before.inputs[0].dtype in _SMALL
    return _has_factor_one(before) or (alone and _has_factor_one(op))


def _has_factor_one(rescale: Op) -> bool:
    factors, shifts = (np.asarray(rescale.operand(name).data) for name in ("multiplier", "shift"))
    return bool((factors == 1 << shifts.astype(np.int64)).all())


def _is_unbounded(rescale: Op) -> bool:
    """Tell whether a rescale between other types than 8 and 32 bits reads one of 32 bits."""
    types = (rescale.inputs[0].dtype, rescale.outputs[0].dtype)
    return _is_narrowed(rescale.inputs[0]) and types[0] is not types[1] and DType.I16 in types


def _is_narrowed(value: Value) -> bool:
    """Tell whether a value was rescaled from 32 bits."""
    source = _find_tensor(value).op
    return source is not None and source.kind == "RESCALE" and source.inputs[0].dtype is DType.I32


def _is_sum(value: Value) -> bool:
    """Tell whether a value is a rescaled sum or difference."""
    source = _find_tensor(value).op
    return source is not None and source.kind == "RESCALE" and _find_source(source.inputs[0]) in ("ADD", "SUB")


def _find_unequal(graph: Graph) -> set[Value]:
    """Find rescaled 8-bit operands of sums and products whose other operand was rescaled from 16 bits."""
    found: set[Value] = set()
    for op in graph.ops:
        types = {v: v.op.inputs[0].dtype for v in op.inputs if v.op is not None and v.op.kind == "RESCALE"}
        if op.kind in _FUSES and DType.I16 in types.values():
            found.update(v for v, dtype in types.items() if dtype is DType.I8)
    return found


_SMALL = (DType.I8, DType.I16)
#: the number of dimensions that Vela handles as they are
_MOST_DIMENSIONS = 4
#: the largest dilation and stride that a single command has
_MOST_DILATION, _MOST_STRIDE = 2, 3


def _is_split(op: Op) -> bool:
    """Tell whether Vela splits a convolution into one command for each phase of its dilation or stride."""
    if op.kind not in ("CONV2D", "DEPTHWISE_CONV2D"):
        return False
    return max(op.get_ints("dilation")) > _MOST_DILATION or max(op.get_ints("stride")) > _MOST_STRIDE


def _separate(b: Builder, op: Op) -> Value:
    """Copy the first operand of an operation."""
    separated = with_inputs(op, (_copy(b, op.inputs[0]), *op.inputs[1:]))
    b.ops.append(separated)
    return separated.outputs[0]


def _pads_images(op: Op) -> bool:
    """Tell whether a window moves over the padding of several images."""
    windows = ("CONV2D", "DEPTHWISE_CONV2D", "MAX_POOL2D", "AVG_POOL2D")
    return op.kind in windows and op.inputs[0].shape[0] > 1 and any(op.get_ints("pad"))


def _is_joined_wrongly(value: Value) -> bool:
    """Tell whether CONCAT and PAD need a copy.

    They do of an extremum, of a sum or product of 8 and 16 bits, and of a rescale to 32 bits.
    """
    if value.dtype is DType.I32:
        return _find_source(value) in _JOINED_WRONGLY
    source = _find_tensor(value).op
    while source is not None and source.kind == "RESCALE" and not _is_mixed(source.inputs[0]):
        if not _has_factor_one(source):
            return False
        source = _find_tensor(source.inputs[0]).op
    return source is not None and source.kind in _JOINED_WRONGLY


def _is_mixed(value: Value) -> bool:
    """Tell whether a value is a sum or product of numbers of 8 and 16 bits."""
    made = [] if value.op is None or value.op.kind not in _FUSES else [v.op for v in value.op.inputs[:2]]
    return len({rescale.inputs[0].dtype for rescale in made if rescale is not None and rescale.kind == "RESCALE"}) > 1


def _look_up_before_move(b: Builder, op: Op) -> Value | None:
    """Look numbers up before they are reversed or transposed, if they were looked up before that too."""
    move = _find_tensor(op.inputs[0]).op if op.kind in _LOOKUPS else None
    if move is None or move.kind not in ("TRANSPOSE", "REVERSE") or _find_source(move.inputs[0]) not in _LOOKUPS:
        return None
    if op.outputs[0].dtype is not op.inputs[0].dtype:
        return None
    (first,) = b.emit(op.definition, (move.inputs[0], *op.inputs[1:]), **op.attrs)
    (moved,) = b.emit(move.definition, (first, *move.inputs[1:]), **move.attrs)
    return _reshape(b, moved, op.outputs[0].shape)


def _reduces_column(op: Op) -> bool:
    """Tell whether a maximum is taken along the last dimension of a tensor that was written with one channel."""
    if op.kind not in ("REDUCE_MAX", "REDUCE_MIN") or op.attrs["axis"] != op.inputs[0].rank - 1:
        return False
    source = op.inputs[0].op
    if source is not None and source.kind == "RESHAPE" and source.inputs[0].shape[-1:] == (1,):
        return True
    while source is not None and source.kind in ("RESHAPE", "TABLE", "CLAMP"):
        source = source.inputs[0].op
    return source is not None and source.kind == "RESCALE" and _find_source(source.inputs[0]) == "REDUCE_SUM"


def _reduce_before_last(b: Builder, op: Op) -> Value:
    shape = (math.prod(op.inputs[0].shape[:-1]), op.inputs[0].shape[-1], 1)
    reduce = tosa.reduce_max if op.kind == "REDUCE_MAX" else tosa.reduce_min
    return tosa.reshape(b, reduce(b, tosa.reshape(b, op.inputs[0], shape), 1), op.outputs[0].shape)


def _find_fused(graph: Graph) -> set[Value]:
    """Find rescales that Vela fuses into a sum or product: all its operands are rescales with no other reader.

    It makes a sum or product of 8 and 16 bits after a rescale of the 8 bits.
    """
    uses = count_uses(graph)

    def is_fused(operands: Sequence[Value]) -> bool:
        made = [v.op for v in operands if v.op is not None and v.op.kind == "RESCALE" and uses[v] == 1]
        return len(made) == len(operands) and len({rescale.inputs[0].dtype for rescale in made}) == 1

    sums = (op.inputs[:2] for op in graph.ops if op.kind in _FUSES)
    return {value for operands in sums if is_fused(operands) for value in operands}


def _find_joined(graph: Graph) -> set[Value]:
    """Find values of 8 and 16 bits that are concatenated with others, also after a change of shape."""
    found: set[Value] = set()
    for op in reversed(graph.ops):
        if op.kind in _JOINS or (op.kind == "RESHAPE" and op.outputs[0] in found):
            found.update(value for value in op.inputs if value.dtype in _SMALL)
    return found


def _separate_slices(graph: Graph) -> Graph:
    """Reshape before a SLICE instead of after it, or copy the slice, where only the number of leading ones changes."""

    def is_wrong(op: Op) -> bool:
        if op.kind != "RESHAPE" or _find_source(op.inputs[0]) != "SLICE":
            return False
        before, after = _find_tensor(op.inputs[0]).shape, op.outputs[0].shape
        same = _strip_ones(before) == _strip_ones(after)
        return same and before != after and max(len(before), len(after)) > _MOST_DIMENSIONS

    def rule(b: Builder, op: Op) -> Value:
        tensor, after = _find_tensor(op.inputs[0]), op.outputs[0].shape
        assert tensor.op is not None
        whole, begin = tensor.op.inputs[0], get_shape(tensor.op, "start")
        more, fewer = max(len(after) - tensor.rank, 0), max(tensor.rank - len(after), 0)
        if _find_source(whole) == "SLICE" or any(d > 1 for d in whole.shape[:fewer]):
            return tosa.reshape(b, _copy(b, tensor), after)
        shaped = tosa.reshape(b, whole, (1,) * more + whole.shape[fewer:])
        return tosa.slice(b, shaped, (0,) * more + begin[fewer:], after)

    return remove_dead_ops(replace_ops(graph, rule, is_wrong)) if any(map(is_wrong, graph.ops)) else graph


def _strip_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Remove the leading ones of a shape."""
    return next((shape[i:] for i, d in enumerate(shape) if d > 1), ())


def _separate_rescaled(graph: Graph) -> Graph:
    """Reshape before a rescale instead of after it, or copy the result, where several operands are made of it."""
    uses, fused = count_uses(graph), _find_fused(graph)
    operands = Counter(op.inputs[0] for op in graph.ops if op.kind == "RESCALE" and op.outputs[0].dtype is DType.I32)
    direct = {value for op in graph.ops if op.kind in _READS_DIRECTLY for value in op.inputs}

    def is_separate(rescale: Op) -> bool:
        made = rescale.inputs[0].op
        if made is None or uses[rescale.inputs[0]] > 1:
            return True
        return made.kind not in _TAKES_RESCALE and not (made.kind in _FUSES and fused.issuperset(made.inputs[:2]))

    def is_wrong(op: Op) -> bool:
        if op.kind != "RESHAPE" or (operands[op.outputs[0]] < 2 and op.outputs[0] not in direct):
            return False
        rescale = _find_tensor(op.outputs[0]).op
        return rescale is not None and rescale.kind == "RESCALE" and is_separate(rescale)

    def rule(b: Builder, op: Op) -> Value:
        rescale = _find_tensor(op.inputs[0]).op
        assert rescale is not None
        if rescale.inputs[0].dtype is DType.I32 or rescale.attrs["per_channel"]:
            b.ops.append(op)
            return _copy(b, op.outputs[0])
        shaped = tosa.reshape(b, rescale.inputs[0], op.outputs[0].shape)
        return b.emit(rescale.definition, (shaped, *rescale.inputs[1:]), **rescale.attrs)[0]

    return remove_dead_ops(replace_ops(graph, rule, is_wrong)) if any(map(is_wrong, graph.ops)) else graph


def _separate_outputs(graph: Graph) -> Graph:
    """Copy an output that Vela would drop or confuse with what other operators read."""
    b, outputs = Builder(), list[Value]()
    read = {v for op in graph.ops if op.kind != "RESHAPE" for v in op.inputs}
    chosen = {_find_tensor(v) for v in read if v.dtype is DType.BOOL}
    transposed = _find_transposed(graph)
    twice = {
        tensor for tensor in map(_find_tensor, transposed) if tensor.op is not None and tensor.op.kind == "TRANSPOSE"
    }
    for value in graph.outputs:
        tensor, b.origin = _find_tensor(value), () if value.op is None else value.op.origin
        if tensor in chosen:
            outputs.append(_reshape(b, tosa.logical_or(b, tensor, tensor), value.shape))
        elif tensor in twice:
            outputs.append(_reshape(b, _copy(b, tensor), value.shape))
        elif tensor is not value and value in transposed:
            outputs.append(tosa.reshape(b, tensor, value.shape))
        else:
            outputs.append(value)
    return Graph(graph.inputs, outputs, [*graph.ops, *b.ops]) if b.ops else graph


def _find_transposed(graph: Graph) -> set[Value]:
    """Find what is transposed, also by Vela for a sum along another dimension than the last one."""
    found = {op.inputs[0] for op in graph.ops if op.kind == "TRANSPOSE"}
    sums = (op.inputs[0] for op in graph.ops if op.kind == "REDUCE_SUM")
    return found | {v.op.inputs[0] for v in sums if v.op is not None and v.op.kind == "RESCALE"}


def _separate_factors(graph: Graph) -> Graph:
    """Copy what is transposed to be the second factor of a MATMUL if it is returned, or a SLICE that others read."""
    factors = {_find_tensor(op.inputs[1]) for op in graph.ops if op.kind == "MATMUL"}
    uses, returned = count_uses(graph), {_find_tensor(value) for value in graph.outputs}

    def is_wrong(op: Op) -> bool:
        if op.kind != "TRANSPOSE" or op.outputs[0] not in factors:
            return False
        tensor = _find_tensor(op.inputs[0])
        return tensor in returned or (_find_source(tensor) in _AFTER_SLICE and uses[tensor] > 1)

    return replace_ops(graph, _separate, is_wrong)


def _reshape(b: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    return value if value.shape == shape else tosa.reshape(b, value, shape)


def _separate_choices(graph: Graph) -> Graph:
    """Copy the operands of SELECT and ARGMAX that are read in another shape too, or returned in one.

    Copy that of an ARGMAX also if a convolution or pool writes it with another number of channels.
    """
    shapes = _find_shapes(graph)
    several = {value for value, found in shapes.items() if len(found) > 1}
    changed = False

    def is_wrong(op: Op, value: Value) -> bool:
        tensor = _find_tensor(value)
        narrow = op.kind == "ARGMAX" and tensor.op is not None and tensor.shape[-1:] != value.shape[-1:]
        return tensor in several or (narrow and _find_rescaled(tensor) in _WRITES_BRICKS)

    def rule(b: Builder, op: Op) -> Value | None:
        nonlocal changed
        if op.kind not in ("SELECT", "ARGMAX") or not any(is_wrong(op, v) for v in op.inputs):
            return None
        changed = True
        b.ops.append(with_inputs(op, tuple(_copy(b, v) if is_wrong(op, v) else v for v in op.inputs)))
        return b.ops[-1].outputs[0]

    separated = replace_ops(graph, rule)
    # The result of a copied SELECT may be an operand of the next one.
    return _separate_choices(separated) if changed else graph


def _find_rescaled(tensor: Value) -> str:
    """Find the kind of the op that made a tensor, or the sums that it is rescaled from."""
    source = _find_source(tensor)
    return _find_source(tensor.op.inputs[0]) if tensor.op is not None and source == "RESCALE" else source


def _find_shapes(graph: Graph) -> Mapping[Value, set[tuple[int, ...]]]:
    """Find the shapes in which each tensor is read or returned."""
    shapes: dict[Value, set[tuple[int, ...]]] = defaultdict(set)
    for value in (*(v for op in graph.ops if op.kind != "RESHAPE" for v in op.inputs), *graph.outputs):
        shapes[_find_tensor(value)].add(value.shape)
    return shapes


def _find_tensor(value: Value) -> Value:
    """Find the tensor behind a value, looking through reshapes."""
    while value.op is not None and value.op.kind == "RESHAPE":
        value = value.op.inputs[0]
    return value


def _separate_shapes(graph: Graph) -> Graph:
    """Insert a table before a broadcast operand whose tensor is also read in another shape."""
    reshaped = {_find_root(op.inputs[0]) for op in graph.ops if op.kind == "RESHAPE"}
    changed = False

    def rule(b: Builder, op: Op) -> Value | None:
        nonlocal changed
        twice = _find_twice(op, reshaped) if op.kind in _BROADCASTS else None
        if twice is None:
            return None
        changed = True
        operands = (*op.inputs[:twice], _copy_operand(b, op.inputs[twice]), *op.inputs[twice + 1 :])
        b.ops.append(with_inputs(op, operands))
        return b.ops[-1].outputs[0]

    separated = replace_ops(graph, rule)
    # The rescale of an operand is made again.
    return _separate_shapes(remove_dead_ops(separated)) if changed else graph


def _find_twice(op: Op, reshaped: Collection[Value]) -> int | None:
    """Find an operand before the last whose tensor is also read in another shape, where all operands are broadcast."""
    if any(v.shape == op.outputs[0].shape for v in op.inputs if v.dtype is not DType.BOOL):
        return None
    roots = [_find_root(v) for v in op.inputs[:-1]]
    return next((i for i, root in enumerate(roots) if root.dtype in _SMALL and root in reshaped), None)


def _find_root(value: Value) -> Value:
    """Find the tensor of 8 or 16 bits behind a reshaped or rescaled operand."""
    while (op := value.op) is not None and (
        op.kind == "RESHAPE" or (op.kind == "RESCALE" and op.inputs[0].dtype in _SMALL)
    ):
        value = op.inputs[0]
    return value


def _copy_operand(b: Builder, value: Value) -> Value:
    """Copy what the operand is rescaled from."""
    if value.dtype in _SMALL:
        return _copy(b, value)
    assert value.op is not None
    b.ops.append(with_inputs(value.op, (_copy_operand(b, value.op.inputs[0]), *value.op.inputs[1:])))
    return b.ops[-1].outputs[0]


def _find_source(value: Value) -> str:
    """Find the kind of the op that made a tensor, looking through reshapes."""
    made = _find_tensor(value).op
    return "" if made is None else made.kind
