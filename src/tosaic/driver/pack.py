"""The last step of `compile`: the CPU nodes and the finished delegates become one small program for exir."""

from __future__ import annotations

import importlib
import io
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from tosaic.core.tensor_info import TensorInfo
from tosaic.driver.delegate import CompiledGraph, Delegate
from tosaic.driver.exported import fill_scalars, find_decomposition, skip_noop_decompositions
from tosaic.driver.named_data import store_external
from tosaic.fx.source import ASSERTIONS, DEQUANTIZE, QDQ, QUANTIZE, Source, bind, overload
from tosaic.fx.stub import stub
from tosaic.fx.torch_compat import FakeTensorMode, pytree

#: prefix of the names of buffers that a program writes to
STATE = "tosaic_state_"
NCHW_TO_NHWC, NHWC_TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Signature:
    """I/O of the program: which inputs and outputs are int8, and which nodes have channels last.

    caller_quantizes    the quantize and dequantize nodes that io="int8" leaves to the caller
    returned_quantized  the dequantize nodes whose quantized input is returned in their place
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    caller_quantizes: frozenset[Node]
    returned_quantized: frozenset[Node]
    nhwc: frozenset[Node]


def infer_io_signature(source: Source, io: str, layout: str) -> Signature:
    """Infer how the program is called from its graph and the options."""
    caller_quantizes: set[Node] = set()
    returned_quantized: set[Node] = set()
    nhwc: set[Node] = set()
    inputs: list[TensorInfo] = []
    outputs: list[TensorInfo] = []
    for node in source.inputs:
        users = [u for u in node.users if u.op == "call_function" and overload(u) not in ASSERTIONS]
        quantizers = [u for u in users if overload(u) == QUANTIZE]
        moved = layout == "nhwc" and _is_image(source, node)
        is_int = (
            io != "float"
            and users == quantizers
            and len({_get_qparams(u) for u in users}) == 1
            and _is_quantized_to_int(users[0])
        )
        if moved:
            nhwc.update({node, *quantizers})
        if is_int:
            caller_quantizes.update(quantizers)
        inputs.append(_describe_tensor(source, node, quantizers[0] if is_int else None, moved))
    for index, node in enumerate(_list_outputs(source)):
        quantized = overload(node) == DEQUANTIZE and _is_quantized_to_int(node)
        moved = layout == "nhwc" and _is_image(source, node)
        before: Any = node.args[0] if quantized else node
        if moved:
            nhwc.update({node, before})
        if quantized and io != "float":
            returned_quantized.add(node)
            # Another reader needs the real numbers, so there the dequantize stays.
            caller_quantizes.update({node} if all(user.op == "output" for user in node.users) else ())
        codec = node if quantized and io != "float" else None
        outputs.append(replace(_describe_tensor(source, node, codec, moved), name=f"output_{index}"))
    return Signature(
        tuple(inputs), tuple(outputs), frozenset(caller_quantizes), frozenset(returned_quantized), frozenset(nhwc)
    )


def _is_image(source: Source, node: Node) -> bool:
    val = source.val(node)
    return isinstance(val, torch.Tensor) and val.dim() == 4


def _list_outputs(source: Source) -> list[Node]:
    """Return the program's outputs in order (one that is returned twice occurs twice), without None and numbers."""
    return [n for n in pytree.tree_leaves(source.returned) if isinstance(n, Node)]


def _is_quantized_to_int(node: Node) -> bool:
    """Tell whether a node quantizes to integers that an I/O tensor may have."""
    return bind(node)["dtype"] in (torch.int8, torch.uint8, torch.int16)


def _get_qparams(node: Node) -> tuple[Any, ...]:
    a = bind(node)
    return (a["scale"], a["zero_point"], a["quant_min"], a["quant_max"], a["dtype"])


def _describe_tensor(source: Source, node: Node, codec: Node | None, moved: bool) -> TensorInfo:
    val = source.val(node)
    if not isinstance(val, torch.Tensor):
        return TensorInfo(node.name, (), type(val).__name__, "")
    shape = tuple(int(d) for d in val.shape)
    if moved:
        shape = tuple(shape[i] for i in NCHW_TO_NHWC)
    dtype = val.dtype if codec is None else bind(codec)["dtype"]
    layout = "nhwc" if moved else ("nchw" if len(shape) == 4 else "")
    scale, zero = (None, None) if codec is None else (float(bind(codec)["scale"]), int(bind(codec)["zero_point"]))
    return TensorInfo(node.name, shape, str(dtype).removeprefix("torch."), layout, scale, zero)


def _use_plain_order(argument: Any) -> Any:
    """Replace channels last by plain memory order: delegates and most of ExecuTorch's kernels support no other."""
    return torch.contiguous_format if argument in (torch.channels_last, torch.channels_last_3d) else argument


