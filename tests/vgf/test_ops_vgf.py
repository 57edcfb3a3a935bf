"""The registry's samples on Vulkan: float against torch, int8 bit for bit against the TOSA reference model."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import tosaic
from support import samples
from tosaic.api.program import Program
from tosaic.core.targets import VGF
from tosaic.engines import vulkan
from tosaic.fx.source import DEQUANTIZE, bind, overload
from tosaic.ops import registry

#: one in so many samples runs in `make test`, the others behind the mark `slow`
SHARE = 40
COMPOSITE = frozenset(n for n, r in registry().records.items() if r.decompose is not None)


def cases() -> Iterator[Any]:
    for name, record in registry().records.items():
        for index, sample in enumerate(record.samples()):
            for kind in sample.flavors:
                case = f"{name}-vgf_{kind}-{index}"
                quick = zlib.crc32(case.encode()) % SHARE == 0
                yield pytest.param(name, kind, index, id=case, marks=() if quick else pytest.mark.slow)


def is_whole(op: str, index: int, program: Program) -> bool:
    """Whether all of a sample runs on the device; if not, a constraint of the record must be the reason."""
    left = {r.node: r.why for r in program.reasons if not r.is_io}
    if not samples.sample_of(op, index).targets(VGF):
        sentences = {one.sentence for one in registry().records[op].constraints if one.targets(VGF)}
        assert sentences & {why.partition("; here ")[0] for why in left.values()}
        return False
    assert left == {}
    assert len(program.delegates) == 1
    return True


def leaves(value: Any) -> list[np.ndarray[Any, Any]]:
    return [t.detach().numpy() for t in tree_leaves(value)]


def check_float(op: str, index: int) -> None:
    model, inputs, program = samples.exported(op, index)
    compiled = tosaic.compile(program, inputs, "vgf", quantized=False)
    if not is_whole(op, index, compiled):
        return
    outputs = vulkan.run(compiled.pte, [x.numpy() for x in inputs])
    with torch.no_grad():
        expected = leaves(model(*[x.clone() for x in inputs]))
    # An in-place operator on an input gives the changed input as a result as well.
    outputs = outputs[len(outputs) - len(expected) :]
    for got, want in zip(outputs, expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        bound = 1e-5 * max(1.0, float(np.abs(want).max()))
        assert float(np.abs(got.astype(np.float64) - want).max()) <= bound


def steps_of(module: Any) -> list[float | None]:
    """The quantization step of each output, None where it is no dequantized tensor."""
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    nodes = [n for n in tree_leaves(output.args[0]) if isinstance(n, torch.fx.Node)]
    quantized = [n.op == "call_function" and overload(n) == DEQUANTIZE for n in nodes]
    return [bind(n)["scale"] if q else None for n, q in zip(nodes, quantized, strict=True)]


def check_integer(op: str, index: int) -> None:
    module, inputs = samples.quantized(op, index)
    program = samples.exported(op, index)[2]
    # Plain integers are not quantized: then it is the program itself.
    compiled = tosaic.compile(module if samples.has_floats(program) else program, inputs, "vgf")
    if not is_whole(op, index, compiled):
        return
    outputs = vulkan.run(compiled.pte, [x.numpy() for x in inputs])
    for got, want in zip(outputs, compiled.run(*inputs, engine="tosa"), strict=True):
        assert np.array_equal(got, want)
    with torch.no_grad():
        expected = leaves(module(*[x.clone() for x in inputs]))
    for got, want, step in zip(outputs, expected, steps_of(module), strict=True):
        if step is not None:
            distance = np.rint(np.abs(got - want) / step)
            assert distance.max() <= (2 if op in COMPOSITE else 1)
            assert (distance <= 1).mean() >= 0.99


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("op", "kind", "index"), list(cases()))
def test_op(op: str, kind: str, index: int) -> None:
    (check_float if kind == "FP" else check_integer)(op, index)
