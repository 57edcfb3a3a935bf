"""`verify` against torch: the rules by themselves, and whole programs that are right or wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import tosaic
from support.cli import run_command
from tosaic.api.prepare import quantize
from tosaic.api.program import Program
from tosaic.api.torch_reference import Match, check_samples, judge
from tosaic.api.verification import verify
from tosaic.backends.tosa import TosaCompileSpec
from tosaic.core.errors import Invalid
from tosaic.core.tensor_info import TensorInfo
from tosaic.formats import sidecar
from tosaic.formats.sidecar import Sample, Sidecar, Trait
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Registry
from tosaic.lower.tensor import Stored, Tensor
from tosaic.ops import registry

INT8 = Trait(rounded=True, quantized=True, scale=0.5, dtype="int8")
INT16 = Trait(rounded=True, quantized=True, scale=0.5, dtype="int16")


def match(got: Any, want: Any, trait: Trait, floats: Any = None, dtype: str = "float32") -> Match:
    """The judgment of one output of one sample."""
    got, want = np.asarray(got), np.asarray(want)
    outputs = () if floats is None else (np.asarray(floats, np.float32),)
    sample = Sample((), outputs, (want,))
    made = Sidecar("", "", "", {}, (), (TensorInfo("y", want.shape, dtype),), (), (sample,), (trait,))
    (found,) = judge([[got]], made)
    json.dumps(found.to_json(), allow_nan=False)
    return found


def steps(count: int, *off: int) -> npt.NDArray[np.float32]:
    """As many numbers on a grid of 0.5, some of them so many steps away from zero."""
    return np.array([*off, *[0] * (count - len(off))], np.float32) * np.float32(0.5)


@pytest.mark.parametrize(
    ("off", "trait", "ok"),
    [
        ((1,) * 200, INT8, True),
        ((2, -2), INT8, True),
        ((2, 2, 2), INT8, False),
        ((3,), INT8, False),
        ((2,) * 200, INT16, True),
        ((4,), INT16, False),
        ((5,), INT16, False),
    ],
)
def test_steps_of_the_output(off: tuple[int, ...], trait: Trait, ok: bool) -> None:
    # The float outputs are torch's: what is off is worse than torch.
    found = match(steps(200, *off), steps(200), trait, floats=steps(200))
    assert (found.ok, found.rule) == (ok, "steps" if ok else "SQNR")
    assert found.largest == max(map(abs, off))
    assert str(found).startswith("output 0" if ok else "DIFFERENT: output 0")


def test_one_of_1000_may_be_four_int16_steps_off() -> None:
    assert match(steps(1000, 4), steps(1000), INT16, floats=steps(1000)).rule == "steps"


def test_drift_is_judged_by_sqnr() -> None:
    generator = np.random.default_rng(0)
    floats = generator.uniform(-40, 40, 4000)
    want = np.rint((floats + generator.normal(0, 5, 4000)) * 2) / 2
    found = match(np.rint((want + generator.normal(0, 1, 4000)) * 2) / 2, want, INT8, floats)
    assert found.ok and found.rule == "SQNR"
    assert found.sqnr is not None and found.torch_sqnr is not None and found.sqnr < found.torch_sqnr
    assert not match(np.rint((want + generator.normal(0, 3, 4000)) * 2) / 2, want, INT8, floats).ok
    # Without float outputs only what computes something else is found.
    assert match(want + 2, want, INT8).ok
    assert not match(-want, want, INT8).ok


@pytest.mark.parametrize(
    ("dtype", "off", "ok"),
    [
        ("float32", 0.9e-5, True),
        ("float32", 1.2e-5, False),
        ("float16", 15 / 1024, True),
        ("float16", 17 / 1024, False),
    ],
)
def test_floats(dtype: str, off: float, ok: bool) -> None:
    want = np.ones(7, np.float32)
    got = np.float32([1 + off, *want[1:]])
    assert match(got, want, Trait(rounded=True, dtype=dtype)).ok is ok


def test_not_a_number() -> None:
    one, other = np.float32([np.nan, np.inf, 1]), np.float32([1, np.inf, 1])
    assert match(one, one, Trait(rounded=True, dtype="float32")).ok
    assert not match(one, other, Trait(rounded=True, dtype="float32")).ok
    assert not match(one, other, INT8, floats=other).ok


def test_bits_of_bfloat16() -> None:
    want = np.array([0x3F80, 0x4000], np.uint16)
    trait = Trait(rounded=True, dtype="bfloat16")
    assert match(want + 16, want, trait, dtype="bfloat16").ok
    assert not match(want + 17, want, trait, dtype="bfloat16").ok


@pytest.mark.parametrize(
    ("wrong", "trait", "ok"),
    [
        (1, Trait(), False),
        (0, Trait(), True),
        (3, Trait(rounded=True), True),
        (4, Trait(rounded=True), False),
        (15, Trait(quantized=True), True),
        (16, Trait(quantized=True), False),
    ],
)
def test_integers(wrong: int, trait: Trait, ok: bool) -> None:
    want = np.arange(300, dtype=np.int64) + (1 << 60)
    got = want.copy()
    got[:wrong] += 1
    assert match(got, want, trait, dtype="int64").ok is ok


def test_samples_that_do_not_fit_are_refused() -> None:
    border = TensorInfo("x", (2,), "float32")
    good = Sidecar("", "", "", {}, (border,), (border,), (), (Sample((np.zeros(2),), (), (np.zeros(2),)),), (Trait(),))
    check_samples(good)
    for sample in (
        Sample((), (), (np.zeros(2),)),
        Sample((np.zeros(2),), (np.zeros(3),)),
        Sample((np.zeros(2),), (), (np.zeros(2), np.zeros(2))),
    ):
        with pytest.raises(Invalid, match="damaged"):
            check_samples(dataclasses.replace(good, samples=(sample,)))
    with pytest.raises(Invalid, match="damaged"):
        check_samples(dataclasses.replace(good, traits=()))


class Net(torch.nn.Module):
    """A float output on a grid, one that is moved after it, a comparison, and an argmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(self.conv(x))
        return y, y.flatten(1)[:, ::2], y > 0.1, y.argmax(1)