class HostProgramBuilder:
    """Builds the module that exir gets: CPU nodes unchanged, one call per delegate."""

    def __init__(
        self, source: Source, built: CompiledGraph, signature: Signature, backend: str, specs: list[CompileSpec]
    ) -> None:
        self.source, self.built, self.signature = source, built, signature
        self.backend, self.specs = backend, specs
        self.graph, self.root = Graph(), torch.nn.Module()
        self.mode = FakeTensorMode()
        self.made: dict[Node, Node] = {}
        self.home = {n: d for d in built.delegates for n in d.partition.nodes}

    def build(self) -> GraphModule:
        for node in self.source.inputs:
            self.made[node] = self.graph.placeholder(node.name)
        for index, (node, (start, _)) in enumerate(self.source.states.items()):
            self.root.register_buffer(f"{STATE}{index}", start.clone())
            self.made[node] = self.graph.get_attr(f"{STATE}{index}")
        for node in self.source.calls():
            if node not in self.home and overload(node) not in ASSERTIONS:
                self._emit(node)
        results = tuple(self._result(node) for node in _list_outputs(self.source))
        # All inputs have been read by now.
        for node, (_, new) in self.source.states.items():
            self.graph.call_function(torch.ops.aten.copy_.default, (self.made[node], self._to_nchw(new)))
        self.graph.output(results)
        return GraphModule(self.root, self.graph)

    def _result(self, node: Node) -> Node:
        if node in self.source.states:
            return self.graph.call_function(torch.ops.aten.clone.default, (self.made[node],))
        inner: Any = node.args[0] if node in self.signature.returned_quantized else node
        made = self._use(inner)
        if node in self.signature.nhwc and not self._carries_nhwc(node):
            made = self.graph.call_function(torch.ops.aten.permute.default, (made, list(NCHW_TO_NHWC)))
        return made

    def _carries_nhwc(self, node: Node) -> bool:
        """Tell whether the node's value in the host program already has its channels last."""
        if node in self.signature.nhwc and (node.op == "placeholder" or node in self.home):
            return True
        inner: Any = node.args[0] if overload(node) in QDQ else None
        return isinstance(inner, Node) and inner in self.signature.nhwc and self._carries_nhwc(inner)

    def _emit(self, node: Node) -> Node:
        if node in self.made:
            return self.made[node]
        if node in self.signature.caller_quantizes:
            # The caller quantizes or dequantizes: the integers themselves are the input or output.
            inner: Any = node.args[0]
            self.made[node] = self._use(inner)
            return self.made[node]
        last = overload(node) in QDQ
        arguments = map_arg((node.args, node.kwargs), lambda n: self._use(n) if last else self._to_nchw(n))
        # Exir rejects operators without an out variant, so the export of this graph decomposes them.
        target = find_decomposition(node.target)
        self.made[node] = self.graph.call_function(target, *pytree.tree_map(_use_plain_order, arguments))
        self.made[node].meta.update({k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack")})
        return self.made[node]

    def _to_nchw(self, node: Node) -> Node:
        """Return the value as the CPU operators expect it: channels second."""
        made = self._use(node)
        if self._carries_nhwc(node):
            return self.graph.call_function(torch.ops.aten.permute.default, (made, list(NHWC_TO_NCHW)))
        return made

    def _use(self, node: Node) -> Node:
        if node in self.made:
            return self.made[node]
        if node in self.source.constants:
            name = f"constant_{len(self.made)}"
            # In plain memory order, as everything else on the CPU.
            self.root.register_buffer(name, self.source.constants[node].detach().contiguous())
            self.made[node] = self.graph.get_attr(name)
            return self.made[node]
        if node in self.source.modules:
            name = f"branch_{len(self.made)}"
            self.root.add_module(name, self.source.modules[node])
            self.made[node] = self.graph.get_attr(name)
            return self.made[node]
        if node in self.home:
            self._call(self.home[node])
            return self.made[node]
        return self._emit(node)

    def _call(self, delegate: Delegate) -> None:
        index = self.built.delegates.index(delegate)
        arguments: list[Node] = []
        for node in delegate.partition.inputs:
            made = self._use(node)
            if self._carries_nhwc(node) != (node in self.signature.nhwc):
                made = self.graph.call_function(torch.ops.aten.permute.default, (made, list(NCHW_TO_NHWC)))
            arguments.append(made)
        external = store_external(delegate.artifact)
        module = LoweredBackendModule(self._stub(delegate), self.backend, delegate.blob, self.specs, external)
        name = f"lowered_{index}"
        self.root.add_module(name, module)
        call = self.graph.call_module(name, tuple(arguments))
        for position, node in enumerate(delegate.partition.outputs):
            self.made[node] = self.graph.call_function(operator.getitem, (call, position))

    def _stub(self, delegate: Delegate) -> ExportedProgram:
        partition = delegate.partition
        return stub([self._fake(n) for n in partition.inputs], [self._fake(n) for n in partition.outputs])

    def _fake(self, node: Node) -> torch.Tensor:
        real = self.source.tensor(node)
        shape = [int(d) for d in real.shape]
        if node in self.signature.nhwc:
            shape = [shape[i] for i in NCHW_TO_NHWC]
        with self.mode:
            return torch.empty(shape, dtype=real.dtype)


def example(info: TensorInfo) -> torch.Tensor:
    """Make a tensor with the dtype and shape of an input."""
    return torch.zeros(info.shape, dtype=getattr(torch, info.dtype))


def pack(
    source: Source,
    built: CompiledGraph,
    signature: Signature,
    backend: str,
    specs: list[CompileSpec],
    metadata: Mapping[str, str],
    *,
    with_etrecord: bool = False,
) -> Any:
    """Make exir's finished program. `metadata` become constant methods of the .pte."""
    # Registers the out variants of quantize and dequantize that exir looks for.
    importlib.import_module("executorch.kernels.quantized")
    host = HostProgramBuilder(source, built, signature, backend, specs).build()
    inputs = tuple(example(b) for b in signature.inputs)
    program = torch.export.export(host, inputs)
    skip_noop_decompositions(program)
    edge = to_edge(
        program,
        constant_methods=dict(metadata) or None,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
        generate_etrecord=with_etrecord,
    )
    fill_scalars(edge.exported_program())
    passes: list[Any] = [InitializedMutableBufferPass([STATE])] if source.states else []
    return edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=False, passes=passes))


def write_etrecord(program: Any) -> bytes:
    """Return the ETRecord of a program that was packed with one, for ExecuTorch's developer tools."""
    buffer = io.BytesIO()
    program.get_etrecord().save(buffer)
    return buffer.getvalue()
