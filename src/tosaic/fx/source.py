"""The typed wrapper around torch.fx: graphs in ATen or edge dialect, from an exported program or a converted module.

torch.fx leaves operators, arguments and metadata untyped. Other packages read them through the functions here: in
`src`, the type checker allows unknown types in the package `fx` only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, TypeGuard

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from tosaic.core.location import find_innermost
from tosaic.fx.torch_compat import FakeTensor, OpOverload
from tosaic.ir.graph import FROM_TORCH, DType

DTYPES: Mapping[torch.dtype, DType] = {getattr(torch, name): dtype for name, dtype in FROM_TORCH.items()}

QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
QDQ = frozenset(
    f"quantized_decomposed.{verb}_per_{grain}.default"
    for verb in ("quantize", "dequantize")
    for grain in ("tensor", "channel")
)

#: ops that fill a tensor with one number: only shape and type of their input matter
FILLS = frozenset(
    (
        *("aten.full_like.default", "aten.zeros_like.default", "aten.ones_like.default"),
        *("aten.new_full.default", "aten.new_zeros.default", "aten.new_ones.default", "aten.fill.Scalar"),
    )
)

#: the tensors of a program by their names
Constants: TypeAlias = Mapping[str, torch.Tensor]

#: the type of a node's result in torch.fx: an example tensor, or several
Val: TypeAlias = "torch.Tensor | torch.SymInt | float | str | Sequence[Val] | None"

#: memory order of values: their dimensions from outer to inner
Orders: TypeAlias = dict[Node, tuple[int, ...]]

_WRITE = OutputKind.BUFFER_MUTATION

#: these hold by construction once shapes and dtypes are fixed
ASSERTIONS = frozenset({"aten._assert_tensor_metadata.default"})


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operator's schema. `type` is its type in torch: `Tensor`, `Tensor?`, `int[]` ..."""

    name: str
    type: str
    kwarg_only: bool
    has_default: bool
    default: Any


def torch_op(node: Node) -> Callable[..., Any]:
    """Return the torch overload behind a call of any dialect (an edge overload wraps it)."""
    target: Any = node.target
    return target if isinstance(target, OpOverload) else getattr(target, "_op", target)


def is_overload(target: object) -> TypeGuard[OpOverload]:
    """Tell whether the target of a call is an operator of torch: not a Python function or an edge overload."""
    return isinstance(target, OpOverload)


def aten(name: str) -> Callable[..., Any]:
    """Return the overload of a name without its namespace, as `add.Tensor`."""
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant)


def overload(node: Node) -> str:
    """Return the canonical name of a call, the same in every dialect; empty for a node that is no call."""
    if node.op != "call_function":
        return ""
    return "getitem" if node.target is operator.getitem else _name(torch_op(node))


@cache
def _name(op: Callable[..., Any]) -> str:
    return str(op)


def has_schema(node: Node) -> bool:
    """Tell whether a call is of a torch operator with a schema: not a Python function or a higher-order operator."""
    return hasattr(torch_op(node), "_schema")


def has_tag(node: Node, tag: torch.Tag) -> bool:
    """Tell whether torch gives a call's operator a tag."""
    return tag in getattr(torch_op(node), "tags", ())


@cache
def schema(op: Callable[..., Any]) -> tuple[Argument, ...]:
    """Return the arguments of a torch operator."""
    found: Any = op
    return tuple(
        Argument(
            a.name,
            str(a.type),
            a.kwarg_only,
            a.has_default_value(),
            a.default_value if a.has_default_value() else None,
        )
        for a in found._schema.arguments
    )


def bind(node: Node) -> dict[str, Any]:
    """Return the arguments of a call under the names of its schema, defaults filled in."""
    return bind_arguments(torch_op(node), node.args, node.kwargs)


