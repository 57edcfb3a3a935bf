"""Rewrites, as text before and after."""

from __future__ import annotations

import numpy as np
import pytest

from tosaic.rewrite import PIPELINE, rewrite
from tosaic.rewrite.dead import drop_dead
from tosaic.rewrite.merge import merge_equal
from tosaic.rewrite.transpose import TO_FIRST, TO_LAST, convolve_transposes
from tosaic.targets import find
from tosaic.tools import reference
from tosaic.tosa import ops
from tosaic.tosa.build import Builder
from tosaic.tosa.flatbuffer import serialize
from tosaic.tosa.ir import DType, Graph, Type
from tosaic.tosa.spec import Specification
from tosaic.tosa.text import to_text
from tosaic.tosa.verify import verify


def twice() -> Graph:
    b = Builder()
    x = b.input(Type(DType.F32, (2, 3)))
    left, right = ops.exp(b, x), ops.exp(b, x)
    ops.tanh(b, x)
    return b.finish([ops.add(b, ops.abs(b, left), ops.abs(b, right))])


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def test_merge_equal() -> None:
    before = twice()
    text = to_text(before)
    after = merge_equal(before)
    assert kinds(after) == ["EXP", "TANH", "ABS", "ADD"]
    add = after.ops[-1]
    assert add.inputs[0] is add.inputs[1]
    assert add.inputs[0].op is after.ops[2]
    assert to_text(before) == text, "a rewrite changed its input"


def test_different_attributes_are_not_merged() -> None:
    b = Builder()
    x = b.input(Type(DType.F32, (2, 3)))
    graph = b.finish([ops.reduce_max(b, x, 0), ops.reduce_max(b, x, 1)])
    assert kinds(merge_equal(graph)) == ["REDUCE_MAX", "REDUCE_MAX"]


def test_drop_dead() -> None:
    assert kinds(drop_dead(twice())) == ["EXP", "EXP", "ABS", "ABS", "ADD"]


def test_pipeline_has_reasons_and_keeps_meaning() -> None:
    assert all(reason for _, reason in PIPELINE)
    data = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    before, after = twice(), rewrite(twice(), find("TOSA-1.0+FP"))
    assert kinds(after) == ["EXP", "ABS", "ADD"]
    assert np.array_equal(reference.run(serialize(before), [data])[0], reference.run(serialize(after), [data])[0])


@pytest.mark.parametrize("family", ["u55", "u65", "u85", "tosa"])
@pytest.mark.parametrize(("shape", "perms"), [((1, 3, 64, 64), TO_LAST), ((1, 64, 64, 3), TO_FIRST)])
def test_small_images_are_moved_by_convolutions(family: str, shape: tuple[int, ...], perms: tuple[int, ...]) -> None:
    b = Builder()
    x = b.input(Type(DType.I8, shape))
    graph = b.finish([ops.transpose(b, x, perms)])
    after = convolve_transposes(graph, family)
    assert ("TRANSPOSE" in kinds(after)) == (family == "tosa")
    verify(after, Specification.parse("TOSA-1.0+INT"))
    data = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    assert np.array_equal(reference.run(serialize(after), [data])[0], data.transpose(perms))


@pytest.mark.parametrize("shape", [(1, 64, 64, 64), (2, 3, 64, 64), (1, 3, 5, 7)])
def test_other_transposes_stay(shape: tuple[int, ...]) -> None:
    b = Builder()
    graph = b.finish([ops.transpose(b, b.input(Type(DType.I8, shape)), TO_LAST)])
    assert kinds(convolve_transposes(graph, "u55")) == ["TRANSPOSE"]
