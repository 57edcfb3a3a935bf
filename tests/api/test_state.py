"""Models with mutable buffers: the state is quantized once, stays in integers, and persists in a session."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import tosaic
from tosaic.api.build import make_spec
from tosaic.core.errors import Invalid
from tosaic.engines import engine
from tosaic.ethosu import EthosUPartitioner
from tosaic.quantization.precisions import PRECISIONS
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config
from tosaic.tosa import TOSAPartitioner

ROOT = Path(__file__).parents[2]


class Stream(nn.Module):
    """A convolution over the last frames."""

    past: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 4, 3)
        self.register_buffer("past", torch.full((1, 4, 2), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = torch.cat([self.past, x], -1)
        self.past.copy_(frames[..., -2:])
        return self.convolution(frames).relu()


class Filter(nn.Module):
    """A state that is computed from itself, and that nothing else quantizes when it is read."""

    level: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.level.copy_(self.level * 0.75 + x * 0.25)
        return self.level.tanh()


class Parameter(Filter):
    """A parameter that the model writes to."""

    def __init__(self) -> None:
        super().__init__()
        del self.level
        self.level = nn.Parameter(torch.zeros(1, 8), requires_grad=False)


class Cache(nn.Module):
    """Rows that are written at a position, and read by a product."""

    rows: torch.Tensor
    positions: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(1, 6, 8))
        self.register_buffer("positions", torch.arange(6, dtype=torch.int32))
        self.project = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.rows.copy_(torch.where((self.positions == position)[:, None], self.project(x), self.rows))
        return x @ self.rows.mT


def draw(kind: type[nn.Module], count: int) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(5)
    shape = {Stream: (1, 4, 1), Filter: (1, 8), Parameter: (1, 8), Cache: (1, 1, 8)}[kind]
    drawn = [torch.randn(shape, generator=generator) for _ in range(count)]
    if kind is not Cache:
        return [(x,) for x in drawn]
    return [(x, torch.tensor([index % 6], dtype=torch.int32)) for index, x in enumerate(drawn)]


def make(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return kind().eval()


@pytest.mark.parametrize(
    ("kind", "name", "precision", "dtype"),
    [
        (Stream, "past", "int8", torch.int8),
        (Stream, "past", "a16w8", torch.int16),
        (Filter, "level", "int8", torch.int8),
        (Parameter, "level", "int8", torch.int8),
        (Cache, "rows", "int8", torch.int8),
    ],
)
def test_the_state_is_quantized_once(kind: type[nn.Module], name: str, precision: str, dtype: torch.dtype) -> None:
    samples = draw(kind, 12)
    quantizer = TosaQuantizer().set_global(PRECISIONS[precision]())
    module = tosaic.quantize(torch.export.export(make(kind), samples[0]), samples, quantizer)
    assert module.get_buffer(name).dtype is dtype
    program = tosaic.compile(module, samples[0], "ethos-u85-256")
    assert len(program.delegates) == 1
    assert {n.partition(".")[0]: c for n, c in program.cpu_ops.items()} == {
        "quantized_decomposed::quantize_per_tensor": 1,
        "quantized_decomposed::dequantize_per_tensor": 1,
        "aten::copy_": 1,
    }
    session = program.load()
    for sample in samples:
        with torch.no_grad():
            wanted = module(*sample).numpy()
        assert np.abs(session.run(*sample)[0] - wanted).max() <= 1.01 * find_step(module)


def find_step(module: Any) -> float:
    """The scale of the output."""
    output: Any = module.graph.output_node().args[0][0]
    return float(output.args[1])


def test_a_run_starts_anew_and_a_session_goes_on() -> None:
    samples = draw(Stream, 8)
    program = tosaic.compile(make(Stream), samples[0], "ethos-u55-128", calibration=samples)
    first = program.run(*samples[0])[0]
    assert np.array_equal(program.run(*samples[0])[0], first)
    session, other = program.load(), program.load("tosa")
    assert np.array_equal(session.run(*samples[0])[0], first)
    assert not np.array_equal(session.run(*samples[0])[0], first)
    assert np.array_equal(program.load().run(*samples[0])[0], first)
    for sample in (samples[0], samples[0]):
        other.run(*sample)
    for sample in samples:
        assert np.array_equal(session.run(*sample)[0], other.run(*sample)[0])


def test_sessions_refuse() -> None:
    samples = draw(Stream, 2)
    program = tosaic.compile(make(Stream), samples[0], "ethos-u55-128", calibration=samples)
    with pytest.raises(Invalid, match=r"runs a program only once(.|\n)*`npu` or `tosa`"):
        program.load("executorch")
    with pytest.raises(Invalid, match="unknown engine `gpu`"):
        program.load("gpu")
    with pytest.raises(Invalid, match=r"2 inputs were given, the program takes 1\n  fix: pass one tensor each: `"):
        program.load().run(*samples[0], *samples[0])


@pytest.mark.parametrize("kind", [Stream, Filter, Cache])
def test_torchao_finds_one_range_for_what_is_read_and_written(kind: type[nn.Module]) -> None:
    samples = draw(kind, 12)
    quantizer = TosaQuantizer().set_global(get_symmetric_quantization_config())
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(make(kind), samples[0]).module(), quantizer)
        for sample in samples:
            prepared(*sample)
        converted = convert_pt2e(prepared)
    copy = next(n for n in converted.graph.nodes if str(n.target) == "aten.copy_.default")
    readers = [n for n in copy.args[0].users if n is not copy]
    assert readers and {n.args[1:] for n in readers} == {copy.args[1].args[1:]}


#: torch.export refuses a program in float that writes to a parameter.
EXPORTED = [
    *((kind, "ethos-u85-256") for kind in (Stream, Filter, Parameter, Cache)),
    *((kind, "TOSA-1.0+FP") for kind in (Stream, Filter, Cache)),
]


@pytest.mark.parametrize(("kind", "target"), EXPORTED)
def test_a_state_outside_of_the_delegates_of_the_executorch_api(kind: type[nn.Module], target: str) -> None:
    """Exir alone takes most of these states for constants."""
    samples, model = draw(kind, 12), make(kind)
    with torch.no_grad():
        program = torch.export.export(model, samples[0])
        module: Any = tosaic.quantize(program, samples) if target == "ethos-u85-256" else model
        partitioner = (EthosUPartitioner if target == "ethos-u85-256" else TOSAPartitioner)(make_spec(target))
        edge = to_edge_transform_and_lower(torch.export.export(module, samples[0]), partitioner=[partitioner])
    config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass([""])])
    method = engine.load(bytes(edge.to_executorch(config).buffer))
    for sample in samples:
        got = method.run([x.numpy() for x in sample])[-1]
        with torch.no_grad():
            wanted = module(*sample).numpy()
        assert np.abs(got - wanted).max() <= (1e-5 if module is model else 1.01 * find_step(module))


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_decoder_generates_what_torch_generates() -> None:
    example = load_example("decoder_step")
    with torch.random.fork_rng():
        quantized, program = example.compile_step(example.train())
    assert len(program.delegates) == 1
    assert set(program.cpu_ops) == {"aten::copy_", "quantized_decomposed::dequantize_per_tensor.out"}
    session = program.load()
    with torch.no_grad():
        wanted = example.generate(quantized, 50)
    assert example.generate(lambda *inputs: session.run(*inputs)[0], 50) == wanted
    assert wanted in example.TEXT * 3


@pytest.mark.slow
def test_a_keyword_spotter_hears_one_frame_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        load_example("streaming_keywords").main(10)
    printed = capsys.readouterr().out
    assert ["delegates", "1"] in [line.split() for line in printed.splitlines()] and "10 of 10 words" in printed