def smooth(*shape: int) -> torch.Tensor:
    return torch.sin(torch.arange(float(np.prod(shape)))).reshape(shape)


@pytest.fixture(scope="module")
def net() -> Program:
    return tosaic.compile(Net().eval(), (smooth(1, 3, 8, 8),), calibration=[smooth(1, 3, 8, 8), smooth(1, 3, 8, 8) * 2])


def test_program_is_compared_with_torch(net: Program) -> None:
    verdict = net.verify(rounds=1)
    assert verdict.ok, str(verdict)
    assert [m.rule for m in verdict.torch] == ["steps", "steps", "flips", "flips"]
    first = verdict.torch[0]
    assert (first.size, first.quantized) == (2 * 8 * 64, True)
    assert first.within is not None and first.within > 0.99
    assert first.sqnr == verdict.sqnr[0]
    assert "output 0 against torch's quantized graph: " in str(verdict)
    assert f" (torch's quantized graph: {first.torch_sqnr:.1f} dB)" in str(verdict)
    assert json.loads(json.dumps(verdict.to_json(), allow_nan=False))["torch"][0]["rule"] == "steps"


def test_other_outputs_of_torch_are_found(net: Program) -> None:
    beside = sidecar.read(net.sidecar())
    for position in range(4):
        samples = []
        for sample in beside.samples:
            arrays = {"outputs": list(sample.outputs), "torch": list(sample.torch)}
            for part in arrays.values():
                part[position] = ~part[position] if part[position].dtype == np.bool_ else -part[position] - 1
            samples.append(Sample(sample.inputs, tuple(arrays["outputs"]), tuple(arrays["torch"])))
        verdict = verify(net.pte, dataclasses.replace(beside, samples=tuple(samples)), rounds=0)
        assert not verdict.ok and not verdict.differences
        assert [m.output for m in verdict.torch if not m.ok] == [position]
        assert f"DIFFERENT: output {position} against torch's quantized graph" in str(verdict)


