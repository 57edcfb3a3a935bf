"""Small .pte files: with and without delegates, with the blob inline and in a segment."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from torch._ops import OpOverload
from torch.export import export
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import tosaic
from tosaic.api.program import Program
from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.driver.delegate import build
from tosaic.driver.pack import HostProgramBuilder, infer_io_signature
from tosaic.fx.source import Source
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class Softmax(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


class Conv(torch.nn.Module):
    """Two inputs, two outputs; the CPU has an operator between two delegates."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.relu(self.conv(x))
        same = torch.native_dropout(z, 0.0, True)[0]
        return torch.relu(same + y), torch.mean(z, (2, 3))


class Mixed(torch.nn.Module):
    """CPU kernels of many kinds: channels last, two outputs of one kernel, a list, a view without a kernel, a state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x.to(memory_format=torch.channels_last))
        self.calls.add_(1)
        values, indices = torch.topk(y.mean((2, 3)), 2)
        return values, indices, torch.cat([y, y], 1), y.reshape(1, -1)[:, ::3], self.calls + 0


class Branch(torch.nn.Module):
    def forward(self, which: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(which, lambda x: x + 1, lambda x: x * 2, (x,))


class Dynamic(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1) + x.shape[0]


Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Made:
    """A compiled model: the .pte by where its blobs are, and per delegate the blob's .tosa."""

    pte: dict[str, bytes]
    tosa: dict[bytes, bytes]
    quantized: torch.nn.Module


def emit(
    program: torch.export.ExportedProgram,
    notes: Mapping[str, object] | None = None,
    forms: Sequence[str] = ("inline", "segment"),
) -> dict[str, bytes]:
    """The .pte bytes with delegates `inline` and in a `segment`."""
    importlib.import_module("executorch.kernels.quantized")  # the out variants that exir looks for

    config = EdgeCompileConfig(_check_ir_validity=False)
    made = {}
    for name in forms:
        edge = to_edge(program, constant_methods=dict(notes or {}), compile_config=config)
        made[name] = edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=name == "segment")).buffer
    return made


def compile_front(
    model: torch.nn.Module, inputs: Inputs, target: str, io: str = "float", floats: Sequence[OpOverload] = ()
) -> Made:
    """Compile a .pte with delegates by pieces of the high-level API; float models are quantized, but not `floats`."""
    module = export(model.eval(), inputs).module()
    if inputs[0].dtype == torch.float32:
        quantizer = TosaQuantizer().set_global(get_symmetric_quantization_config())
        for overload in floats:
            quantizer.set_node_target(overload, None)
        module = prepare_pt2e(module, quantizer)
        module(*inputs)
        module = convert_pt2e(module)
    source, spec = Source.of_module(module), EthosUCompileSpec(target)
    signature = infer_io_signature(source, io, "nchw")
    built = build(source, spec, nhwc=signature.nhwc)
    outer = HostProgramBuilder(source, built, signature, "EthosUBackend", spec.to_list()).build()
    examples = tuple(torch.zeros(b.shape, dtype=getattr(torch, b.dtype)) for b in signature.inputs)
    pte = emit(export(outer, examples), {"note": "made by a test"})
    return Made(pte, {d.blob: d.tosa for d in built.delegates}, module)


class Filter(torch.nn.Module):
    """A convolution: one delegate with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


def make_filter() -> tuple[torch.nn.Module, Inputs]:
    """The model, always with the same weights, and its inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Filter().eval(), (torch.randn(1, 3, 8, 8),)


def make_external(external: Sequence[str], target: str = "ethos-u55-128") -> Program:
    """Compile the filter with parts of its delegate in .ptd files."""
    model, inputs = make_filter()
    return tosaic.compile(model, inputs, target, external=external)
