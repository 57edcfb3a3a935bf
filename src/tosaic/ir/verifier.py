"""The verifier: is this graph well formed, does every op keep its rule, and does the specification have it all?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.ir.encode import count_bytes
from tosaic.ir.graph import DType, Graph, Op, Type, Value
from tosaic.ir.legal import LEGAL
from tosaic.ir.rule import Attrs, get_dtype, get_graph, get_ints, get_shape, get_text, get_type
from tosaic.ir.rules import RULES
from tosaic.ir.signature import SIGNATURES, Field


@dataclass(frozen=True, slots=True)
class Level:
    """The sizes that a TOSA level allows."""

    max_rank: int
    max_kernel: int
    max_stride: int
    max_scale: int
    max_log2_size: int
    max_nesting: int
    max_tensor_list: int


NO_LEVEL = Level(32, (1 << 31) - 1, (1 << 31) - 1, 2048, 63, 256, 256)
LEVEL_8K = Level(6, 8192, 8192, 256, 31, 6, 64)

#: Operands that must be constants (TOSA's "compile time constant"), by position.
_CONSTANTS: Mapping[str, tuple[int, ...]] = {
    "AVG_POOL2D": (1, 2),
    "CONV2D": (3, 4),
    "CONV3D": (3, 4),
    "DEPTHWISE_CONV2D": (3, 4),
    "TRANSPOSE_CONV2D": (3, 4),
    "MATMUL": (2, 3),
    "MUL": (2,),
    "NEGATE": (1, 2),
    "TABLE": (1,),
    "PAD": (1, 2),
    "RESHAPE": (1,),
    "SLICE": (1, 2),
    "TILE": (1,),
    "RESIZE": (1, 2, 3),
    "RESCALE": (1, 2, 3, 4),
}
_ROUNDING = {"DOUBLE_ROUND": "doubleround", "INEXACT_ROUND": "inexactround"}


def verify(graph: Graph, spec: Specification) -> None:
    """Raise Invalid with the op's index, kind and the reason at the first thing that is wrong."""
    level = LEVEL_8K if spec.level_8k else NO_LEVEL
    _verify_graph(graph, spec, level, "", 0, {})


def _verify_graph(
    graph: Graph, spec: Specification, level: Level, path: str, depth: int, variables: dict[str, Type]
) -> None:
    defined = set[Value]()
    for value in graph.inputs:
        if value in defined:
            raise Invalid(f"{path}the same value stands twice among the inputs")
        if value.op is not None:
            raise Invalid(f"{path}input {value.type} is made by {value.op.kind}")
        if value.dtype is DType.SHAPE:
            raise Invalid(f"{path}a shape cannot be an input of a graph")
        _verify_type(value.type, level, f"{path}input")
        defined.add(value)
    for index, op in enumerate(graph.ops):
        where = f"{path}op {index} {op.kind}"
        if op.kind not in RULES:
            raise Invalid(f"{where}: no such operator in TOSA 1.0")
        _verify_ssa(op, defined, where)
        try:
            _verify_op(op, spec, level, variables)
        except Invalid as error:
            reason = error.what.removeprefix(f"{op.kind}: ")
            raise Invalid(f"{where}: {reason}", where=", ".join(op.origin), fix=error.fix) from None
        for name, field in SIGNATURES[op.kind].attrs:
            if field is Field.GRAPH:
                if depth + 1 >= level.max_nesting:
                    raise Invalid(f"{where}: control flow is nested deeper than {level.max_nesting}")
                _verify_graph(get_graph(op.attrs, name), spec, level, f"{where} {name}: ", depth + 1, variables)
    for position, value in enumerate(graph.outputs):
        if value not in defined:
            raise Invalid(f"{path}output {position} {value.type} is made by no op of the graph")


def _verify_ssa(op: Op, defined: set[Value], where: str) -> None:
    for position, value in enumerate(op.inputs):
        if value not in defined:
            raise Invalid(f"{where}: input {position} {value.type} is not defined before its use")
    for position, value in enumerate(op.outputs):
        if value in defined:
            raise Invalid(f"{where}: output {position} {value.type} is defined twice")
        if value.op is not op:
            raise Invalid(f"{where}: output {position} {value.type} names another op as its maker")
        defined.add(value)


def _verify_op(op: Op, spec: Specification, level: Level, variables: dict[str, Type]) -> None:
    inferred = RULES[op.kind](op.inputs, op.attrs)
    if tuple(value.type for value in op.outputs) != inferred:
        have, want = (", ".join(map(str, types)) for types in ([v.type for v in op.outputs], inferred))
        raise Invalid(f"outputs are ({have}), but the rule gives ({want})")
    verify_legality(op, spec)
    for value in op.outputs:
        _verify_type(value.type, level, "output")
    for position in _CONSTANTS.get(op.kind, ()):
        maker = op.inputs[position].op
        if maker is None or maker.kind not in ("CONST", "CONST_SHAPE"):
            raise Invalid(f"{SIGNATURES[op.kind].operands[position]} must be a constant")
    if op.kind.startswith("VARIABLE"):
        _verify_variable(op, variables)
    if level is LEVEL_8K:
        _verify_level(op, level)
    if max(len(op.inputs), len(op.outputs)) > level.max_tensor_list:
        raise Invalid(f"has more than {level.max_tensor_list} tensors in a list")