def test_older_format_says_what_is_missing(net: Program) -> None:
    beside = sidecar.read(net.sidecar())
    old = tuple(Sample(s.inputs, s.outputs) for s in beside.samples)
    verdict = verify(net.pte, dataclasses.replace(beside, samples=old, traits=()), rounds=0)
    assert verdict.ok and verdict.torch == () and len(verdict.sqnr) == 4
    assert verdict.skipped == (
        "the distance from torch: the .tosaic file has an older format; compile the model again",
    )


def test_run_and_verify_do_not_pack_the_sidecar(net: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("packed or unpacked")

    monkeypatch.setattr(sidecar, "write", refuse)
    monkeypatch.setattr(sidecar, "read", refuse)
    net.run(smooth(1, 3, 8, 8), engine="tosa")
    assert net.verify(rounds=0).ok


def test_memory_is_bounded(net: Program) -> None:
    with pytest.raises(Invalid, match="max_memory"):
        verify(net.pte, sidecar.read(net.sidecar()), max_memory=100)


@pytest.mark.parametrize("options", [{"io": "int8"}, {"layout": "nhwc"}], ids=str)
def test_other_borders(options: dict[str, Any]) -> None:
    verdict = tosaic.compile(Net().eval(), (smooth(1, 3, 8, 8),), **options).verify(rounds=0)
    assert verdict.ok, str(verdict)
    assert [m.rule for m in verdict.torch] == ["steps", "steps", "flips", "flips"]


class Count(torch.nn.Module):
    """A model with a state: each sample must begin with the one that the model was saved with."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((1, 4), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(torch.relu(x))
        return self.total * 0.5


def test_state_is_reset_before_each_sample() -> None:
    samples = [smooth(1, 4), smooth(1, 4) * 2, smooth(1, 4) * 3]
    program = tosaic.compile(Count().eval(), (samples[0],), calibration=samples)
    assert len(program.samples) == 3
    for sample, x in zip(program.samples, samples, strict=True):
        assert np.allclose(sample.torch[0], (torch.relu(x) + 0.25).numpy() * 0.5, atol=0.05)
    verdict = program.verify(rounds=0)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("exported", [False, True])
def test_quantized_model_keeps_its_example(exported: bool) -> None:
    inputs = (smooth(1, 4),)
    module = quantize(torch.export.export(Count().eval(), inputs), [inputs])
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    program = tosaic.compile(torch.export.export(module, inputs) if exported else module, inputs)
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())
    (sample,) = program.samples
    assert sample.outputs == () and len(sample.torch) == 1
    verdict = program.verify(rounds=0)
    assert verdict.ok and verdict.sqnr == () and len(verdict.torch) == 1, str(verdict)
    assert verdict.skipped == ("the distance from float: the model was already quantized",)


class Cast(torch.nn.Module):
    def __init__(self, back: bool) -> None:
        super().__init__()
        self.back = back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.int32)
        return y.to(torch.float32) * 0.5 if self.back else y + 1


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering of casts that is TOSA's CAST alone, which rounds to nearest where torch truncates."""

    def lower(lo: Lowering, self: Tensor, dtype: Any = None, **_: Any) -> Tensor:
        kind = DType.I32 if dtype is torch.int32 else DType.F32
        assert isinstance(self, Stored)
        return dataclasses.replace(self, value=tosa.cast(lo.b, self.value, kind))

    casts = registry().find("aten.to.dtype")
    assert casts is not None
    wrong, find = dataclasses.replace(casts, lower=lower), Registry.find
    monkeypatch.setattr(Registry, "find", lambda self, name: wrong if find(self, name) is casts else find(self, name))


@pytest.mark.usefixtures("rounding")
@pytest.mark.parametrize("back", [False, True])
def test_rounding_cast_is_found(back: bool) -> None:
    model = Cast(back).eval()
    near, far = torch.tensor([[0.2, 1.4, -2.3, 3.0]]), torch.tensor([[0.2, 1.6, -2.7, 3.0]])
    for x, ok in ((near, True), (far, False)):
        program = tosaic.compile(model, (x,), "TOSA-1.0+FP")
        assert len(program.delegates) == 1
        verdict = program.verify()
        assert (verdict.ok, verdict.engine, verdict.compared) == (ok, "tosa", 0), str(verdict)
        assert verdict.torch[0].rule == ("float" if back else "equal")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_are_kept_and_compared(dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()).to(dtype).eval()
    target = TosaCompileSpec("TOSA-1.0+FP+bf16")
    program = tosaic.compile(model, (smooth(2, 8).to(dtype),), target)
    assert len(program.delegates) == 1
    verdict = verify(program.pte, sidecar.read(program.sidecar()))
    assert verdict.ok and verdict.torch[0].rule == "float", str(verdict)
    assert verdict.sqnr[0] > 30


def test_complex_numbers_are_not_kept() -> None:
    program = tosaic.compile(Spectrum().eval(), (smooth(8),), "TOSA-1.0+FP")
    assert program.samples == ()
    assert program.verify().skipped[-1].endswith("there are no samples")


class Spectrum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x * 2.0)


