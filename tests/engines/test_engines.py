"""Engines `npu` and `executorch` on the same file: the same bytes, up to the first kernel that computes with floats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tosaic
from support import join_python_path
from tosaic import zoo
from tosaic.engines import engine, executorch, shim
from tosaic.engines.interpreter import Method, Npu
from tosaic.formats.blob import BACKEND
from tosaic.formats.npy import Array
from tosaic.formats.pte import read
from tosaic.formats.tensors import TensorType

pytestmark = pytest.mark.skipif(not shim.find_compiler(), reason="no C++ compiler for the shim of engine executorch")

U55, U85 = "ethos-u55-128", "ethos-u85-256"
QUICK = [("add", U55), ("softmax", U85), ("ds_cnn", U55), ("resnet8", U85)]
MODELS = ("add", "deep_autoencoder", "ds_cnn", "encoder_layer", "espcn", "mobilenet_v1", "mobilenet_v2", "resnet8")
SLOW = [(model, target) for model in MODELS for target in (U55, U85) if (model, target) not in QUICK]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Path]:
    """A child of the runtime that can import the stand-ins, and the folder for what its NPU gets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", join_python_path())
        patch.setenv("TOSAIC_TEST_RECORD", str(tmp_path))
        executorch.worker().close()
        yield tmp_path
    executorch.worker().close()


def check_same(pte: bytes, inputs: list[Array]) -> None:
    ours, theirs = (engine.run(pte, inputs, engine=name).outputs for name in ("npu", "executorch"))
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def check_model(model: str, target: str) -> None:
    module, inputs = zoo.load(model)
    program = tosaic.compile(module, inputs, target=target)
    border = ("quantized_decomposed::quantize_per_tensor.out", "quantized_decomposed::dequantize_per_tensor.out")
    assert program.delegates and set(program.cpu_ops) <= set(border), "this model computes on the CPU"
    check_same(program.pte, [x.numpy() for x in zoo.inputs(model, 1, 5)[0]])


@pytest.mark.parametrize(("model", "target"), QUICK)
def test_quantized_models(model: str, target: str) -> None:
    check_model(model, target)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "target"), SLOW)
def test_more_quantized_models(model: str, target: str) -> None:
    check_model(model, target)


class Pick(torch.nn.Module):
    """A gather, which stays on the CPU of a U55 system, between two delegates."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 9), torch.nn.Linear(5, 4)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return self.second(torch.gather(self.first(x), 1, index))


def test_data_movement_on_the_cpu() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(3, 6), torch.randint(0, 9, (3, 5))
    program = tosaic.compile(Pick().eval(), inputs, target=U55)
    assert len(program.delegates) == 2 and "aten::gather.out" in program.cpu_ops
    check_same(program.pte, [x.numpy() for x in inputs])


class Kept:
    """The simulated NPU, and what each call of it gets."""

    def __init__(self) -> None:
        self.npu, self.calls = Npu(), list[list[Array]]()

    def __call__(self, blob: bytes, specs: Any, inputs: list[Array], outputs: list[TensorType]) -> list[Array]:
        self.calls.append([array.copy() for array in inputs])
        return self.npu(blob, specs, inputs, outputs)


class Sorted(torch.nn.Module):
    """More numbers than an NPU can put in order: the CPU does that, in float, between two delegates."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 40, 3), torch.nn.Conv2d(40, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.second(torch.topk(y.flatten(1), y.numel(), 1)[0].reshape(y.shape))


@pytest.mark.parametrize("target", [U55, U85])
def test_float_kernels_on_the_cpu(record: Path, target: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    program = tosaic.compile(Sorted().eval(), (x,), target=target)
    assert len(program.delegates) == 2 and "aten::topk.values" in program.cpu_ops
    kept = Kept()
    (ours,) = Method(read(program.pte), executors={BACKEND: kept}).run([x.numpy()])
    (theirs,) = executorch.run(program.pte, [x.numpy()], executor="support.stand_in:make_record")
    before, after = kept.calls
    with np.load(record / "0.npz") as first, np.load(record / "1.npz") as second:
        assert [array.tobytes() for array in before] == [first[name].tobytes() for name in first.files]
        # What a float kernel gives may differ in its last bits, and so once in a while by a step of the grid after it.
        steps = [np.abs(a.astype(int) - second[name]) for a, name in zip(after, second.files, strict=True)]
    assert max(int(step.max()) for step in steps) <= 1
    scale = np.abs(theirs).max() * 1e-5 if not any(step.any() for step in steps) else program.outputs[0].scale
    assert np.abs(ours - theirs).max() <= max(scale, 1e-5)
