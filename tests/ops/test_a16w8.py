"""Activations of 16 bits: every sample of every operator, on the three families.

`make test` runs one sample of each operator on one NPU, `make test-all` all of them on all NPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tosaic
from support import samples
from support.npu_bench import check_delegate
from tosaic import zoo
from tosaic.api.prepare import quantize
from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.backends.tosa import TosaCompileSpec
from tosaic.core.targets import find
from tosaic.driver.delegate import build, lower_partition
from tosaic.driver.exported import export
from tosaic.driver.partition import Plan, partition
from tosaic.engines import reference
from tosaic.fx.source import Source
from tosaic.lower import interpolation, rounding
from tosaic.lower.constraints import RESULT
from tosaic.ops import registry
from tosaic.quantization.precisions import Precision

NPUS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
TOSA = "TOSA-1.0+INT+int16"


def list_samples(name: str) -> list[int]:
    """The samples with something to quantize; integers are the same in every precision."""
    found = enumerate(registry().records[name].samples())
    return [i for i, sample in found if "INT" in sample.flavors and any(x.dtype == "float32" for x in sample.inputs)]


def cases() -> Iterator[Any]:
    for turn, name in enumerate(registry().records):
        indices = list_samples(name)
        for index in indices:
            for target in NPUS:
                quick = index == indices[0] and target == NPUS[turn % len(NPUS)]
                marks = () if quick else pytest.mark.slow
                yield pytest.param(name, target, index, id=f"{name}-{target}-{index}", marks=marks)


def check_refusal(op: str, plan: Plan, target: str) -> None:
    """What stays on the CPU has a reason that is a sentence of a record, or of all functions of 16 bits."""
    records = [r for r in registry().records.values() if r.name == op or r.decompose is None]
    constraints = [*RESULT, *(c for r in records for c in r.constraints if c.targets(find(target)))]
    sentences = {*(c.sentence for c in constraints), interpolation.SENTENCE, rounding.SENTENCE}
    # A comparison with a number that no value can have is false for all of them: nothing is left to compute.
    constant = any(r.why.startswith("its result does not depend on") for r in plan.reasons.values())
    assert constant or {r.why.partition("; here ")[0] for r in plan.reasons.values()} & sentences


def check_steps(got: Any, want: Any) -> None:
    """16 bits: 99.9 % within 2 steps, none above 4. Booleans and integers are equal."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    steps = np.abs(got.astype(np.int64) - want.astype(np.int64))
    if got.dtype == np.int16:
        assert steps.max(initial=0) <= 4
        assert (steps <= 2).mean() >= 0.999
    else:
        assert steps.max(initial=0) == 0


def check_stages(module: Any, seen: dict[torch.fx.Node, Any]) -> None:
    """Each stage of a composite, on the input that torch has for it."""
    whole, inputs, outputs = samples.cut(module, seen)
    given = dict(zip((n.name for n in whole.graph.find_nodes(op="placeholder")), inputs, strict=True))
    wanted = dict(zip(whole.graph.output_node().args[0], outputs, strict=True))
    source, spec = Source.of_module(whole), TosaCompileSpec(TOSA)
    plan = partition(source, spec.target)
    assert [r.why for r in plan.reasons.values() if not r.is_io] == []
    for region in plan.partitions:
        _, tosa = lower_partition(source, region, spec, frozenset())
        found = reference.run(tosa, [seen[given[n.name]].numpy() for n in region.inputs])
        for got, node in zip(found, region.outputs, strict=True):
            check_steps(got, seen[wanted[node]].numpy())


@pytest.mark.parametrize(("op", "target", "index"), list(cases()))
def test_op(op: str, target: str, index: int) -> None:
    module, inputs = samples.quantized(op, index, "a16w8")
    built = build(Source.of_module(module), EthosUCompileSpec(target))
    if any(not reason.is_io for reason in built.plan.reasons.values()):
        check_refusal(op, built.plan, target)
        return
    assert samples.sample_of(op, index).targets(find(target))
    (made,) = built.delegates
    seen = samples.values_of(module, inputs)
    if registry().records[op].decompose is not None:
        check_stages(module, seen)
    else:
        found = reference.run(made.tosa, [seen[n].numpy() for n in made.partition.inputs])
        for got, node in zip(found, made.partition.outputs, strict=True):
            check_steps(got, seen[node].numpy())
    given = samples.full_range(op, index, made.partition.inputs, index, "a16w8")
    check_delegate(made, given)


class Places(nn.Module):
    """Where the largest and the smallest numbers are, the first of equal ones."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = x.round()
        return x.argmax(-1).int(), whole.argmin(1).int(), whole.max(1)[1].int(), x.reshape(-1)[:100].argmax().int()


@pytest.mark.parametrize("target", NPUS)
def test_positions_of_16_bits(target: str) -> None:
    given = [(torch.randn(3, 5, 17, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
    program = tosaic.compile(Places().eval(), given[0], target, precision="a16w8", calibration=given)
    assert [r.why for r in program.reasons if not r.is_io] == []
    assert program.verify(rounds=1).ok
    for sample in given:
        for found, wanted in zip(program.run(*sample), Places()(*sample), strict=True):
            assert np.array_equal(found, wanted.numpy())


class Recurrent(nn.Module):
    """An LSTM and a layer that reads its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


def load(name: str) -> tuple[nn.Module, Any, Any, Any]:
    """A model, its inputs, inputs for calibration, and others for evaluation."""
    if name != "lstm":
        model, inputs = zoo.load(name)
        return model, inputs, zoo.inputs(name, 4, 1), zoo.inputs(name, 4, 7)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        given = [(torch.randn(1, 12, 16),) for _ in range(8)]
        return Recurrent().eval(), given[0], given[:4], given[4:]


def find_sqnr(found: list[Any], wanted: list[Any]) -> float:
    """The mean ratio of signal to noise in dB."""
    pairs = zip(found, wanted, strict=True)
    return float(np.mean([10.0 * np.log10(np.square(w).sum() / np.square(g - w).sum()) for g, w in pairs]))


@pytest.mark.slow
@pytest.mark.parametrize("target", NPUS)
@pytest.mark.parametrize("name", ["encoder_layer", "lstm", "unet", "mobilenet_v2"])
def test_network(name: str, target: str) -> None:
    model, inputs, calibration, others = load(name)
    program = tosaic.compile(model, inputs, target, precision="a16w8", calibration=calibration)
    assert [r.why for r in program.reasons if not r.is_io] == []
    assert len(program.delegates) == 1
    assert program.verify(rounds=1).ok
    exported = export(model, inputs)
    quantized = quantize(exported, calibration, Precision("a16w8").make_quantizer(exported.graph, "float"))
    with torch.no_grad():
        wanted = [model(*x).numpy() for x in others]
        expected = find_sqnr([quantized(*x).numpy() for x in others], wanted)
    assert find_sqnr([program.run(*x)[0] for x in others], wanted) >= expected - 0.5
