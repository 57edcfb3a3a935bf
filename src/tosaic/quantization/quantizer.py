"""The PT2E quantizer: it annotates a graph by the `quant` rule of each operator record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import quantizer as pt2e

from tosaic.core.errors import Invalid
from tosaic.fx.control_flow import unroll_module
from tosaic.fx.modes import inline
from tosaic.fx.observers import along, with_args
from tosaic.fx.source import bind, list_enclosing, module_stack, overload, torch_op
from tosaic.fx.torch_compat import OpOverload
from tosaic.lower.registry import Record
from tosaic.ops import registry
from tosaic.quantization import prepare
from tosaic.quantization.biases import derive_bias, fit_weight
from tosaic.quantization.decompose import decompose_unknown
from tosaic.quantization.float32 import convert_to_float32
from tosaic.quantization.functions import fuse_functions
from tosaic.quantization.loops import share_states
from tosaic.quantization.powers import keep_powers
from tosaic.quantization.prepare import ANNOTATION_KEY, CONFIG, CONSTANT
from tosaic.quantization.recurrent import LOOP
from tosaic.quantization.states import share_buffers
from tosaic.quantization.widen_accumulated import widen_sums

#: how a tensor is quantized; None leaves it in float
_Spec: TypeAlias = pt2e.QuantizationSpecBase | None
_PER_CHANNEL = (torch.per_channel_symmetric, torch.per_channel_affine)


class NodeFinder(Protocol):
    """Selects nodes of an exported graph, as the node finders of ExecuTorch do."""

    def find_nodes(self, model: GraphModule) -> Iterator[Node]:
        """Return the nodes that the finder selects."""
        ...


class Configuration(Protocol):
    """How to quantize a part of a model: a QuantizationConfig, or that of ExecuTorch; None leaves a tensor in float."""

    @property
    def input_activation(self) -> pt2e.QuantizationSpecBase | None: ...
    @property
    def output_activation(self) -> pt2e.QuantizationSpecBase | None: ...
    @property
    def weight(self) -> pt2e.QuantizationSpec | None: ...
    @property
    def bias(self) -> Any: ...


class TosaQuantizer(pt2e.Quantizer):
    """Quantizes the nodes that have a configuration.

    The configuration of a node is that of the last setting for single nodes that selects it, else that of the innermost
    module that is set by name, else by type, else the global one.

    stores_int16  whether the target stores tensors of 16 bits
    """

    def __init__(self, *, stores_int16: bool = True) -> None:
        super().__init__()
        self._stores_int16 = stores_int16
        self._global: Configuration | None = None
        self._io: Configuration | None = None
        self._by_name: dict[str, Configuration | None] = {}
        self._by_type: dict[Callable[..., torch.nn.Module] | str, Configuration | None] = {}
        self._by_node: list[tuple[Callable[[GraphModule], Iterator[Node]], Configuration | None]] = []
        self._others: list[pt2e.Quantizer] = []
        self._rolled = False

    def keep_rolled(self) -> Self:
        """Return a quantizer that leaves recurrent layers rolled; the caller unrolls them after `convert_pt2e`."""
        kept = copy(self)
        kept._rolled = True
        return kept

    @property
    def global_config(self) -> Any:
        """The configuration of everything that no other setting names."""
        return self._global

    @global_config.setter
    def global_config(self, value: Configuration | None) -> None:
        self.set_global(value)

    @property
    def io_config(self) -> Any:
        """The configuration of the model's inputs and outputs."""
        return self._io

    @io_config.setter
    def io_config(self, value: Configuration | None) -> None:
        self.set_io(value)

    @property
    def module_name_config(self) -> dict[str, Any]:
        """The configurations of submodules by their names."""
        return dict(self._by_name)

    @module_name_config.setter
    def module_name_config(self, value: dict[str, Configuration | None]) -> None:
        self._by_name = {name: _check_config(config) for name, config in value.items()}

    @property
    def module_type_config(self) -> dict[Callable[..., torch.nn.Module] | str, Any]:
        """The configurations of submodules by their classes."""
        return dict(self._by_type)

    @module_type_config.setter
    def module_type_config(self, value: dict[Callable[..., torch.nn.Module] | str, Configuration | None]) -> None:
        self._by_type = {kind: _check_config(config) for kind, config in value.items()}

    def set_global(self, quantization_config: Configuration | None) -> Self:
        """Set the configuration of everything that no other setting names; None leaves it in float."""
        self._global = _check_config(quantization_config)
        return self

    def set_io(self, quantization_config: Configuration | None) -> Self:
        """Set the configuration of the model's inputs and outputs."""
        self._io = _check_config(quantization_config)
        return self

    def set_module_name(self, module_name: str, quantization_config: Configuration | None) -> Self:
        """Set the configuration of a submodule and all inside it; None leaves it in float."""
        self._by_name[module_name] = _check_config(quantization_config)
        return self

    def set_module_type(
        self, module_type: Callable[..., torch.nn.Module] | str, quantization_config: Configuration | None
    ) -> Self:
        """Set the configuration of all submodules of a class, or of its full name; None leaves them in float."""
        self._by_type[module_type] = _check_config(quantization_config)
        return self

    def set_node_finder(self, quantization_config: Configuration | None, node_finder: NodeFinder) -> Self:
        """Set the configuration of the nodes that a finder selects in the exported graph; None leaves them in float."""
        self._by_node.append((node_finder.find_nodes, _check_config(quantization_config)))
        return self

    def set_node_target(self, node_target: OpOverload, quantization_config: Configuration | None) -> Self:
        """Set the configuration of all calls of an operator; None leaves them in float."""
        return self._set_nodes(lambda node: node.target == node_target, quantization_config)

    def set_node_name(self, node_name: str, quantization_config: Configuration | None) -> Self:
        """Set the configuration of the node of a name in the exported graph; None leaves it in float."""
        return self._set_nodes(lambda node: node.name == node_name, quantization_config)

    def _set_nodes(self, selects: Callable[[Node], bool], config: Configuration | None) -> Self:
        self._by_node.append((lambda model: filter(selects, model.graph.nodes), _check_config(config)))
        return self

    def add_quantizer(self, quantizer: pt2e.Quantizer) -> Self:
        """Let another quantizer annotate first, before those that were added earlier; what it annotates is kept."""
        self._others.insert(0, quantizer)
        return self

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Transform the graph into the form that is annotated; parameters stay parameters."""
        prepare.strip_guards(model)
        for quantizer in self._others:
            model = quantizer.transform_for_annotation(model)
        for find, config in self._by_node:
            for node in find(model):
                node.meta[CONFIG] = (config,)
        inline(model)
        unroll_module(model)
        if prepare.find_other_float(model.graph) is not None:
            convert_to_float32(model)
        prepare.make_functional(model)
        decompose_unknown(model, lambda n: self._config(n) is not None, rolled=self._rolled)
        prepare.fold_constants(model)
        prepare.decompose_composites(model, lambda n: self._config(n) is not None)
        prepare.split_biases(model, lambda n: self._config(n) is not None)
        prepare.lift_numbers(model)
        model.graph.lint()
        # Code is generated when observers are inserted.
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate every node with its inputs and outputs that are observed."""
        prepare.mark_constants(model.graph)
        for quantizer in self._others:
            quantizer.annotate(model)
        own: set[Node] = set()
        for node in model.graph.nodes:
            if node.op == "call_function" and ANNOTATION_KEY not in node.meta and not _is_constant(node):
                config = self._config(node)
                if config is not None:
                    _annotate(node, config)
                if ANNOTATION_KEY in node.meta:
                    own.add(node)
        widen_sums(model.graph, stores_int16=self._stores_int16)
        share_states(model.graph)
        share_buffers(model.graph)
        if self._io is not None:
            _annotate_io(model, self._io)
        fuse_functions(model.graph, own)
        keep_powers(model, own)
        return model

    def validate(self, model: GraphModule) -> None:
        """Check that all parameters and buffers are on one device."""
        for quantizer in self._others:
            quantizer.validate(model)
        devices = {str(t.device) for t in (*model.parameters(), *model.buffers())}
        if len(devices) > 1:
            raise Invalid(
                "the model is on several devices",
                why=", ".join(sorted(devices)),
                fix="move the model to one device with model.to('cpu') before export",
            )

    def _config(self, node: Node) -> Configuration | None:
        if CONFIG in node.meta:
            return node.meta[CONFIG][0]
        names, types = _list_owners(node)
        for name in (name for path in reversed(names) for name in (path, *list_enclosing(path))):
            if name in self._by_name:
                return self._by_name[name]
        by_type = {_type_name(kind): config for kind, config in self._by_type.items()}
        for kind in reversed(types):
            if kind in by_type:
                return by_type[kind]
        return self._global