def bind_arguments(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Bind positional and keyword arguments to the names of an operator's schema, defaults filled in."""
    bound: dict[str, Any] = {}
    positional = list(args)
    for argument in schema(op):
        if argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        elif positional and not argument.kwarg_only:
            bound[argument.name] = positional.pop(0)
        elif argument.has_default:
            bound[argument.name] = argument.default
    return bound


def input_node(node: Node, index: int = 0) -> Node:
    """Return a positional argument that must be a node."""
    argument = node.args[index]
    assert isinstance(argument, Node), f"argument {index} of `{node.name}` is not a node"
    return argument


def find_reachable(nodes: Iterable[Node], neighbors: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Find some nodes, and all that are reached from them over their neighbors."""
    found = set(nodes)
    queue = list(found)
    while queue:
        new = set(neighbors(queue.pop())) - found
        found |= new
        queue += new
    return found


def list_modules(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return a module and all modules inside it by their dotted paths; its own path is empty."""
    return dict(module.named_modules())


def fill(node: Node, like: torch.Tensor) -> torch.Tensor:
    """Compute the result of a call of FILLS, in plain memory order."""
    arguments = {k: v for k, v in bind(node).items() if k not in ("self", "memory_format")}
    return torch_op(node)(torch.empty(tuple(like.shape), dtype=like.dtype), **arguments)


@dataclass(eq=False)
class Source:
    """A graph with its constants. A constant without data (a fake program) gets plausible values.

    states    the buffers that the program writes to: their initial values, and the node whose result is written
    returned  the outputs of the model, without writes to its buffers
    modules   the graphs that a `torch.cond` and similar operators choose from
    orders    memory order of a delegate's inputs and outputs, if not in the order of their dimensions
    """

    graph: torch.fx.Graph
    constants: dict[Node, torch.Tensor]
    inputs: list[Node]
    states: dict[Node, tuple[torch.Tensor, Node]] = field(default_factory=dict)
    returned: Any = None
    modules: dict[Node, torch.nn.Module] = field(default_factory=dict)
    orders: Orders = field(default_factory=dict)
    _vals: dict[Node, Val] = field(default_factory=dict[Node, Val])

    @staticmethod
    def of_program(program: ExportedProgram, real: Constants | None = None) -> Source:
        """Make the source of a program; `real` supplies the data where `program` holds fake tensors."""
        signature = program.graph_signature
        placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        source = Source(program.graph, {}, [])
        results: Any = source.output().args[0]
        named = list(zip(signature.output_specs, results, strict=True))
        writes = {result.target: node for result, node in named if result.kind is _WRITE}
        source.returned = tuple(node for result, node in named if result.kind is not _WRITE)
        for node in program.graph.find_nodes(op="get_attr"):
            source.modules[node] = program.graph_module.get_submodule(str(node.target))
        for spec in signature.input_specs:
            node = placeholders[spec.arg.name]
            if spec.kind is InputKind.USER_INPUT or spec.kind is InputKind.TOKEN:
                source.inputs.append(node)
                continue
            if spec.target in writes:
                start = _lookup(program, spec.target)
                source.states[node] = (_invent(node.meta["val"]) if start is None else start, writes[spec.target])
                continue
            tensor = _lookup(program, spec.target)
            if tensor is None or _is_fake(tensor):
                tensor = (real or {}).get(spec.target or "")
            if tensor is None or _is_fake(tensor):
                tensor = _invent(node.meta["val"])
            source.constants[node] = tensor
        return source

    @staticmethod
    def of_module(module: GraphModule) -> Source:
        """Make the source of `export().module()` or `convert_pt2e`: parameters are get_attr nodes."""
        source = Source(module.graph, {}, [])
        source.returned = source.output().args[0]
        for node in module.graph.nodes:
            if node.op == "placeholder":
                source.inputs.append(node)
            elif node.op == "get_attr":
                value: Any = module
                for part in str(node.target).split("."):
                    value = getattr(value, part)
                if isinstance(value, torch.Tensor):
                    source.constants[node] = value
                elif isinstance(value, torch.nn.Module):
                    source.modules[node] = value
        return source

    def calls(self) -> Iterator[Node]:
        return (n for n in self.graph.nodes if n.op == "call_function")

    def output(self) -> Node:
        return next(n for n in reversed(self.graph.nodes) if n.op == "output")

    def val(self, node: Node) -> Val:
        """Return a tensor (or several) with the dtype and shape of the node's result.

        It is a fake tensor as in `node.meta["val"]`, the data itself for a constant, or a tensor on the device `meta`
        for a q/dq node: rely only on dtype and shape.
        """
        if node not in self._vals:
            self._vals[node] = self._find_val(node)
        return self._vals[node]

    def tensor(self, node: Node) -> torch.Tensor:
        """Return the `val` of a node whose result is one tensor; it may be the data of a constant."""
        found = self.val(node)
        assert isinstance(found, torch.Tensor), f"the result of `{node.name}` is not a tensor"
        return found

    def _find_val(self, node: Node) -> Val:
        if node in self.constants:
            return self.constants[node]
        val = node.meta.get("val")
        if val is not None:
            return val
        name = overload(node)
        if name in QDQ:
            # PT2E leaves its own nodes without a type: the shape is the input's, the dtype is in the arguments.
            dtype = torch.float32 if ".dequantize" in name else bind(node)["dtype"]
            return torch.empty(tuple(self.tensor(input_node(node)).shape), dtype=dtype, device="meta")
        if name == "getitem":
            several: Any = self.val(input_node(node))
            return several[node.args[1]]
        return None


def _lookup(program: ExportedProgram, name: str | None) -> torch.Tensor | None:
    found = program.state_dict.get(name or "", program.constants.get(name or ""))
    return found if isinstance(found, torch.Tensor) else None


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.device.type == "meta"


def _invent(fake: torch.Tensor) -> torch.Tensor:
    """Make values for a constant that only exists as a type: every value is a legal scale, weight or zero point."""
    shape = tuple(int(d) for d in fake.shape)
    if fake.dtype.is_floating_point:
        return torch.full(shape, 0.0078125, dtype=fake.dtype)
    # A tensor of wide integers may be zero points, and a single number that exir has made a tensor of may be a divisor.
    is_zero_points = shape and fake.dtype in (torch.int32, torch.int64)
    return torch.zeros(shape, dtype=fake.dtype) if is_zero_points else torch.ones(shape, dtype=fake.dtype)


def origin(node: Node) -> Node:
    """Find the call that a quantize or dequantize belongs to: PT2E's own nodes have no location."""
    waiting, seen = [node], {node}
    for one in waiting:
        if one.op == "call_function" and overload(one) not in QDQ:
            return one
        if one is node or one.op == "call_function":
            around = [n for n in (*one.all_input_nodes, *one.users) if n not in seen]
            seen.update(around)
            waiting += around
    return node


def source_line(node: Node) -> str:
    """Return file:line of the code behind a node. A bare nn.Sequential has no line but torch's."""
    frames: list[tuple[str, str]] = []
    for line in map(str.strip, (origin(node).meta.get("stack_trace") or "").splitlines()):
        if line.startswith('File "'):
            path, _, rest = line[6:].partition('", line ')
            frames.append((path, rest.split(",")[0]))
    return find_innermost(frames)


def module_stack(node: Node) -> list[tuple[str, str]]:
    """Return dotted paths and full class names of the modules around a node, outermost first."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    names = [kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}" for _, kind in stack]
    paths = [str(path).removeprefix("L['self'].").removeprefix("L__self__.") for path, _ in stack]
    return list(zip(paths, names, strict=True))


def list_enclosing(path: str) -> list[str]:
    """List a dotted path and those it is inside of, innermost first: a list of modules is never called itself."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def find_module(node: Node) -> tuple[str, str]:
    """Find the dotted path and the class of the nn.Module that a node belongs to."""
    path, kind = (module_stack(origin(node)) or [("", "")])[-1]
    return path, kind.rpartition(".")[2]
