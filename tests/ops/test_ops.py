"""Every sample of every operator record, in every flavor: `pytest -k add-tosa_INT-3` selects one.

`make test` runs some samples of each record with TOSA and on one NPU, `make test-all` all samples on all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from support import samples
from support.npu_bench import check_delegate
from tosaic.backends.ethosu import EthosUArtifact, EthosUCompileSpec
from tosaic.backends.tosa import TosaCompileSpec
from tosaic.core.targets import Target, find
from tosaic.driver.delegate import build, lower_partition
from tosaic.driver.partition import Partition, Plan, partition
from tosaic.engines import reference
from tosaic.fx.source import Source, overload
from tosaic.lower.constraints import RESULT
from tosaic.lower.samples import Sample
from tosaic.ops import registry

NPUS = {"u55_INT": "ethos-u55-128", "u65_INT": "ethos-u65-512", "u85_INT": "ethos-u85-256"}
COMPOSITE = frozenset(n for n, r in registry().records.items() if r.decompose is not None and not r.moves)

#: families that only move codes
EXACT = ("shuffle", "pad", "index")


#: the samples of a record that `make test` runs
SOME = 4


def choose_samples(count: int) -> set[int]:
    """Choose some samples of a record, the first and the last among them."""
    return {round(i * (count - 1) / (SOME - 1)) for i in range(SOME)} if count > SOME else set(range(count))


def choose_quick(samples: Sequence[Sample]) -> set[tuple[str, int]]:
    """Choose one NPU for every chosen sample in turn, and for every NPU at least one sample that it takes."""
    found = [(index, sample) for index, sample in enumerate(samples) if "INT" in sample.flavors]
    chosen = sorted(choose_samples(len(samples)) & {index for index, _ in found})
    quick = {(list(NPUS)[turn % len(NPUS)], index) for turn, index in enumerate(chosen)}
    for flavor, target in NPUS.items():
        taken = [(flavor, index) for index, sample in found if sample.targets(find(target))]
        if not quick.intersection(taken):
            quick.update(taken[:1])
    return quick


def cases() -> Iterator[Any]:
    for name, record in registry().records.items():
        quick, chosen = choose_quick(record.samples()), choose_samples(len(record.samples()))
        for index, sample in enumerate(record.samples()):
            for kind in sample.flavors:
                for flavor in [f"tosa_{kind}", *(NPUS if kind == "INT" else ())]:
                    marks = [pytest.mark.xdist_group(f"{name}-{index}")]
                    is_quick = (flavor, index) in quick if flavor in NPUS else index in chosen
                    if not is_quick:
                        marks.append(pytest.mark.slow)
                    yield pytest.param(name, flavor, index, id=f"{name}-{flavor}-{index}", marks=marks)


def all_on_target(plan: Plan) -> None:
    left = {r.node: r.why for r in plan.reasons.values() if not r.is_io}
    assert left == {}
    assert len(plan.partitions) == 1


def left_by_a_constraint(op: str, plan: Plan, target: Target) -> None:
    """What a target does not take stays on the CPU, and the reason is a sentence of the record, or one for all."""
    record = registry().records[op]
    constraints = (*record.constraints, *RESULT)
    sentences = {constraint.sentence for constraint in constraints if constraint.targets(target)}
    reasons = {r.why.partition("; here ")[0] for r in plan.reasons.values() if r.op in record.overloads}
    assert reasons & sentences


def check_float(op: str, index: int) -> None:
    model, inputs, program = samples.exported(op, index)
    source, spec = Source.of_program(program), TosaCompileSpec("TOSA-1.0+FP")
    plan = partition(source, spec.target)
    if not samples.sample_of(op, index).targets(spec.target):
        left_by_a_constraint(op, plan, spec.target)
        return
    all_on_target(plan)
    region = plan.partitions[0]
    _, tosa = lower_partition(source, region, spec, frozenset())
    given = [inputs[source.inputs.index(n)].numpy() for n in region.inputs]
    outputs = reference.run(tosa, given)
    with torch.no_grad():
        expected = tree_leaves(model(*[x.clone() for x in inputs]))
    assert len(outputs) == len(expected)
    for got, tensor in zip(outputs, expected, strict=True):
        want = tensor.numpy()
        assert got.dtype == want.dtype
        if got.dtype.kind != "f":
            assert np.array_equal(got, want)
            continue
        bound = 1e-5 * max(1.0, float(np.abs(want).max()))
        assert float(np.abs(got.astype(np.float64) - want).max()) <= bound


def compare(op: str, index: int, region: Partition, tosa: bytes) -> None:
    """The TOSA reference model against torch's own run of the quantized graph."""
    module, inputs = samples.quantized(op, index)
    seen = samples.values_of(module, inputs)
    outputs = reference.run(tosa, [seen[n].numpy() for n in region.inputs])
    assert len(outputs) == len(region.outputs)
    for got, node in zip(outputs, region.outputs, strict=True):
        want = seen[node].numpy()
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        steps = np.abs(got.astype(np.int64) - want.astype(np.int64))
        if got.dtype != np.int8 or registry().records[op].family in EXACT:
            assert steps.max() == 0
        elif op in COMPOSITE:
            assert steps.max() <= 2
            assert (steps <= 1).mean() >= 0.99
        else:
            assert steps.max() <= 1


