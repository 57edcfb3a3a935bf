"""Compiling for VGF: specs, the two APIs, I/O inside the delegate, mixed graphs, deterministic bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

import tosaic
from tosaic.api.prepare import quantize
from tosaic.backends import converter
from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.core.targets import VGF, find
from tosaic.driver.exported import export
from tosaic.engines import reference, vulkan
from tosaic.formats import pte as pte_file
from tosaic.formats import vgf as reader
from tosaic.formats.tosa_writer import serialize
from tosaic.ir.graph import DType, Type
from tosaic.ir.qparams import QParams
from tosaic.lower.convert import to_codes, to_real
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Stored, of_value
from tosaic.quantizer import VgfQuantizer, get_symmetric_quantization_config
from tosaic.vgf import VgfBackend, VgfCompileSpec, VgfPartitioner


class Small(torch.nn.Module):
    """A net with a part for every kind of lowering."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.norm = torch.nn.LayerNorm(8)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.first(x))
        z = torch.sigmoid(self.second(y))
        return self.last(self.norm((y + z).mean((2, 3)))), y


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


X = (torch.linspace(-2, 2, 3 * 8 * 8).reshape(1, 3, 8, 8),)


def compile_small(**options: Any) -> tosaic.Program:
    return tosaic.compile(Small().eval(), X, **{"target": "vgf", **options})


def test_spec_defaults_and_round_trip() -> None:
    assert find("vgf") is VGF
    spec = VgfCompileSpec()
    assert Specification.parse(spec.target.tosa_spec) == Specification.parse("TOSA-1.0+FP+INT+int4+int16")
    assert spec.get_output_format() == "vgf"
    other = VgfCompileSpec("TOSA-1.0+INT", ["--emit-debug-info"])
    assert VgfCompileSpec.from_list(other.to_list()) == other != spec
    assert other.target.tosa_spec == "TOSA-1.0+INT"
    with pytest.raises(Invalid):
        VgfCompileSpec(compiler_flags=["--output=/tmp/x"])
    with pytest.raises(Invalid):
        VgfQuantizer(VgfCompileSpec("TOSA-1.0+FP"))


@pytest.mark.parametrize("quantized", [False, True])
def test_one_delegate_with_float_borders(quantized: bool) -> None:
    program = compile_small(quantized=quantized)
    assert (len(program.delegates), dict(program.cpu_ops), program.reasons) == (1, {}, ())
    (delegate,) = pte_file.read(program.pte).find().delegates
    assert (delegate.id, delegate.blob[:4]) == ("VgfBackend", b"VGF1")
    assert delegate.blob == program.delegates[0].blob == converter.compile(program.tosa())
    found = reader.read(delegate.blob)
    assert [(found.resources[i].dtype, found.resources[i].shape) for i in found.inputs] == [("float32", (1, 3, 8, 8))]
    with torch.no_grad():
        expected = Small().eval()(*X)
    for got, want in zip(program.run(*X, engine="tosa"), expected, strict=True):
        bound = 0.1 if quantized else 1e-5 * max(1.0, float(want.abs().max()))
        assert float(np.abs(got - want.numpy()).max()) <= bound


def test_the_same_bytes_again() -> None:
    first = compile_small()
    converter.CACHE.clear()
    assert compile_small().pte == first.pte
    probe = tosaic.compile(Twice().eval(), (torch.zeros(1, 16),), "vgf", quantized=False)
    assert probe.pte == Path(vulkan.__file__).with_name("probe.pte").read_bytes()


def test_integer_borders() -> None:
    program = compile_small(io="int8", layout="nhwc")
    assert dict(program.cpu_ops) == {}
    assert [(b.dtype, b.shape) for b in program.inputs] == [("int8", (1, 8, 8, 3))]
    found = reader.read(program.delegates[0].blob)
    assert {found.resources[i].dtype for i in (*found.inputs, *found.outputs)} == {"int8"}


def test_an_integer_specification_leaves_the_borders_to_the_cpu() -> None:
    program = compile_small(target=VgfCompileSpec("TOSA-1.0+INT"))
    assert len(program.delegates) == 1
    assert all(r.is_io for r in program.reasons)
    assert all("quantize_per_tensor" in name for name in program.cpu_ops)


def test_a_float_specification_takes_a_float_model() -> None:
    program = compile_small(target=VgfCompileSpec("TOSA-1.0+FP"))
    assert (len(program.delegates), program.reasons) == (1, ())


@pytest.mark.parametrize("left_out", ["first", "second", "norm", "last"])
def test_float_and_quantized_parts_share_a_delegate(left_out: str) -> None:
    quantizer = VgfQuantizer(VgfCompileSpec()).set_global(get_symmetric_quantization_config())
    module = quantize(export(Small().eval(), X), [X], quantizer.set_module_name(left_out, None))
    program = tosaic.compile(module, X, "vgf")
    assert (len(program.delegates), program.reasons) == (1, ())
    with torch.no_grad():
        expected = module(*X)
    # All of it as torch computes it: at most one step of the coarsest grid apart.
    for got, want in zip(program.run(*X, engine="tosa"), expected, strict=True):
        assert float(np.abs(got - want.numpy()).max()) <= float(want.abs().max()) / 100


def test_the_executorch_api() -> None:
    spec = VgfCompileSpec()
    partitioner = VgfPartitioner(spec)
    edge = to_edge_transform_and_lower(export(Small().eval(), X), partitioner=[partitioner])
    buffer = edge.to_executorch().buffer
    (delegate,) = pte_file.read(bytes(buffer)).find().delegates
    assert delegate.id == VgfBackend.__name__
    assert reader.read(delegate.blob).modules[0].kind == "graph"
    assert partitioner.reasons == ()


