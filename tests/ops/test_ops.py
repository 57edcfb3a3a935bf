"""Every sample of every operator record, in every flavour: `pytest -k add-tosa_INT-3` selects one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import build as samples
import numpy as np
import pytest
import torch

from tosaic.ethosu.compile_spec import EthosUCompileSpec
from tosaic.lower.delegate import build, lower_region
from tosaic.lower.partition import Plan, partition
from tosaic.lower.source import Source
from tosaic.ops._registry import registry
from tosaic.tools import reference
from tosaic.tosa.compile_spec import TosaCompileSpec

NPUS = {"u55_INT": "ethos-u55-128", "u65_INT": "ethos-u65-512", "u85_INT": "ethos-u85-256"}
COMPOSITE = frozenset(n for n, r in registry().records.items() if r.expand is not None)


def cases() -> Iterator[Any]:
    for name, record in registry().records.items():
        for index, sample in enumerate(record.samples()):
            for kind in sample.flavours:
                for flavour in [f"tosa_{kind}", *(NPUS if kind == "INT" else ())]:
                    group = pytest.mark.xdist_group(f"{name}-{index}")
                    yield pytest.param(name, flavour, index, id=f"{name}-{flavour}-{index}", marks=group)


def all_on_target(plan: Plan) -> None:
    left = {r.node: r.why for r in plan.reasons.values() if not r.border}
    assert left == {}
    assert len(plan.regions) == 1


def check_float(op: str, index: int) -> None:
    model, inputs, program = samples.exported(op, index)
    source, spec = Source.of_program(program), TosaCompileSpec("TOSA-1.0+FP")
    plan = partition(source, spec.target)
    all_on_target(plan)
    region = plan.regions[0]
    _, tosa = lower_region(source, region, spec, frozenset())
    given = [inputs[source.inputs.index(n)].numpy() for n in region.inputs]
    outputs = reference.run(tosa, given)
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(model(*[x.clone() for x in inputs]))
    assert len(outputs) == len(expected)
    for got, tensor in zip(outputs, expected, strict=True):
        want = tensor.numpy()
        assert got.dtype == want.dtype
        bound = 1e-5 * max(1.0, float(np.abs(want).max()))
        assert float(np.abs(got.astype(np.float64) - want).max()) <= bound


def check_integer(op: str, index: int) -> None:
    module, inputs = samples.quantised(op, index)
    source, spec = Source.of_module(module), TosaCompileSpec("TOSA-1.0+INT")
    plan = partition(source, spec.target)
    all_on_target(plan)
    region = plan.regions[0]
    _, tosa = lower_region(source, region, spec, frozenset())
    seen = samples.values_of(module, inputs)
    outputs = reference.run(tosa, [seen[n].numpy() for n in region.inputs])
    assert len(outputs) == len(region.outputs)
    for got, node in zip(outputs, region.outputs, strict=True):
        want = seen[node].numpy()
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        steps = np.abs(got.astype(np.int64) - want.astype(np.int64))
        if not inputs[0].is_floating_point():
            assert steps.max() == 0
        elif op in COMPOSITE:
            assert steps.max() <= 2
            assert (steps <= 1).mean() >= 0.99
        else:
            assert steps.max() <= 1


def check_npu(op: str, index: int, target: str) -> None:
    module, _ = samples.quantised(op, index)
    built = build(Source.of_module(module), EthosUCompileSpec(target))
    all_on_target(built.plan)
    compiled = built.delegates[0].compiled
    assert compiled is not None
    assert compiled.cmd_data[:4] in (b"COP1", b"COP2")
    assert len(compiled.inputs) == len(built.delegates[0].region.inputs)
    assert len(compiled.outputs) == len(built.delegates[0].region.outputs)


@pytest.mark.parametrize(("op", "flavour", "index"), list(cases()))
def test_op(op: str, flavour: str, index: int) -> None:
    if flavour == "tosa_FP":
        check_float(op, index)
    elif flavour == "tosa_INT":
        check_integer(op, index)
    else:
        check_npu(op, index, NPUS[flavour])