def _check_config(config: Configuration | None) -> Configuration | None:
    missing = [f for f in ("input_activation", "output_activation", "weight", "bias") if not hasattr(config, f)]
    if config is not None and missing:
        raise Invalid(
            f"`{type(config).__name__}` is not a quantization configuration",
            why=f"it has no attribute {', '.join(f'`{m}`' for m in missing)}",
            fix="use get_symmetric_quantization_config(), or None to leave a part in float",
        )
    return config


def _type_name(module_type: Callable[..., torch.nn.Module] | str) -> str:
    return module_type if isinstance(module_type, str) else f"{module_type.__module__}.{module_type.__qualname__}"


def _list_owners(node: Node) -> tuple[list[str], list[str]]:
    """Return paths and class names of the modules around a node, outermost first."""
    stack = module_stack(node)
    return [path for path, _ in stack], [kind for _, kind in stack]


def _annotate(node: Node, config: Configuration) -> None:
    record = registry().find(overload(node))
    kind = _kind(node, record)
    if kind == "weight":
        _annotate_weight(node, config)
    elif kind == "share":
        _annotate_share(node, config)
    elif kind in ("observe", "exact"):
        _annotate_observe(node, config, record)


def _kind(node: Node, record: Record | None) -> str:
    if record is None:
        # An elementwise op without a record becomes a table.
        tags = getattr(torch_op(node), "tags", ())
        return "observe" if torch.Tag.pointwise in tags else "none"
    if callable(record.quant):
        return record.quant({k: v.meta["val"] if isinstance(v, Node) else v for k, v in bind(node).items()})
    return record.quant


