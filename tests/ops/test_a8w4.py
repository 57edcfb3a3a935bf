"""Weights of four bits: every sample of every operator with weights, on the three families.

`make test` runs one sample of each operator, `make test-all` all of them.
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
from tosaic.core.specification import Specification
from tosaic.core.targets import find
from tosaic.driver.delegate import build, lower_partition
from tosaic.driver.exported import export
from tosaic.driver.partition import partition
from tosaic.engines import reference
from tosaic.formats.tosa_reader import read
from tosaic.fx.source import Source
from tosaic.ir.graph import DType, Graph
from tosaic.ir.verifier import verify
from tosaic.ops import registry
from tosaic.quantization.precisions import PRECISIONS
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.tosa import TosaCompileSpec

NPUS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
#: these have a weight that is a constant of the layer
LAYERS = [name for name, record in registry().records.items() if record.quant == "weight"]
#: these may multiply two computed tensors
PRODUCTS = [name for name, record in registry().records.items() if record.reads_weight_matrix]
CONVOLUTIONS = ("CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D")


def cases() -> Iterator[Any]:
    for name in (*LAYERS, *PRODUCTS):
        indices = [i for i, sample in enumerate(registry().records[name].samples()) if "INT" in sample.flavors]
        for index in indices:
            for target in NPUS:
                marks = () if index == indices[0] else pytest.mark.slow
                yield pytest.param(name, target, index, id=f"{name}-{target}-{index}", marks=marks)


def find_weights(graph: Graph) -> list[DType]:
    return [op.operand("weight").dtype for op in graph.ops if op.kind in CONVOLUTIONS]


@pytest.mark.parametrize(("op", "target", "index"), list(cases()))
def test_op(op: str, target: str, index: int) -> None:
    module, inputs = samples.quantized(op, index, "a8w4")
    built = build(Source.of_module(module), EthosUCompileSpec(target))
    if not samples.sample_of(op, index).targets(find(target)):
        assert built.plan.reasons
        return
    assert {r.node: r.why for r in built.plan.reasons.values() if not r.is_io} == {}
    (made,) = built.delegates
    assert op in PRODUCTS or DType.I4 in find_weights(read(made.tosa))
    seen = samples.values_of(module, inputs)
    found = reference.run(made.tosa, [seen[n].numpy() for n in made.partition.inputs])
    composite = registry().records[op].decompose is not None
    for got, node in zip(found, made.partition.outputs, strict=True):
        steps = np.abs(got.astype(np.int64) - seen[node].numpy().astype(np.int64))
        assert steps.max() <= (2 if composite else 1)
    for seed in range(2):
        given = samples.full_range(op, index, made.partition.inputs, seed, "a8w4")
        check_delegate(made, given)


def lower(precision: str, target: str) -> Graph:
    """The graph of a layer for a specification of TOSA."""
    x = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Conv2d(4, 8, 3).eval()
    quantizer = TosaQuantizer().set_global(PRECISIONS[precision]())
    source, spec = Source.of_module(quantize(export(model, (x,)), [(x,)], quantizer)), TosaCompileSpec(target)
    (region,) = partition(source, spec.target).partitions
    graph, tosa = lower_partition(source, region, spec, frozenset())
    verify(read(tosa), Specification.parse(target))
    return graph


def test_a_weight_is_i4_where_the_specification_has_it() -> None:
    assert find_weights(lower("a8w4", "TOSA-1.0+INT+int4")) == [DType.I4]
    assert find_weights(lower("a8w4", "TOSA-1.0+INT")) == [DType.I8]
    assert find_weights(lower("int8", "TOSA-1.0+INT+int4")) == [DType.I8]


def test_both_types_hold_the_same_numbers() -> None:
    (four,), (eight,) = (
        [op for op in lower("a8w4", target).ops if op.kind == "CONV2D"]
        for target in ("TOSA-1.0+INT+int4", "TOSA-1.0+INT")
    )
    numbers = four.operand("weight").data
    assert numbers is not None and np.abs(numbers).max() == 7
    assert np.array_equal(numbers, np.asarray(eight.operand("weight").data))


@pytest.mark.slow
@pytest.mark.parametrize("target", NPUS)
def test_mobilenet_v2_is_smaller(target: str) -> None:
    (model, inputs), given = zoo.load("mobilenet_v2"), zoo.inputs("mobilenet_v2", 2, 1)
    whole, program = (
        tosaic.compile(model, inputs, target, precision=precision, calibration=given) for precision in ("int8", "a8w4")
    )
    assert program.verify(rounds=1).ok
    (delegate,) = program.delegates
    sums = [op.operand("weight") for op in read(delegate.tosa).ops if op.kind in CONVOLUTIONS]
    # What is left are sums, which multiply by one.
    assert all(w.dtype is DType.I4 or (w.data is not None and set(np.unique(w.data)) <= {0, 1}) for w in sums)
    assert len(program.pte) <= 0.62 * len(whole.pte)
