"""Prepares a graph for annotation: guards are removed, composites decomposed, numbers turned into buffers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from tosaic.core.errors import Unsupported
from tosaic.core.internal import contained
from tosaic.fx.arrays import to_torch
from tosaic.fx.source import FILLS, aten, bind, fill, has_schema, has_tag, input_node, overload, schema, torch_op
from tosaic.fx.torch_compat import FakeTensor, FakeTensorMode, OpOverload
from tosaic.ir.graph import Array
from tosaic.lower.arguments import is_sequence
from tosaic.lower.aten import Aten
from tosaic.ops import registry

#: Metadata key of PT2E's annotation of a node.
ANNOTATION_KEY = "quantization_annotation"
#: Metadata key: whether a node depends on parameters alone.
CONSTANT = "tosaic_constant"
#: Metadata key of the configuration that a user sets for single nodes, as a tuple of one: None is a choice too.
CONFIG = "tosaic_config"
#: Metadata that a decomposition copies from the node it replaces.
KEPT_META = ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "from_node", "seq_nr", CONFIG)


def strip_guards(module: GraphModule) -> None:
    """Remove the shape guards that `export().module()` inserts: they reject other batch sizes."""
    for node in list(module.graph.nodes):
        if node.op == "call_module" and not node.users and str(node.target) == "_guards_fn":
            module.graph.erase_node(node)
            module.delete_submodule(str(node.target))


def make_functional(module: GraphModule) -> None:
    """Turn `relu_` into `relu` where the difference is not visible, or is visible in an input of the model only.

    An input gets what the model writes to a part of it at the end. What an elementwise operator would leave in it, such
    as a relu in place, is dropped.
    """
    results: dict[Node, Node] = {}
    written: list[Node] = []
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or not mutates(node):
            continue
        name, twin = overload(node), _find_functional(torch_op(node))
        if twin is None:
            continue
        given = next((i for i, result in results.items() if result is node.args[0]), node.args[0])
        if is_private(node) and given not in results:
            node.target = twin
        elif isinstance(given, Node) and registry().find(str(twin)) and _detach(module.graph, node, given):
            node.target = twin
            results[given] = node
            written += [given] if registry().find(name) is None else []
    with module.graph.inserting_before(module.graph.output_node()):
        for given in dict.fromkeys(written):
            write = module.graph.call_function(torch.ops.aten.copy_.default, (given, results[given]))
            write.meta["val"] = given.meta["val"]


def _detach(graph: Graph, node: Node, given: Node) -> bool:
    """Let what comes after a call that changes an input of the model read its result; False if that is not possible."""
    changed = input_node(node)
    if given.op != "placeholder" or _type(given) != _type(node):
        return False
    order = {n: i for i, n in enumerate(graph.nodes)}
    if any(_may_view(user) for user in changed.users if order[user] < order[node]):
        return False
    for user in [u for u in changed.users if order[u] > order[node]]:
        user.replace_input_with(changed, node)
    return True


def _type(node: Node) -> tuple[torch.Size, torch.dtype]:
    value = node.meta["val"]
    return value.shape, value.dtype


def _may_view(node: Node) -> bool:
    """Tell whether the result of a call may be in the memory of its operand."""
    record = registry().find(overload(node)) if node.op == "call_function" else None
    return record is None or record.moves


def _find_functional(op: Callable[..., object]) -> OpOverload | None:
    """Find the overload that returns what an in-place one writes: `pow.Tensor_Scalar` for `pow_.Scalar`."""
    packet, name, _ = str(op).split(".")
    twin = getattr(getattr(torch.ops, packet), name.rstrip("_"), None) if name.endswith("_") else None
    overloads = [getattr(twin, variant) for variant in twin.overloads()] if twin is not None else []
    return next((o for o in overloads if _list_arguments(o) == _list_arguments(op)), None)


def _list_arguments(op: Callable[..., object]) -> list[tuple[str, object]]:
    """List the arguments of an operator; the name of the first one may differ: `dropout` calls it `input`."""
    return [(argument.name if index else "", argument.type) for index, argument in enumerate(schema(op))]


def mutates(node: Node) -> bool:
    """Tell whether a call changes one of its arguments; a data movement only changes what autograd sees of it."""
    found, record = getattr(torch_op(node), "_schema", None), registry().find(overload(node))
    return found is not None and bool(found.is_mutable) and not (record is not None and record.moves)


def is_private(node: Node) -> bool:
    """Tell whether the tensor that an in-place call changes has no other reader, not even through a view."""
    changed = node.args[0]
    while isinstance(changed, Node) and changed.op == "call_function" and len(changed.users) == 1:
        record = registry().find(overload(changed))
        if overload(changed) in FILLS or (record is not None and not record.moves and not _is_view(changed)):
            return True
        if not changed.args or not isinstance(changed.args[0], Node):
            # What is made of no tensor at all is in memory of its own.
            return record is not None or not changed.all_input_nodes
        changed = changed.args[0]
    return False


def _is_view(node: Node) -> bool:
    """Tell whether the schema of a call says that its result is in the memory of an operand, and unchanged."""
    returns = getattr(getattr(torch_op(node), "_schema", None), "returns", ())
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


class GraphAten:
    """Runs a `decompose` function on an fx graph: ATen operators are inserted before the node they replace.

    has_integers  whether the target computes with integers
    """

    def __init__(self, module: GraphModule, node: Node, has_integers: bool = True) -> None:
        self.module, self.node, self.has_integers = module, node, has_integers

    def __call__(self, name: str, /, *args: Any, **kwargs: Any) -> Node:
        target = aten(name)
        new = self.module.graph.call_function(target, args, kwargs)
        for key in KEPT_META:
            if key in self.node.meta:
                new.meta[key] = self.node.meta[key]
        new.meta["val"] = self._type(target, args, kwargs)
        return new

    def _type(self, target: Callable[..., object], args: Any, kwargs: Any) -> object:
        mode = _find_mode(self.module.graph)
        swap = map_arg
        assert mode is not None
        with mode, torch.no_grad():
            return target(*swap(args, lambda n: n.meta["val"]), **swap(kwargs, lambda n: n.meta["val"]))

    def constant(self, array: Array, /) -> Node:
        return buffer(self.module, to_torch(np.asarray(array, order="C")), self.node)

    def shape(self, value: Node, /) -> tuple[int, ...]:
        return tuple(int(d) for d in value.meta["val"].shape)

    def data(self, value: Node, /) -> Array | None:
        return attribute(self.module, value).detach().numpy() if value.op == "get_attr" else None

    def is_bool(self, value: Node, /) -> bool:
        return value.meta["val"].dtype is torch.bool

    def same_dtype(self, value: Node, other: Node, /) -> bool:
        return value.meta["val"].dtype == other.meta["val"].dtype

    def as_indices(self, value: Node, /) -> Node:
        if _is_cast(value):
            return value.all_input_nodes[0]
        return self("to.dtype", value, torch.int32) if self.is_int64(value) else value

    def as_numbers(self, value: Node, /) -> Node:
        narrow = self.as_indices(value)
        return narrow if self.has_integers else self("to.dtype", narrow, torch.float32)

    def made_by(self, value: Node, /) -> tuple[str, tuple[Any, ...]]:
        return ("", ()) if value.kwargs else (str(value.target), value.args)

    def is_int64(self, value: Node, /) -> bool:
        """Tell whether numbers are known only at run time and may need more than 32 bits."""
        return value.op != "get_attr" and value.meta["val"].dtype is torch.int64 and not _is_cast(value)

    def again(self, arguments: Mapping[str, object], /) -> Node:
        target = torch_op(self.node)
        named = {a.name for a in schema(target) if a.kwarg_only}
        args = [v for k, v in arguments.items() if k not in named]
        return self(str(target).removeprefix("aten."), *args, **{k: v for k, v in arguments.items() if k in named})


def _is_cast(value: Node) -> bool:
    """Tell whether int64 numbers are a cast of int32 ones."""
    record = registry().find(overload(value)) if value.op == "call_function" else None
    if value.meta["val"].dtype is not torch.int64 or record is None or not record.moves:
        return False
    return [n.meta["val"].dtype for n in value.all_input_nodes] == [torch.int32]


def buffer(module: GraphModule, tensor: torch.Tensor, before: Node) -> Node:
    """Add a constant to the module and return the node that reads it."""
    taken = dict(module.named_buffers(recurse=False))
    name = next(name for name in map("_tosaic_constant_{}".format, itertools.count()) if name not in taken)
    module.register_buffer(name, tensor)
    node = module.graph.get_attr(name)
    mode = _find_mode(module.graph)
    node.meta["val"] = mode.from_tensor(tensor, static_shapes=True) if mode is not None else tensor
    return node


def _find_mode(graph: Graph) -> FakeTensorMode | None:
    """Find the mode that the values of a graph were computed in: one for all of them."""
    values = (node.meta.get("val") for node in graph.nodes)
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)


def fold_constants(module: GraphModule) -> None:
    """Fold nodes that depend on neither inputs nor parameters into buffers: `torch.eye(4)`, a mask made of it.

    Their values are needed before any dialect changes them, and they are not quantized step by step.
    """
    known: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and _is_fixed(module, node):
            known[node] = attribute(module, node)
        elif is_foldable(node) and overload(node) in FILLS:
            known[node] = fill(node, node.meta["val"])
        elif is_foldable(node) and known.keys() >= set(node.all_input_nodes):
            args, kwargs = (map_arg(a, lambda n: known[n]) for a in (node.args, node.kwargs))
            with torch.no_grad():
                known[node] = torch_op(node)(*args, **kwargs)
    for node in reversed(known):
        if node.op != "call_function":
            continue
        if node.users and isinstance(known[node], torch.Tensor):
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(buffer(module, known[node].clone(), node))
        if not node.users:
            module.graph.erase_node(node)


def is_foldable(node: Node) -> bool:
    """Tell whether a call returns the same tensors each time for the same arguments."""
    value = node.meta.get("val")
    values: list[Any] = list(value) if is_sequence(value) else [value]
    if node.op != "call_function" or not all(isinstance(v, torch.Tensor) for v in values):
        return False
    if mutates(node) or is_written(node):
        return False
    seeded = has_tag(node, torch.Tag.nondeterministic_seeded)
    return not seeded and not any(isinstance(d, torch.SymInt) for v in values for d in v.shape)


def is_written(node: Node) -> bool:
    """Tell whether a later call changes a tensor or a view of it in place: as a buffer it would keep the change."""
    views = [node]
    for one in views:
        for user in (u for u in one.users if u.op == "call_function"):
            if mutates(user):
                return True
            record = registry().find(overload(user))
            views += [user] if record is not None and record.moves else []
    return False


def attribute(module: GraphModule, node: Node) -> Any:
    """Return the attribute that a get_attr node reads."""
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _is_fixed(module: GraphModule, node: Node) -> bool:
    """Tell whether a get_attr node reads a buffer that is never written; parameters may still be trained."""
    value = attribute(module, node)
    written = any(mutates(user) for user in node.users if user.op == "call_function")
    return isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter) and not written


def decompose_composites(module: GraphModule, wanted: Callable[[Node], bool], has_integers: bool = True) -> None:
    """Decompose composites (softmax, layer_norm, attention ...) into their ops, to observe their ranges."""
    changed = True
    while changed:
        changed = False
        for node in list(module.graph.nodes):
            record = registry().find(overload(node)) if node.op == "call_function" else None
            if record is None or record.decompose is None or not wanted(node):
                continue
            # Integers and booleans may be moved too.
            if not (any(map(is_float, (node, *node.all_input_nodes))) or record.moves or record.looks_up):
                continue
            operators: Aten[Node] = GraphAten(module, node, has_integers)
            with module.graph.inserting_before(node):
                try:
                    with contained(f"decomposing `{node.name}` ({overload(node)})"):
                        new = record.decompose(operators, **bind(node))
                except Unsupported:
                    continue
            if new is None:
                continue
            replace_result(module.graph, node, new)
            changed = True
    # A mask that a decomposition has replaced would still be observed, with its infinities.
    module.graph.eliminate_dead_code()


def mark_constants(graph: Graph) -> None:
    """Mark the nodes that read a parameter or buffer, or depend on these alone: torch folds such nodes."""
    for node in graph.nodes:
        inputs = node.all_input_nodes
        computed = bool(inputs) and is_foldable(node) and all(n.meta[CONSTANT] for n in inputs)
        node.meta[CONSTANT] = (node.op == "get_attr" and not is_written(node)) or computed


def split_biases(module: GraphModule, wanted: Callable[[Node], bool]) -> None:
    """Add a bias after the product if it cannot be part of the accumulator: computed at run time, or one per row."""
    mark_constants(module.graph)
    for node in list(module.graph.nodes):
        record = registry().find(overload(node)) if node.op == "call_function" else None
        if record is None or record.quant != "weight" or not wanted(node) or not is_float(node):
            continue
        arguments = bind(node)
        weight, bias = arguments["weight"], arguments["bias"]
        if not isinstance(bias, Node) or not weight.meta[CONSTANT]:
            continue
        if bias.meta[CONSTANT] and bias.meta["val"].dim() == 1:
            continue
        with module.graph.inserting_before(node):
            emit = GraphAten(module, node)
            product = emit(overload(node).removeprefix("aten."), *{**arguments, "bias": None}.values())
            # The bias of a convolution has one number per channel, and the spatial dimensions come after the channels.
            sizes = (1,) * (weight.meta["val"].dim() - 2)
            shaped = emit("reshape.default", bias, [*emit.shape(bias), *sizes]) if sizes else bias
            node.replace_all_uses_with(emit("add.Tensor", product, shaped))
        module.graph.erase_node(node)


def replace_result(graph: Graph, node: Node, result: Any) -> None:
    """Replace the result of a call; users of one of several results get that result directly."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(result[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)