def find_plain_spec(module: Any) -> TosaCompileSpec:
    """The plain integer profile; with int16 where a steep function reads a tensor that is stored in 16 bits."""
    steep = [n for n in module.graph.nodes if (found := registry().find(overload(n))) is not None and found.is_steep]
    read = {n.args[-1] for node in steep for n in node.all_input_nodes if "dequantize" in str(n.target)}
    return TosaCompileSpec("TOSA-1.0+INT+int16" if torch.int16 in read else "TOSA-1.0+INT")


def check_integer(op: str, index: int) -> None:
    module, _ = samples.quantized(op, index)
    source, spec = Source.of_module(module), find_plain_spec(module)
    plan = partition(source, spec.target)
    if not samples.sample_of(op, index).targets(spec.target):
        left_by_a_constraint(op, plan, spec.target)
        return
    all_on_target(plan)
    _, tosa = lower_partition(source, plan.partitions[0], spec, frozenset())
    compare(op, index, plan.partitions[0], tosa)


def check_npu(op: str, index: int, target: str) -> None:
    module, _ = samples.quantized(op, index)
    source, spec = Source.of_module(module), EthosUCompileSpec(target)
    built = build(source, spec)
    if not samples.sample_of(op, index).targets(spec.target):
        left_by_a_constraint(op, built.plan, spec.target)
        return
    all_on_target(built.plan)
    made = built.delegates[0]
    assert isinstance(made.artifact, EthosUArtifact)
    assert made.artifact.compiled.cmd_data[:4] in (b"COP1", b"COP2")
    assert len(made.artifact.compiled.inputs) == len(made.partition.inputs)
    assert len(made.artifact.compiled.outputs) == len(made.partition.outputs)
    # A decomposition that only this target has is compared here; all others in tosa_INT.
    if made.tosa != plain_tosa(op, index):
        compare(op, index, made.partition, made.tosa)
    for seed in range(2):
        given = samples.full_range(op, index, made.partition.inputs, seed)
        check_delegate(made, given)


@functools.lru_cache(maxsize=4)
def plain_tosa(op: str, index: int) -> bytes | None:
    """The .tosa file for plain TOSA, None where that target does not take the sample."""
    module, _ = samples.quantized(op, index)
    spec = find_plain_spec(module)
    if not samples.sample_of(op, index).targets(spec.target):
        return None
    source = Source.of_module(module)
    return lower_partition(source, partition(source, spec.target).partitions[0], spec, frozenset())[1]


@pytest.mark.parametrize(("op", "flavor", "index"), list(cases()))
def test_op(op: str, flavor: str, index: int) -> None:
    if flavor == "tosa_FP":
        check_float(op, index)
    elif flavor == "tosa_INT":
        check_integer(op, index)
    else:
        check_npu(op, index, NPUS[flavor])
