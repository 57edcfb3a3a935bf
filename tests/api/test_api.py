"""The high-level API: how a program is called, what it reports, and what it refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import tosaic
from support.extras import needs_compiler
from tosaic import zoo
from tosaic.core.errors import Invalid
from tosaic.driver.exported import export
from tosaic.formats import pte, sidecar
from tosaic.npu import weights


class Net(nn.Module):
    """Two inputs with images, two outputs: an image and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(4, 8, 1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        image = torch.relu(self.a(x)) + self.b(y)
        return image, self.head(image.mean((2, 3)))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def net() -> nn.Module:
    torch.manual_seed(5)
    return Net().eval()


INPUTS = (draw(1, 3, 6, 7), draw(1, 4, 6, 7, seed=1))
SAMPLES = [INPUTS, (draw(1, 3, 6, 7, seed=2), draw(1, 4, 6, 7, seed=3))]


@pytest.fixture(scope="module")
def plain() -> tosaic.Program:
    return tosaic.compile(net(), INPUTS, "ethos-u55-128", calibration=SAMPLES)


def to_codes(x: torch.Tensor, border: Any) -> torch.Tensor:
    codes = torch.ops.quantized_decomposed.quantize_per_tensor(
        x, border.scale, border.zero_point, -128, 127, torch.int8
    )
    return codes


class Nested(nn.Module):
    """Takes a dict and a keyword argument."""

    def forward(self, batch: dict[str, torch.Tensor], *, scale: torch.Tensor) -> torch.Tensor:
        return torch.relu(batch["image"] * scale) + batch["mask"]


def test_dicts_and_keyword_arguments_become_inputs() -> None:
    image, mask, scale = draw(1, 8), draw(1, 8, seed=1), draw(1, 8, seed=2)
    nested, by_name = ({"image": image, "mask": mask},), {"scale": scale}
    program = tosaic.compile(Nested().eval(), nested, "TOSA-1.0+INT", kwargs=by_name, calibration=[(*nested, scale)])
    assert [one.name for one in program.inputs] == ["batch_image", "batch_mask", "scale"]
    (got,) = program.run(image, mask, scale)
    want = Nested()(*nested, **by_name)
    assert np.abs(got - want.numpy()).max() < 0.05


def test_nothing_on_the_npu_is_a_warning() -> None:
    program = tosaic.compile(nn.Identity().eval(), (draw(1, 8),), "ethos-u55-128", delegate=False)
    assert not any("nothing runs on" in warning for warning in program.warnings)

    class Drop(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.native_dropout(x, 0.0, True)[0]

    program = tosaic.compile(Drop().eval(), (draw(1, 8),), "ethos-u55-128")
    assert any(warning.startswith("nothing runs on ethos-u55-128: all") for warning in program.warnings)


def test_progress_names_stages_and_samples() -> None:
    told: list[str] = []
    tosaic.compile(net(), INPUTS, "TOSA-1.0+INT", calibration=SAMPLES, progress=told.append)
    assert told == ["export", "quantize", "quantize: sample 1/2", "quantize: sample 2/2", "compile", "pack"]


def test_a_bundled_program_has_the_samples(plain: tosaic.Program) -> None:
    data = plain.bundle()
    assert data[4:8] == b"BP08" and plain.pte in data


def test_a_second_run_decodes_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    program, decoded = tosaic.compile(net(), INPUTS, "ethos-u55-128", calibration=SAMPLES), list[int]()
    decode = weights.decode_streams
    monkeypatch.setattr(weights, "decode_streams", lambda streams, offset: decoded.append(1) or decode(streams, offset))
    first = program.run(*INPUTS)
    assert decoded
    decoded.clear()
    second = program.run(*INPUTS)
    assert not decoded
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("io", ["float", "int8"])
def test_every_signature_computes_the_same(io: str, layout: str, plain: tosaic.Program) -> None:
    program = tosaic.compile(net(), INPUTS, "ethos-u55-128", calibration=SAMPLES, io=io, layout=layout)
    given = [x.permute(0, 2, 3, 1).contiguous() if layout == "nhwc" else x for x in INPUTS]
    if io == "int8":
        assert program.cpu_ops == {}
        given = [to_codes(x, b) for x, b in zip(given, program.inputs, strict=True)]
    got = program.run(*given)
    for one, border, want in zip(got, program.outputs, plain.run(*INPUTS), strict=True):
        assert one.dtype == (np.int8 if io == "int8" else np.float32)
        assert tuple(one.shape) == border.shape
        real = one
        if io == "int8":
            real = ((one.astype(np.float32) - border.zero_point) * np.float32(border.scale)).astype(np.float32)
        if border.layout == "nhwc":
            real = real.transpose(0, 3, 1, 2)
        assert np.array_equal(real, want)
    assert len(program.delegates) == 1
    plan = pte.read(program.pte).plans[0]
    for index, border in zip(plan.inputs, program.inputs, strict=True):
        value = plan.values[index]
        assert isinstance(value, pte.Tensor)
        assert (value.dtype, value.shape) == (border.dtype, border.shape)


def test_int8_borders_are_described_in_the_file() -> None:
    program = tosaic.compile(net(), INPUTS, "ethos-u55-128", calibration=SAMPLES, io="int8", layout="nhwc")
    read = pte.read(program.pte)
    assert [p.name for p in read.plans] == ["forward", "tosaic_io"]
    (text,) = [v for v in read.plans[1].values if isinstance(v, str)]
    described = json.loads(text)
    assert described["inputs"][0]["shape"] == [1, 6, 7, 3]
    assert described["inputs"][0]["scale"] == program.inputs[0].scale
    assert described["outputs"][0]["layout"] == "nhwc"


def test_report_and_sidecar(plain: tosaic.Program, tmp_path: Path) -> None:
    path = plain.save(tmp_path / "sub" / "net.pte")
    assert path.read_bytes() == plain.pte
    beside = sidecar.read(path.with_suffix(".tosaic").read_bytes())
    beside.check(plain.pte)
    assert [d.tosa for d in beside.delegates] == [plain.tosa()]
    assert len(beside.samples) == 2
    with torch.no_grad():
        image, vector = net()(*SAMPLES[1])
    assert np.array_equal(beside.samples[1].outputs[0], image.numpy())
    assert np.array_equal(beside.samples[1].outputs[1], vector.numpy())
    report = json.loads(json.dumps(plain.report().to_json()))
    assert report["schema"] == "tosaic-report/3"
    assert report["memory"]["network_in"] == "OffChipFlash"
    assert report["memory"]["scratch"] > 0
    assert set(report["seconds"]) == {"export", "quantize", "compile", "pack"}
    assert "ethos-u55-128" in str(plain)
    head = plain._repr_html_()
    assert "ethos-u55-128" in head and "<script" not in head
    bare = plain.save(tmp_path / "bare.pte", with_sidecar=False)
    assert not bare.with_suffix(".tosaic").exists()


def test_no_calibration_is_said() -> None:
    program = tosaic.compile(nn.Linear(4, 2).eval(), (draw(1, 4),), "ethos-u55-128")
    assert any("no calibration data" in w for w in program.warnings)
    model = nn.Linear(4, 2).eval()
    assert tosaic.compile(model, (draw(1, 4),), "ethos-u55-128", calibration=[draw(1, 4)]).warnings == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2.0, x * 2.0),
        lambda x: (x, x + 1.0),
        lambda x: [x + 1.0, None, 3],
        lambda x: {"a": x + 1.0, "b": torch.tanh(x)},
        lambda x: (x.split(2, 1)[0], x.split(2, 1)[1] * 3.0),
    ],
    ids=["twice", "input", "none", "dict", "split"],
)
def test_outputs_of_every_form(function: Any) -> None:
    class Call(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    x = draw(2, 4)
    program = tosaic.compile(Call().eval(), (x,), "ethos-u55-128", calibration=[x])
    want = [t.numpy() for t in tree_leaves(function(x)) if isinstance(t, torch.Tensor)]
    got = program.run(x)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert np.abs(a - b).max() <= 0.05 * np.abs(b).max()


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: torch.cond(x.sum() > 0, lambda t: t * 2.0, lambda t: t - 1.0, (x,)), draw(2, 4)),
        (lambda x: torch.fft.rfft(x).abs(), draw(8)),
        (lambda x: torch.fft.rfft(x), draw(8)),
        (lambda x: (x.double() * 2.0).float(), draw(4)),
        (lambda x: (x.half() * 2.0).float(), draw(4)),
        (lambda x: x * x, draw(1)[0]),
        (lambda x: x + 1, torch.arange(4)),
        (lambda x: x * x.max().item(), draw(2, 4)),
        (lambda x: x, draw(4)),
        (lambda x: torch.ones(3), draw(4)),
    ],
    ids=["cond", "spectrum", "complex", "double", "half", "number", "int64", "item", "input", "constant"],
)
@pytest.mark.parametrize("io", ["float", "int8"])
def test_what_no_npu_has_runs_on_the_cpu(function: Any, x: torch.Tensor, io: str) -> None:
    class Call(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    program = tosaic.compile(Call().eval(), (x,), "ethos-u55-128", io=io)
    assert all(r.why and r.where for r in program.reasons)
    (given,), (left,) = program.inputs, program.outputs
    (got,) = program.run(x if given.scale is None else to_codes(x, given))
    real = got if left.scale is None else (got.astype(np.float32) - left.zero_point) * left.scale
    want = function(x).numpy()
    assert real.shape == want.shape
    assert np.abs(real - want).max() <= 0.02 * max(np.abs(want).max(), 1e-3)
    assert program.verify().ok


def test_a_model_that_returns_nothing_is_refused() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            _ = x * 2.0

    with pytest.raises(Invalid, match="returns no tensor"):
        tosaic.compile(Nothing().eval(), (draw(4),))


def test_one_tensor_for_two_inputs() -> None:
    """exir would give both inputs one buffer; the compiled program must keep them apart."""

    class Minus(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a - b

    same = torch.ones(4, dtype=torch.int32)
    program = tosaic.compile(Minus().eval(), (same, same), "ethos-u55-128")
    assert program.run(np.full(4, 7, np.int32), np.full(4, 2, np.int32))[0].tolist() == [5, 5, 5, 5]
    plan = pte.read(program.pte).plans[0]
    inputs = [plan.values[i] for i in plan.inputs]
    places = [value.allocation for value in inputs if isinstance(value, pte.Tensor)]
    assert len({(p.memory_id, p.offset) for p in places if p is not None}) == 2


def test_float_target_runs_in_float() -> None:
    x = draw(1, 3, 6, 7)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.LayerNorm(80), nn.Softmax(-1)).eval()
    program = tosaic.compile(model, (x,), "TOSA-1.0+FP")
    assert len(program.delegates) == 1
    assert program.cpu_ops == {}
    with torch.no_grad():
        want = model(x).numpy()
    assert np.abs(program.run(x)[0] - want).max() <= 1e-5


def test_bad_input_is_refused() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(Invalid, match="train mode"):
        tosaic.compile(model.train(), (draw(1, 4),), "ethos-u55-128")
    model.eval()
    with pytest.raises(Invalid, match="integer NPU"):
        tosaic.compile(model, (draw(1, 4),), "ethos-u55-128", quantized=False)
    with pytest.raises(Invalid, match="ethos-u55-128") as caught:
        tosaic.compile(model, (draw(1, 4),), "ethos-u55-129")
    assert "did you mean" in caught.value.fix
    with pytest.raises(Invalid, match="io is `int4`"):
        tosaic.compile(model, (draw(1, 4),), io="int4")
    with pytest.raises(Invalid, match="a tuple of tensors"):
        tosaic.compile(model, draw(1, 4))
    with pytest.raises(Invalid, match=r"takes \[1, 4\]"):
        tosaic.compile(torch.export.export(model, (draw(1, 4),)), (draw(1, 5),))
    batch = torch.export.Dim("batch", min=1, max=8)
    dynamic = torch.export.export(model, (draw(2, 4),), dynamic_shapes=({0: batch},))
    with pytest.raises(Invalid, match="dynamic shapes"):
        tosaic.compile(dynamic, (draw(2, 4),))
    for other, what in (
        ((nn.Linear, (draw(1, 4),)), "`Linear`, not an nn.Module"),
        (("mobilenet_v2", (draw(1, 4),)), "`str`, not an nn.Module"),
        ((model, (draw(1, 4),), 55), "the target is of type `int`"),
        ((model, (torch.ones(1, 4, dtype=torch.int64),)), "the model does not run"),
    ):
        with pytest.raises(Invalid, match=what):
            tosaic.compile(*other)
    with pytest.raises(Invalid, match="calibration is of type `int`"):
        tosaic.compile(model, (draw(1, 4),), calibration=5)
    with pytest.raises(Invalid, match="`Linear`, not an exported one"):
        tosaic.quantize(model, [(draw(1, 4),)])
    for bad, what in ((torch.full((1, 4), float("nan")), "NaN"), (torch.ones(1, 4), "everywhere")):
        with pytest.raises(Invalid, match=what):
            tosaic.compile(model, (draw(1, 4),), calibration=[bad])


def test_example_inputs_of_a_converted_module_are_checked() -> None:
    module = tosaic.quantize(export(nn.Linear(4, 2).eval(), (draw(1, 4),)), [(draw(1, 4),)])
    with pytest.raises(Invalid, match=r"has shape \[3, 4\], the model takes \[1, 4\]"):
        tosaic.compile(module, (draw(3, 4),))
    with pytest.raises(Invalid, match="has 2 inputs, the model takes 1"):
        tosaic.compile(module, (draw(1, 4), draw(1, 4)))


class Writer(nn.Module):
    """Writes to its input and to a buffer, and returns what it has read and computed."""

    total: torch.Tensor

    def __init__(self, *, to_input: bool) -> None:
        super().__init__()
        self.to_input, self.layer = to_input, nn.Linear(4, 4)
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        if self.to_input:
            return torch.nn.functional.hardtanh_(x)
        before = self.total.clone()
        self.total.add_(x.sum(0))
        return self.layer(x) + self.total, before


@pytest.mark.parametrize(
    ("target", "engine"),
    [
        ("ethos-u55-128", "auto"),
        pytest.param("ethos-u55-128", "executorch", marks=needs_compiler),
        ("TOSA-1.0+FP", "auto"),
    ],
)
@pytest.mark.parametrize("to_input", [True, False])
def test_what_a_model_writes_to(to_input: bool, target: str, engine: str) -> None:
    torch.manual_seed(2)
    model, x = Writer(to_input=to_input).eval(), draw(2, 4)
    program = tosaic.compile(model, (x,), target, calibration=None if "FP" in target else [x, draw(2, 4, seed=4)])
    assert torch.equal(x, draw(2, 4)) and torch.equal(model.total, torch.ones(4))
    assert len(program.inputs) == 1
    got = program.run(x, engine=engine)
    with torch.no_grad():
        want = tree_leaves(copy.deepcopy(model)(x.clone()))
    assert len(got) == len(want) == len(program.outputs)
    for a, b in zip(got, want, strict=True):
        assert np.abs(a - b.numpy()).max() <= 0.03 * float(b.abs().max())


def test_torch_cannot_tell_what_a_model_changes() -> None:
    class Windows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.unfold(0, 3, 1).bitwise_xor_(6)

    with pytest.raises(Invalid, match=r"changes a tensor in place(.|\n)*clone"):
        tosaic.compile(Windows().eval(), (torch.arange(15, dtype=torch.int32).reshape(3, 5),), "ethos-u55-128")


def test_only_int8_borders_are_codes() -> None:
    """A model that takes codes, and one that returns int32 codes, keep their own signature with io="int8"."""
    codec = torch.ops.quantized_decomposed

    class Reads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = codec.dequantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8) * 2.0
            codes = codec.quantize_per_tensor(y, 0.2, 3, -(2**31), 2**31 - 1, torch.int32)
            return codec.dequantize_per_tensor(codes, 0.2, 3, -(2**31), 2**31 - 1, torch.int32)

    class Gives(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return codec.quantize_per_tensor(x * 2.0, 0.2, 3, -128, 127, torch.int8)

    codes = torch.arange(-8, 8, dtype=torch.int8).reshape(2, 8)
    for model, given in ((Reads(), codes), (Gives(), draw(2, 8))):
        program = tosaic.compile(model.eval(), (given,), "ethos-u55-128", io="int8")
        assert [b.scale for b in (*program.inputs, *program.outputs)] == [None, None]
        want = model(given).numpy()
        (got,) = program.run(given)
        assert got.dtype == want.dtype and np.array_equal(got, want)


def test_layers_in_train_mode_and_numbers_that_are_none() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    model[1].train()
    with pytest.raises(Invalid, match="the layer `1` of the model is in train mode"):
        tosaic.compile(model, (draw(3, 4),))
    model.eval()
    assert tosaic.compile(torch.export.export(model, (draw(3, 4),)).module(), (draw(3, 4),)).delegates
    nn.init.constant_(model[0].weight, float("inf"))
    with pytest.raises(Invalid, match="cannot be calibrated") as caught:
        tosaic.compile(model, (draw(3, 4),))
    assert "`0.weight` contains numbers that are not finite" in caught.value.fix and caught.value.where == ""
    nn.init.constant_(model[0].weight, float("nan"))
    with pytest.raises(Invalid, match=r"parameter `0\.weight` of the model contains NaN"):
        tosaic.compile(model, (draw(3, 4),))


def test_a_parameter_with_nan_is_refused_although_no_sample_uses_it() -> None:
    numbers = torch.ones(50, 16)
    numbers[49] = float("nan")
    model = nn.Sequential(nn.Embedding.from_pretrained(numbers), nn.ReLU()).eval()
    with pytest.raises(Invalid, match=r"parameter `0\.weight` of the model contains NaN"):
        tosaic.compile(model, (torch.arange(10)[None],))


def test_what_a_program_refuses(plain: tosaic.Program, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="input 0 is of type `str`, not a tensor"):
        plain.run("image.png", INPUTS[1])
    with pytest.raises(Invalid, match="is a folder"):
        plain.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_seven_models_both_targets() -> None:
    """One delegate and nothing on the CPU but the border; with int8 borders not even that."""
    for name in zoo.names():
        model, inputs = zoo.load(name)
        samples = zoo.inputs(name, 2, 1)
        for target in ("ethos-u55-128", "ethos-u85-256"):
            program = tosaic.compile(model, inputs, target, calibration=samples, io="int8")
            assert len(program.delegates) == 1, name
            assert program.cpu_ops == {}, name
            assert [r for r in program.reasons if not r.is_io] == [], name


def test_indices_go_in_and_floats_are_quantized() -> None:
    """An embedding takes integers, so only what it makes of them shows that there is something to quantize."""
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 8)).eval()
    tokens = torch.arange(10)[None]
    program = tosaic.compile(model, (tokens,), "ethos-u85-256")
    assert [r.op for r in program.reasons if not r.is_io] == ["aten.to.dtype"]
    got = program.run(tokens)[0]
    want = model(tokens).detach().numpy()
    assert np.abs(got - want).max() <= 0.05 * np.abs(want).max()