def test_files_are_dumped(tmp_path: Path) -> None:
    spec = VgfCompileSpec().dump_intermediate_artifacts_to(str(tmp_path))
    program = compile_small(target=spec)
    assert {p.suffix for p in tmp_path.iterdir()} == {".tosa", ".vgf", ".txt"}
    stages = sorted(p.name.split(".")[1] for p in tmp_path.glob("*.tosa.txt"))
    assert stages == ["0_lower", "1_fold_conv_scale", "2_pads_to_concat", "3_cse", "4_dce", "5_copy_outputs"]
    assert next(tmp_path.glob("*.vgf")).read_bytes() == program.delegates[0].blob


@pytest.mark.parametrize(("zero_point", "scale"), [(0, 0.1), (7, 0.037), (-128, 1 / 3), (127, 2.0**-9)])
def test_quantize_and_dequantize_are_torchs(zero_point: int, scale: float) -> None:
    q = QParams((scale,), (zero_point,), DType.I8, -128, 127)
    # Numbers halfway between two codes and beyond the last ones, each with its neighbors in float32.
    halves = (np.arange(-300, 300) / 2).astype(np.float32) * np.float32(scale)
    near = [np.nextafter(halves, np.float32(d) * np.inf) for d in (-1, 1)]
    numbers = np.concatenate([halves, *near, np.float32([1e30, -1e30, 0.0, -0.0])]).reshape(1, -1).astype(np.float32)
    lo = Lowering(VGF, Specification.parse(VGF.tosa_spec))
    codes = to_codes(lo, of_value(lo.b.input(Type(DType.F32, numbers.shape))), q)
    real = to_real(lo, of_value(codes.value, q))
    assert isinstance(real, Stored)
    got = reference.run(serialize(lo.b.finish([codes.value, real.value])), [numbers])
    ops = torch.ops.quantized_decomposed
    want = ops.quantize_per_tensor(torch.from_numpy(numbers), scale, zero_point, -128, 127, torch.int8)
    back = ops.dequantize_per_tensor(want, scale, zero_point, -128, 127, torch.int8)
    assert np.array_equal(got[0], want.numpy())
    assert np.array_equal(got[1], back.numpy())


def multiply_by_zero(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + 1, x * 0


def find_the_largest_of_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + 1, x.float().argmax(1).to(torch.int32)


def make_zeros(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.zeros_like(x) * 2, x + 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("function", [multiply_by_zero, find_the_largest_of_one, make_zeros])
def test_an_output_of_zeros_is_not_left_to_the_vulkan_layers(function: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return function(x)

    inputs = (torch.arange(-2, 2, dtype=torch.int32).reshape(4, 1),)
    program = tosaic.compile(Model().eval(), inputs, "vgf", quantized=False)
    assert any("always zero" in reason.why and "constant" in reason.fix for reason in program.reasons)
    assert len(program.delegates) == 1
    for got, want in zip(program.run(*inputs), function(*inputs), strict=True):
        np.testing.assert_array_equal(got, want.numpy())


@pytest.mark.parametrize(("stride", "scatters"), [(2, True), (3, False), (4, True), ((2, 3), False), ((4, 1), True)])
def test_transposed_convolutions_scatter_by_powers_of_two(stride: Any, scatters: bool) -> None:
    """The shader of TRANSPOSE_CONV2D is right on all drivers for these strides only."""
    x = (torch.linspace(-2, 2, 3 * 5 * 5).reshape(1, 3, 5, 5),)
    model = torch.nn.ConvTranspose2d(3, 4, 5, stride=stride, padding=1).eval()
    (delegate,) = tosaic.compile(model, x, "vgf", quantized=False).delegates
    kinds = {op.kind for op in delegate.ops}
    assert ("TRANSPOSE_CONV2D" in kinds) is scatters
    assert ("CONV2D" in kinds) is not scatters


def make_scatter_program() -> tosaic.Program:
    """Compile TRANSPOSE_CONV2D with stride 3, which Tosaic does not use for VGF."""
    x, kernel = vulkan.make_scatter()
    model = torch.nn.ConvTranspose2d(1, 1, 5, stride=3, bias=False).eval()
    model.weight.data = torch.from_numpy(kernel)[None, None]
    spec = VgfCompileSpec()
    spec.target = replace(spec.target, scatters_any_stride=True)
    return tosaic.compile(model, (torch.from_numpy(x),), spec, quantized=False)


def test_file_that_finds_wrong_operators() -> None:
    program = make_scatter_program()
    assert "TRANSPOSE_CONV2D" in {op.kind for op in program.delegates[0].ops}
    assert program.pte == Path(vulkan.__file__).with_name("scatter.pte").read_bytes()


@pytest.mark.usefixtures("device")
def test_wrong_operators_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    vulkan.find_wrong_operator.cache_clear()
    assert vulkan.find_wrong_operator() == ""
    correct = vulkan._read_outputs

    def spoil(reply: Any) -> list[Any]:
        (result,) = correct(reply)
        # Row 0 counted once too often.
        result[0, 0, 0] += 1
        return [result]

    monkeypatch.setattr(vulkan, "_read_outputs", spoil)
    vulkan.find_wrong_operator.cache_clear()
    assert vulkan.find_wrong_operator() == "transposed convolutions with strides that are not powers of 2"
    vulkan.find_wrong_operator.cache_clear()