def _annotate_weight(node: Node, config: Configuration) -> None:
    arguments = bind(node)
    x = arguments.get("input")
    weight, bias = arguments.get("weight"), arguments.get("bias")
    if not isinstance(x, Node) or not isinstance(weight, Node) or not _is_constant(weight):
        return
    if not _is_float(x) or not _is_float(weight):
        return
    kernel = _weight_spec(config.weight, arguments)
    inputs: dict[Node, Any] = {x: config.input_activation, weight: kernel}
    if isinstance(bias, Node) and kernel is not None and config.input_activation is not None:
        # ExecuTorch's configurations have a function that derives it.
        is_derived = config.bias is None or callable(config.bias)
        spec = derive_bias(x, weight, node, kernel) if is_derived else config.bias
        if getattr(spec, "dtype", None) is torch.int32:
            inputs[bias] = spec
        if is_derived:
            inputs[weight] = fit_weight(x, weight, bias, node, kernel)
    _set(node, inputs, config)


def _weight_spec(spec: pt2e.QuantizationSpec | None, arguments: dict[str, Any]) -> pt2e.QuantizationSpec | None:
    """Set the channel axis of a transposed convolution: dimension 1, or both where it is grouped."""
    if (
        spec is None
        or spec.qscheme not in _PER_CHANNEL
        or not arguments.get("transposed", "output_padding" in arguments)
    ):
        return spec
    groups = arguments["groups"]
    if groups == 1:
        return replace(spec, ch_axis=1, observer_or_fake_quant_ctr=along(1, spec.observer_or_fake_quant_ctr))
    depthwise = tuple(arguments["weight"].meta["val"].shape[:2]) == (groups, 1)
    return spec if depthwise else _per_tensor(spec)


def _annotate_share(node: Node, config: Configuration) -> None:
    floats = [n for n in node.all_input_nodes if _is_float(n)]
    if config.input_activation is None:
        return
    if not floats:
        # A cast of integers to float.
        _set(node, {}, config)
        return
    # torchao's search for shared ranges does not end where a tensor shares the range of one that is computed from it.
    first = min(floats)
    shared = pt2e.SharedQuantizationSpec((first, node))
    inputs = {first: config.input_activation, **{n: shared for n in floats if n is not first}}
    _set(node, inputs, config, output=shared)


