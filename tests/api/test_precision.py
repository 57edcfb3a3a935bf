"""Precisions through both APIs: mixed in one graph, with integer inputs and outputs of every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from executorch.exir import to_edge_transform_and_lower
from torch import nn

import tosaic
from support.apis import partitioner
from tosaic.api.prepare import quantize
from tosaic.core.errors import Invalid
from tosaic.driver.exported import export
from tosaic.engines import engine
from tosaic.ethosu import EthosUCompileSpec
from tosaic.formats import sidecar
from tosaic.formats.pte import read
from tosaic.quantizer import (
    EthosUQuantizer,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)

NPUS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")


class Net(nn.Module):
    """All four kinds of weights, and values that go from one part to several others."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.lanes = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.stem(x)
        z = torch.cat([self.lanes(y) + y, y], 1)[:, :8]
        z = F.max_pool2d(self.up(z), 2)
        return self.head(z.mean((2, 3))), z


def draw(seed: int) -> torch.Tensor:
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net().eval()


def compile_net(net: nn.Module, target: str, **options: Any) -> tosaic.Program:
    return tosaic.compile(net, (draw(0),), target, calibration=[(draw(i),) for i in range(3)], **options)


MIXED: tuple[tuple[str, dict[str, str], int], ...] = (
    ("int8", {"lanes": "a16w8"}, 1),
    ("a16w8", {"stem": "int8", "Linear": "a8w4"}, 1),
    ("a8w4", {"up": "a16w8", "head": "a16w8"}, 1),
    ("a16w8", {"lanes": "float"}, 2),
)


@pytest.mark.parametrize("target", [NPUS[0], *(pytest.param(t, marks=pytest.mark.slow) for t in NPUS[1:])])
@pytest.mark.parametrize(("everywhere", "parts", "delegates"), MIXED)
def test_mixed(net: nn.Module, target: str, everywhere: str, parts: dict[str, str], delegates: int) -> None:
    program = compile_net(net, target, precision=everywhere, precision_for=parts)
    assert len(program.delegates) == delegates
    verdict = program.verify()
    assert verdict.ok and verdict.exact
    assert all(match.ok for match in verdict.torch)


@pytest.mark.parametrize("target", [NPUS[2], *(pytest.param(t, marks=pytest.mark.slow) for t in NPUS[:2])])
@pytest.mark.parametrize(
    ("precision", "io"),
    [("int8", "uint8"), ("int8", "int16"), ("a16w8", "int8"), ("a16w8", "int16"), ("a8w4", "uint8")],
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_integer_io(net: nn.Module, target: str, precision: str, io: str, layout: str) -> None:
    program = compile_net(net, target, precision=precision, io=io, layout=layout)
    assert [t.dtype for t in (*program.inputs, *program.outputs)] == [io] * 3
    assert program.cpu_ops == {}
    verdict = program.verify()
    assert verdict.ok and verdict.exact and all(match.ok for match in verdict.torch)
    (given,) = program.inputs
    values = np.random.default_rng(0).integers(0, 127, given.shape).astype(io)
    for got, want in zip(program.run(values), program.run(values, engine="tosa"), strict=True):
        assert got.dtype == np.dtype(io)
        assert np.array_equal(got, want)


CONFIGS: dict[str, Any] = {
    "int8": get_symmetric_quantization_config(),
    "a16w8": get_symmetric_a16w8_quantization_config(),
    "a8w4": get_symmetric_a8w4_quantization_config(is_qat=False),
    "uint8": get_uint8_io_quantization_config(),
}


@pytest.mark.parametrize(
    ("everywhere", "head", "io"), [("int8", "a16w8", "uint8"), ("a8w4", "int8", "uint8"), ("a16w8", "a8w4", "int8")]
)
def test_both_apis_give_the_same_delegate(net: nn.Module, everywhere: str, head: str, io: str) -> None:
    spec = EthosUCompileSpec("ethos-u85-256")
    quantizer = EthosUQuantizer(spec).set_global(CONFIGS[everywhere]).set_io(CONFIGS[io])
    quantizer.set_module_name("head", CONFIGS[head]).set_module_type(nn.ConvTranspose2d, CONFIGS["int8"])
    x = draw(0)
    module = quantize(export(net, (x,)), [(x,)], quantizer)
    program = tosaic.compile(module, (x,), spec)
    lowered = to_edge_transform_and_lower(
        torch.export.export(module, (x,)), partitioner=[partitioner(spec.target.name)]
    )
    pte = bytes(lowered.to_executorch().buffer)
    assert [d.blob for d in read(pte).find("forward").delegates] == [d.blob for d in program.delegates]
    for got, want in zip(engine.run(pte, [x.numpy()]).outputs, program.run(x), strict=True):
        assert np.array_equal(got, want)


def test_uint8_is_for_inputs_and_outputs_only(net: nn.Module) -> None:
    """Only a dequantize reads uint8: a cast of a camera's picture stays on the CPU."""

    class Picture(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x.float() / 255)

    x = torch.randint(0, 256, (1, 3, 4, 4), dtype=torch.uint8)
    program = tosaic.compile(Picture().eval(), (x,), "ethos-u55-128")
    assert "its input is uint8, which the target does not support" in {r.why for r in program.reasons}
    with torch.no_grad():
        assert np.abs(program.run(x)[0] - Picture()(x).numpy()).max() <= 0.01


def test_reports_name_the_precision(net: nn.Module) -> None:
    program = compile_net(net, "ethos-u55-128", precision="a8w4", precision_for={"head": "a16w8"})
    wanted = {"precision": "a8w4", "precision_for": "head=a16w8"}
    assert wanted.items() <= program.report().options.items()
    assert wanted.items() <= program.report().to_json()["options"].items()
    assert wanted.items() <= sidecar.read(program.sidecar()).options.items()


def test_what_does_not_go_together(net: nn.Module) -> None:
    with pytest.raises(Invalid, match="both a precision and a quantizer"):
        compile_net(net, "ethos-u55-128", precision="a8w4", quantizer=EthosUQuantizer(EthosUCompileSpec(NPUS[0])))
    with pytest.raises(Invalid, match="nothing is quantized"):
        compile_net(net, "TOSA-1.0+FP", precision="a8w4")
    module = quantize(export(net, (draw(0),)), [(draw(0),)])
    with pytest.raises(Invalid, match="nothing is quantized"):
        tosaic.compile(module, (draw(0),), precision_for={"head": "a16w8"})
    with pytest.raises(Invalid, match="io is `uint8`, but `x` is quantized to int8"):
        tosaic.compile(module, (draw(0),), io="uint8")


def test_a_wrong_module_is_refused_before_calibration(net: nn.Module) -> None:
    def samples() -> Any:
        raise AssertionError("calibrated")
        yield

    with pytest.raises(Invalid, match="no module or class `haed`") as caught:
        tosaic.compile(net, (draw(0),), calibration=samples(), precision_for={"haed": "a16w8"})
    assert "`head`" in str(caught.value.fix)
