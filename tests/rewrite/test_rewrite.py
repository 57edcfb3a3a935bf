"""Rewrites, as text before and after."""

from __future__ import annotations

import numpy as np

from tosaic.rewrite import PIPELINE, rewrite
from tosaic.rewrite.dead import drop_dead
from tosaic.rewrite.merge import merge_equal
from tosaic.tosa import ops
from tosaic.tosa.build import Builder
from tosaic.tosa.ir import DType, Graph, Type
from tosaic.tosa.text import to_text


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
    from tosaic.tools import reference
    from tosaic.tosa.flatbuffer import serialize

    data = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    before, after = twice(), rewrite(twice())
    assert kinds(after) == ["EXP", "ABS", "ADD"]
    assert np.array_equal(reference.run(serialize(before), [data])[0], reference.run(serialize(after), [data])[0])