def verify_legality(op: Op, spec: Specification) -> None:
    """Look the op's dtypes up in LEGAL."""
    legal = LEGAL[op.kind]
    dtypes = tuple(_get_slot(op, slot) for slot in legal.slots)
    if dtypes not in legal.rows:
        raise Invalid(f"TOSA 1.0 has no {op.kind} of {' '.join(dtypes)}")
    _verify_needs(legal.rows[dtypes], spec, " ".join(dtypes) or op.kind)
    if op.kind == "RESCALE" and (extension := _ROUNDING.get(get_text(op.attrs, "rounding_mode"))):
        _verify_needs((frozenset({extension}),), spec, get_text(op.attrs, "rounding_mode"))


def _verify_needs(alternatives: tuple[frozenset[str], ...], spec: Specification, what: str) -> None:
    if not any(all(spec.supports(part) for part in needs) for needs in alternatives):
        words = " or ".join("+".join(sorted(needs)) for needs in alternatives)
        raise Invalid(f"{what} needs {words}, which {spec} has not", fix=f"use a specification with {words}")


def _get_slot(op: Op, slot: str) -> str:
    if slot == "acc":
        return get_dtype(op.attrs, "acc_type").value
    if slot == "type":
        return get_type(op.attrs, "type").dtype.value
    return (op.outputs[0] if slot == "out" else op.inputs[int(slot)]).dtype.value


def _verify_type(type: Type, level: Level, what: str) -> None:
    if type.dtype is DType.SHAPE:
        return
    if type.rank > level.max_rank:
        raise Invalid(f"{what} {type} has rank {type.rank}; at most {level.max_rank} are allowed")
    if min(type.shape, default=1) < 1:
        raise Invalid(f"{what} {type} has an empty dimension; TOSA wants each at least 1")
    if count_bytes(type.size, type.dtype) >= 1 << level.max_log2_size:
        raise Invalid(f"{what} {type} is too large: 2**{level.max_log2_size} bytes or more")


def _verify_variable(op: Op, variables: dict[str, Type]) -> None:
    name = get_text(op.attrs, "name")
    if op.kind == "VARIABLE":
        if name in variables:
            raise Invalid(f"variable {name!r} is declared twice")
        variables[name] = get_type(op.attrs, "type")
        return
    used = op.inputs[0].type if op.kind == "VARIABLE_WRITE" else op.outputs[0].type
    if name not in variables:
        raise Invalid(f"variable {name!r} is not declared before")
    if variables[name] != used:
        raise Invalid(f"variable {name!r} is {variables[name]}, not {used}")


def _get_conv_kernel(op: Op) -> tuple[int, ...]:
    weight = op.inputs[1].shape
    sizes = weight[:2] if op.kind == "DEPTHWISE_CONV2D" else weight[1:-1]
    if op.kind == "TRANSPOSE_CONV2D":
        return sizes
    return tuple(k * d for k, d in zip(sizes, get_ints(op.attrs, "dilation", len(sizes)), strict=True))


def _get_ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    value = attrs[name]
    return get_ints(attrs, name, len(value) if isinstance(value, tuple) else 0)


def _get_scales(op: Op) -> tuple[int, ...]:
    y_n, y_d, x_n, x_d = get_shape(op.inputs[1], 4, "scale")
    # The level bounds the quotient: rounding up makes the comparison exact in integers.
    return (-(-y_n // y_d), -(-x_n // x_d))


#: What the 8K level bounds, beyond rank and size: op kinds, what it is called, the numbers, the limit's name.
_BOUNDS: tuple[tuple[str, str, Callable[[Op], tuple[int, ...]], str], ...] = (
    ("CONV2D CONV3D DEPTHWISE_CONV2D TRANSPOSE_CONV2D", "dilated kernel", _get_conv_kernel, "max_kernel"),
    (
        "CONV2D CONV3D DEPTHWISE_CONV2D AVG_POOL2D MAX_POOL2D",
        "pad",
        lambda op: _get_ints(op.attrs, "pad"),
        "max_kernel",
    ),
    ("TRANSPOSE_CONV2D", "out_pad", lambda op: _get_ints(op.attrs, "out_pad"), "max_kernel"),
    ("AVG_POOL2D MAX_POOL2D", "kernel", lambda op: _get_ints(op.attrs, "kernel"), "max_kernel"),
    ("FFT2D RFFT2D", "transform size", lambda op: op.inputs[0].shape[1:], "max_kernel"),
    (
        "CONV2D CONV3D DEPTHWISE_CONV2D TRANSPOSE_CONV2D AVG_POOL2D MAX_POOL2D",
        "stride",
        lambda op: _get_ints(op.attrs, "stride"),
        "max_stride",
    ),
    ("RESIZE", "scale", _get_scales, "max_scale"),
)


def _verify_level(op: Op, level: Level) -> None:
    limits = {"max_kernel": level.max_kernel, "max_stride": level.max_stride, "max_scale": level.max_scale}
    for kinds, what, get, limit in _BOUNDS:
        if op.kind in kinds.split() and max(get(op)) > limits[limit]:
            raise Invalid(f"{what} {get(op)} is above {limits[limit]}, the limit of level 8K")