class TestCommand:
    """`tosaic compile --verify` and `tosaic verify` for a TOSA target."""

    def test_tosa_target(self, tmp_path: Path) -> None:
        done = run_command("compile", "add", "-t", "TOSA-1.0+INT", "-o", tmp_path / "add.pte", "--verify")
        assert done.code == 0, done.stderr
        assert done.stdout.rstrip().endswith("output 0 against torch: 5 of 5 values are equal\nPASS")
        done = run_command("verify", tmp_path / "add.pte", "--json")
        found = json.loads(done.stdout)
        assert (done.code, found["ok"], found["engine"], found["compared"]) == (0, True, "tosa", 0)
        assert found["torch"][0]["rule"] == "equal"

    def test_different(self, net: Program, tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
        path = net.save(tmp_path / "net.pte")
        path.with_suffix(".tosaic").write_bytes(change(net.sidecar()))
        done = run_command("verify", path, "--rounds", 0)
        assert done.code == 1
        assert "DIFFERENT: output 2 against torch's quantized graph" in done.stdout
        assert done.stdout.rstrip().endswith("\nFAIL")

    @pytest.fixture
    def change(self) -> Callable[[bytes], bytes]:
        """A sidecar with the opposite of a bool output."""

        def change(data: bytes) -> bytes:
            beside = sidecar.read(data)
            samples = tuple(
                dataclasses.replace(s, torch=(*s.torch[:2], ~s.torch[2], *s.torch[3:])) for s in beside.samples
            )
            return sidecar.write(dataclasses.replace(beside, samples=samples))

        return change


@pytest.mark.parametrize("delegate", [True, False])
@pytest.mark.parametrize("order", [lambda x: torch.topk(x, 5), lambda x: torch.sort(x, descending=True)])
def test_positions_of_equal_numbers(order: Callable[[torch.Tensor], Any], delegate: bool) -> None:
    class Order(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, places = order(x)
            return values, places.to(torch.int32)

    # In 8 bits most of the numbers have an equal one.
    inputs = (torch.linspace(-1.0, 1.0, 600).roll(250).reshape(1, 600),)
    program = tosaic.compile(Order().eval(), inputs, "ethos-u55-128", calibration=[inputs], delegate=delegate)
    assert bool(program.delegates) == delegate
    places = program.run(*inputs)[1][0]
    assert len(set(places.tolist())) == len(places)
    verdict = program.verify()
    assert verdict.ok, str(verdict)