def _annotate_observe(node: Node, config: Configuration, record: Record | None) -> None:
    floats = [n for n in node.all_input_nodes if _is_float(n) and not _is_number(n)]
    # A choice between two numbers has a float result without a float tensor among its inputs.
    if not floats and not _is_float(node):
        return
    inputs = dict.fromkeys(floats, config.input_activation)
    if record is not None and record.reads_weight_matrix and config.weight is not None:
        inputs |= {n: _matrix_spec(config.weight, node, n) for n in floats if _is_constant(n)}
    if record is not None and (record.bounds or record.folds_into_producer):
        _fuse(node, inputs, record)
    if record is not None and record.quant == "exact":
        inputs = {n: s for n, s in inputs.items() if not _is_constant(n)}
    _set(node, inputs, config)


def _fuse(node: Node, inputs: dict[Node, _Spec], record: Record) -> None:
    """Fuse conv -> relu: the value between them is never stored, so it is not observed either."""
    before = node.args[0]
    if not isinstance(before, Node):
        return
    annotation = before.meta.get(ANNOTATION_KEY)
    if annotation is None or len(before.users) != 1 or annotation.output_qspec is None:
        return
    if LOOP in before.meta:  # the next step reads it too
        return
    producer = registry().find(overload(before)) if before.op == "call_function" else None
    if record.folds_into_producer and (producer is None or producer.quant != "weight"):
        return
    # It rounds to the range of its input, so a narrower one would show the rounding.
    if producer is not None and producer.quant == "share" and not producer.moves:
        return
    annotation.output_qspec = None
    inputs.pop(before, None)


def _set(node: Node, inputs: Mapping[Node, _Spec], config: Configuration, output: _Spec = None) -> None:
    spec = config.output_activation if output is None else output
    results = [u for u in node.users if overload_or_empty(u) == "getitem"]
    if isinstance(node.meta.get("val"), (tuple, list)):
        for result in results:
            if _is_float(result):
                result.meta[ANNOTATION_KEY] = pt2e.QuantizationAnnotation({}, spec, _annotated=True)
        spec = None
    elif not _is_float(node):
        spec = None
    kept: dict[Node, _Spec] = {n: s for n, s in inputs.items() if s is not None}
    node.meta[ANNOTATION_KEY] = pt2e.QuantizationAnnotation(kept, spec, _annotated=True)


def _annotate_io(model: GraphModule, config: Configuration) -> None:
    for node in model.graph.nodes:
        if node.op == "placeholder" and _is_float(node):
            node.meta[ANNOTATION_KEY] = pt2e.QuantizationAnnotation(
                {}, config.output_activation or config.input_activation, _annotated=True
            )
        elif node.op == "output":
            floats = {n: config.input_activation for n in node.all_input_nodes if _is_float(n)}
            node.meta[ANNOTATION_KEY] = pt2e.QuantizationAnnotation(floats, None, _annotated=True)


def overload_or_empty(node: Node) -> str:
    return overload(node) if node.op == "call_function" else ""


def _matrix_spec(spec: pt2e.QuantizationSpec, node: Node, constant: Node) -> pt2e.QuantizationSpec:
    """Choose the spec of a product's constant: a second factor of two dimensions is a layer's weight, transposed."""
    layer = node.args[1] is constant and node.args[0] is not constant and constant.meta["val"].dim() == 2
    return replace(spec, ch_axis=1) if layer and spec.qscheme in _PER_CHANNEL else _per_tensor(spec)


def _per_tensor(spec: pt2e.QuantizationSpec) -> pt2e.QuantizationSpec:
    """Make a spec per tensor: a weight that is not a layer's own has no meaningful channel axis."""
    if spec.qscheme not in _PER_CHANNEL:
        return spec
    from torchao.quantization.pt2e import MinMaxObserver

    return replace(
        spec, qscheme=torch.per_tensor_symmetric, ch_axis=None, observer_or_fake_quant_ctr=with_args(MinMaxObserver)
    )


def is_annotated(node: Node) -> bool:
    """Tell whether a quantizer has annotated a node."""
    annotation = node.meta.get(ANNOTATION_KEY)
    return annotation is not None and annotation._annotated


def _is_constant(node: Node) -> bool:
    return node.meta.get(CONSTANT, False)


def _is_number(node: Node) -> bool:
    """Tell whether a node is a constant of no dimensions: it becomes part of a table or of a scale, never a tensor."""
    return _is_constant(node) and tuple(node.meta["val"].shape) == ()


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32
