"""Whole models and the samples of the operator records, quantised and lowered, against the reference model."""

from __future__ import annotations

import warnings
from typing import Any

import build as samples
import numpy as np
import pytest

from tosaic.lower.partition import partition
from tosaic.lower.program import lower
from tosaic.lower.source import Source
from tosaic.ops._registry import registry
from tosaic.rewrite import rewrite
from tosaic.targets import find
from tosaic.tosa.flatbuffer import serialize

TARGETS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
#: Vela 5.2.0 makes wrong streams of a REDUCE_MIN that a RESHAPE follows, on U55 and U65.
MISCOMPILED = ("amin",)


def _regions(module: Any, target: str) -> list[tuple[bytes, Any]]:
    source, chosen = Source.of_module(module), find(target)
    found: list[tuple[bytes, Any]] = []
    for region in partition(source, chosen).regions:
        graph = rewrite(lower(source, region.nodes, region.inputs, region.outputs, chosen), chosen)
        found.append((serialize(graph), region))
    return found


def _check_module(bench: Any, module: Any, inputs: Any, target: str) -> int:
    values = samples.values_of(module, inputs)
    regions = _regions(module, target)
    for tosa, region in regions:
        bench.check(tosa, [values[node].numpy() for node in region.inputs], target)
    return len(regions)


def _records(every: bool) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for name, record in registry().records.items():
        chosen = [i for i, sample in enumerate(record.samples()) if "INT" in sample.flavours]
        found += [(name, index) for index in (chosen if every else chosen[:1])]
    return found


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("op", ["conv2d", "linear", "softmax", "layer_norm", "cat", "avg_pool2d", "gelu", "mean"])
def test_sample(bench: Any, op: str, target: str) -> None:
    index = next(index for name, index in _records(every=False) if name == op)
    module, inputs = samples.quantised(op, index)
    assert _check_module(bench, module, inputs, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("op", "index"), _records(every=True))
def test_every_sample(bench: Any, op: str, index: int, target: str) -> None:
    if op in MISCOMPILED and "u85" not in target:
        pytest.skip("Vela 5.2.0 makes a wrong stream of it")
    module, inputs = samples.quantised(op, index)
    _check_module(bench, module, inputs, target)


@pytest.mark.parametrize("target", TARGETS)
def test_resnet8(bench: Any, quantised_zoo: Any, target: str) -> None:
    module, inputs, _ = quantised_zoo("resnet8")
    assert _check_module(bench, module, inputs, target) == 1


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ["mobilenet_v2", "ds_cnn", "encoder_layer", "deep_autoencoder"])
def test_model(bench: Any, quantised_zoo: Any, model: str, target: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, inputs, _ = quantised_zoo(model)
    assert _check_module(bench, module, inputs, target) == 1
    assert all(np.isfinite(x.numpy()).all() for x in inputs)
