"""Converts a calibrated graph: each observer becomes a quantize and a dequantize call.

`convert_pt2e` makes the same graph in many passes, and generates the Python code of all of it after each. Here the code
is generated once. A batch norm costs `convert_pt2e` seconds: it looks for patterns that only training leaves behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.traceback import NodeSource, NodeSourceAction
from torchao.quantization import pt2e

from tosaic.fx.source import QDQ, has_tag, overload, torch_op
from tosaic.fx.torch_compat import LazyGraphModule, OpOverload
from tosaic.quantization.prepare import ANNOTATION_KEY, attribute, is_written

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
_PER_CHANNEL = (torch.per_channel_symmetric, torch.per_channel_affine)
_CALLS = torch.ops.quantized_decomposed
#: what quantizes and what dequantizes
_PER_TENSOR_CALLS = (_CALLS.quantize_per_tensor.default, _CALLS.dequantize_per_tensor.default)
_PER_CHANNEL_CALLS = (_CALLS.quantize_per_channel.default, _CALLS.dequantize_per_channel.default)
#: metadata that a quantize call has from what it stores, and a dequantize call from its reader
_SHARED_META = ("stack_trace", "quantization_tag")


def can_convert(module: GraphModule) -> bool:
    """Tell whether all observers of a prepared module have fixed ranges of integers: `convert` handles no others."""
    observers = [module.get_submodule(str(node.target)) for node in module.graph.find_nodes(op="call_module")]
    return not has_inner_graphs(module) and all(map(has_fixed_range, observers))


def has_inner_graphs(module: GraphModule) -> bool:
    """Tell whether a module has branches or loops, which are graphs of their own."""
    return any(isinstance(child, GraphModule) for child in module.children())


def has_fixed_range(observer: object) -> bool:
    """Tell whether an observer finds one range of integers by calibration."""
    dtype, is_dynamic = getattr(observer, "dtype", None), getattr(observer, "is_dynamic", False)
    known = isinstance(observer, (pt2e.ObserverBase, pt2e.FakeQuantizeBase)) and not hasattr(observer, "convert")
    return known and dtype in _INTEGERS and not is_dynamic


def convert(module: GraphModule) -> GraphModule:
    """Return the quantized module of a calibrated one, which is used up."""
    conversion = _Conversion(module)
    for node in module.graph.find_nodes(op="call_module"):
        conversion.replace_observer(node)
    for node in [n for n in module.graph.nodes if _is_dequantize(n)]:
        _separate_readers(node)
    for node in module.graph.nodes:
        _share_meta(node)
    conversion.fold_constants()
    module.graph.eliminate_dead_code()
    converted = LazyGraphModule(module, module.graph)
    converted.meta.update(module.meta)
    return converted


class _Conversion:
    """A module while it is converted."""

    def __init__(self, module: GraphModule) -> None:
        self.module, self.graph = module, module.graph
        self.taken = {name for name, _ in (*module.named_buffers(recurse=False), *module.named_parameters("", False))}
        self.counts: dict[str, Iterator[int]] = {}
        #: what is computed from parameters and buffers alone
        self.known: dict[Node, torch.Tensor] = {}

    def replace_observer(self, node: Node) -> None:
        """Replace the call of an observer by a quantize and a dequantize call with its range."""
        if not node.users:
            self.graph.erase_node(node)
            return
        observer: Any = self.module.get_submodule(str(node.target))
        observed: Any = node.args[0]
        scale, zero_point = observer.calculate_qparams()
        bounds = observer.quant_min, observer.quant_max, observer.dtype
        with self.graph.inserting_before(node):
            if observer.qscheme in _PER_CHANNEL:
                found = self._add("_scale_", scale.detach().clone()), self._add("_zero_point_", zero_point.clone())
                parameters: tuple[Any, ...] = (*found, int(observer.ch_axis), *bounds)
            else:
                parameters = float(scale), int(zero_point), *bounds
            calls = _PER_CHANNEL_CALLS if observer.qscheme in _PER_CHANNEL else _PER_TENSOR_CALLS
            stored = self.graph.call_function(calls[0], (observed, *parameters))
            value = observed.meta.get("val")
            # It returns float32 unless told otherwise.
            other = {"out_dtype": value.dtype} if value is not None and value.dtype is not torch.float32 else {}
            read = self.graph.call_function(calls[1], (stored, *parameters), other)
        source = NodeSource(node, "convert", [NodeSourceAction.CREATE])
        stored.meta["from_node"] = read.meta["from_node"] = [source]
        node.replace_all_uses_with(read)
        self.graph.erase_node(node)

    def _add(self, prefix: str, tensor: torch.Tensor) -> Node:
        """Add a buffer to the module and return the node that reads it."""
        count = self.counts.setdefault(prefix, itertools.count())
        name = next(name for name in (f"{prefix}{index}" for index in count) if name not in self.taken)
        self.module.register_buffer(name, tensor)
        return self.graph.get_attr(name)

    def fold_constants(self) -> None:
        """Store what is quantized and depends on parameters and buffers alone in its quantized form."""
        for node in list(self.graph.nodes):
            if node.op == "get_attr":
                value = attribute(self.module, node)
                if isinstance(value, torch.Tensor) and not is_written(node):
                    self.known[node] = value
            elif self._is_known(node):
                args, kwargs = (map_arg(a, lambda n: self.known[n]) for a in (node.args, node.kwargs))
                self.known[node] = torch_op(node)(*args, **kwargs)
                if overload(node) in QDQ:
                    self._store(node)

    def _is_known(self, node: Node) -> bool:
        inputs = node.all_input_nodes
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or not inputs:
            return False
        if _is_dequantize(node) or has_tag(node, torch.Tag.nondeterministic_seeded):
            return False
        return all(isinstance(self.known.get(n), torch.Tensor) for n in inputs)

    def _store(self, node: Node) -> None:
        with self.graph.inserting_before(node):
            constant = self._add("_frozen_param", self.known[node])
        constant.meta.update(node.meta)
        node.replace_all_uses_with(constant)
        self.graph.erase_node(node)
        constant.name = node.name


def _is_dequantize(node: Node) -> bool:
    return node.op == "call_function" and overload(node) in QDQ and ".dequantize" in overload(node)


def _is_quantize(node: Node) -> bool:
    return node.op == "call_function" and overload(node) in QDQ and ".quantize" in overload(node)


def _is_quantized(node: Node) -> bool:
    """Tell whether an annotation asks for anything."""
    annotation = node.meta.get(ANNOTATION_KEY)
    return annotation is not None and bool(annotation.input_qspec_map or annotation.output_qspec is not None)


def _separate_readers(node: Node) -> None:
    """Let each quantized reader of a dequantized tensor have a dequantize call of its own."""
    readers = list(node.users)
    if len(readers) < 2:
        return
    for reader in filter(_is_quantized, readers):
        with node.graph.inserting_after(node):
            reader.replace_input_with(node, node.graph.node_copy(node))


def _share_meta(node: Node) -> None:
    """Copy a node's location to the calls that dequantize its inputs and quantize its result."""
    if not _is_quantized(node):
        return
    annotation = node.meta[ANNOTATION_KEY]
    for read in (a for a in node.args if isinstance(a, Node) and _is_dequantize(a)):
        stored = read.all_input_nodes[0]
        if _find_source(read) in annotation.input_qspec_map and _is_quantize(stored):
            _copy_meta(node, read)
    if annotation.output_qspec is not None and node.users:
        last = list(node.users)[-1]
        if _is_quantize(last):
            _copy_meta(node, last)


def _find_source(node: Node) -> Node:
    while _is_dequantize(node) or _is_quantize(node):
        node = node.all_input_nodes[0]
    return node


def _copy_meta(giver: Node, taker: Node) -> None:
    taker.meta |= {key: giver.meta[key] for key in _SHARED_META if key in giver.meta}