def is_float(node: Node) -> bool:
    value = node.meta.get("val")
    value = value[0] if is_sequence(value) and value else value
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def find_other_float(graph: Graph) -> str | None:
    """Find the float type of a model that computes in float, but nowhere in float32; None for any other model."""
    values = [n.meta.get("val") for n in graph.nodes]
    found = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    names = sorted(str(dtype).removeprefix("torch.") for dtype in found)
    return names[0] if names and torch.float32 not in found else None


def lift_numbers(module: GraphModule) -> None:
    """Turn the number in `x * 2` and the integers in `x + torch.arange(4)` into float buffers.

    Every dialect finds a number under the same name then, and the integers are quantized.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not is_float(node) or not has_schema(node):
            continue
        for index, argument in enumerate(schema(torch_op(node))):
            if index >= len(node.args) or argument.type != "Tensor":
                continue
            number: Any = node.args[index]
            if isinstance(number, Node) and number.op == "get_attr" and _is_promoted(node, number):
                number = attribute(module, number).float()
            elif isinstance(number, (int, float)) and not isinstance(number, bool):
                number = torch.tensor(float(number))
            else:
                continue
            with module.graph.inserting_before(node):
                node.update_arg(index, buffer(module, number, node))


def _is_promoted(node: Node, operand: Node) -> bool:
    """Tell whether torch converts an integer operand to float: the operator is elementwise and has a float result."""
    value = operand.meta.get("val")
    integer = isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype is not torch.bool
    return integer and has_tag(node, torch.Tag.pointwise)
