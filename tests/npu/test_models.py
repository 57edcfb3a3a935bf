"""Whole models and the samples of the operator records, quantized and lowered, against the reference model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from support import samples
from support.models import quantize_model
from support.npu_bench import Bench
from tosaic import npu, zoo
from tosaic.core.targets import ACCELERATORS, find
from tosaic.driver.partition import partition
from tosaic.engines import reference
from tosaic.formats.tosa_writer import serialize
from tosaic.fx.source import Source
from tosaic.lower.walk import lower
from tosaic.ops import registry
from tosaic.passes import run_passes

TARGETS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
OTHERS = [name for name in ACCELERATORS if name not in TARGETS]
LISTING = ("--verbose-register-command-stream",)
_ALL = ("Sram_Only", "Shared_Sram", "Dedicated_Sram", *(f"Dedicated_Sram_{size}KB" for size in (256, 384, 512)))
MODES = {"u55": _ALL[:2], "u65": _ALL, "u85": _ALL}
PLACES = [(target, mode) for target in TARGETS for mode in MODES[find(target).family]]
MODELS = [name for name in zoo.names() if name != "add"]


def _regions(module: Any, target: str) -> list[tuple[bytes, Any]]:
    source, chosen = Source.of_module(module), find(target)
    found: list[tuple[bytes, Any]] = []
    for region in partition(source, chosen).partitions:
        graph = run_passes(lower(source, region.nodes, region.inputs, region.outputs, chosen), chosen)
        found.append((serialize(graph), region))
    return found


def _check(bench: Bench, module: Any, draw: Any, places: Sequence[tuple[str, str]]) -> None:
    """Every delegate, on two inputs, in every place, with Vela's listing of its commands beside ours."""
    for target in dict.fromkeys(target for target, _ in places):
        for tosa, region in _regions(module, target):
            inputs = [draw(region, seed) for seed in range(2)]
            wanted = [reference.run(tosa, given) for given in inputs]
            for mode in (mode for at, mode in places if at == target):
                compiled = bench.compile(tosa, target, mode, LISTING)
                assert npu.disassemble(compiled.cmd_data).splitlines() == bench.read_listing(compiled.log)
                for given, outputs in zip(inputs, wanted, strict=True):
                    bench.compare(compiled, given, outputs)
    bench.compile.cache_clear()


def _samples() -> list[tuple[str, int]]:
    chosen = [(name, r.samples()) for name, r in registry().records.items()]
    return [(name, index) for name, all_ in chosen for index, one in enumerate(all_) if "INT" in one.flavors]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "index"), _samples())
def test_every_sample_in_every_mode(bench: Bench, op: str, index: int) -> None:
    module, _ = samples.quantized(op, index)
    _check(bench, module, lambda region, seed: samples.full_range(op, index, region.inputs, seed), PLACES)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "index"), _samples()[:: len(_samples()) // 30])
def test_other_accelerators(bench: Bench, op: str, index: int) -> None:
    module, _ = samples.quantized(op, index)
    places = [(target, "") for target in OTHERS]
    _check(bench, module, lambda region, seed: samples.full_range(op, index, region.inputs, seed), places)


def _check_model(bench: Bench, made: Any, places: Sequence[tuple[str, str]]) -> None:
    module, inputs, _ = made
    seen = samples.values_of(module, inputs)

    def draw(region: Any, seed: int) -> list[Any]:
        generator = np.random.default_rng(seed)
        return [generator.integers(-128, 128, seen[node].shape, dtype=np.int8) for node in region.inputs]

    assert all(len(_regions(module, target)) == 1 for target, _ in places)
    _check(bench, module, draw, places)


@pytest.mark.parametrize("target", TARGETS)
def test_resnet8(bench: Bench, target: str) -> None:
    _check_model(bench, quantize_model("resnet8"), [(target, "")])


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_model_in_every_mode(bench: Bench, model: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check_model(bench, quantize_model(model), PLACES)
