"""The passes: what each of them does to a graph."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from support.pass_graphs import make_equal_ops
from tosaic import passes
from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.core.targets import Target, find
from tosaic.engines import reference
from tosaic.formats.tosa_writer import serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Type, Value
from tosaic.ir.text import to_text
from tosaic.ir.verifier import verify
from tosaic.passes import ALL, PASSES, run_passes
from tosaic.passes.cse import merge_equal_ops
from tosaic.passes.dce import remove_dead_ops
from tosaic.passes.fold_conv_scale import fold_conv_scale
from tosaic.passes.transpose_to_conv import TO_FIRST, TO_LAST, convert_transposes


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def test_merge_equal_ops() -> None:
    before = make_equal_ops()
    text = to_text(before)
    after = merge_equal_ops(before)
    assert kinds(after) == ["EXP", "TANH", "ABS", "ADD"]
    add = after.ops[-1]
    assert add.inputs[0] is add.inputs[1]
    assert add.inputs[0].op is after.ops[2]
    assert to_text(before) == text, "a pass changed its input"


def test_different_attributes_are_not_merged() -> None:
    b = Builder()
    x = b.input(Type(DType.F32, (2, 3)))
    graph = b.finish([ops.reduce_max(b, x, 0), ops.reduce_max(b, x, 1)])
    assert kinds(merge_equal_ops(graph)) == ["REDUCE_MAX", "REDUCE_MAX"]


def test_remove_dead_ops() -> None:
    assert kinds(remove_dead_ops(make_equal_ops())) == ["EXP", "EXP", "ABS", "ABS", "ADD"]


def test_pipeline_has_reasons_and_keeps_meaning() -> None:
    assert all(step.why for step in ALL)
    data = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    before, after = make_equal_ops(), run_passes(make_equal_ops(), find("TOSA-1.0+FP"))
    assert kinds(after) == ["EXP", "ABS", "ADD"]
    assert np.array_equal(reference.run(serialize(before), [data])[0], reference.run(serialize(after), [data])[0])


def test_names_are_those_of_the_modules() -> None:
    assert [step.name for step in ALL] == list(dict.fromkeys(step.name for step in ALL))
    for step in ALL:
        assert importlib.util.find_spec(f"tosaic.passes.{step.name}") is not None


def test_an_observer_sees_the_graph_after_each_pass() -> None:
    seen: dict[str, list[str]] = {}
    run_passes(make_equal_ops(), find("TOSA-1.0+FP"), observe=lambda name, graph: seen.update({name: kinds(graph)}))
    assert list(seen) == ["fold_conv_scale", "cse", "dce"], "the others are for NPUs"
    assert seen["cse"] == ["EXP", "TANH", "ABS", "ADD"]
    assert seen["dce"] == ["EXP", "ABS", "ADD"]


def test_the_verifier_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_first(graph: Graph, _: Target) -> Graph:
        return Graph(graph.inputs, graph.outputs, graph.ops[1:])

    broken = tuple(replace(step, run=drop_first) if step.name == "cse" else step for step in PASSES)
    monkeypatch.setattr(passes, "PASSES", broken)
    with pytest.raises(Invalid, match="after pass `cse`: op 2 ABS: input 0"):
        run_passes(make_equal_ops(), find("TOSA-1.0+FP"), verify_between=True)
    run_passes(make_equal_ops(), find("TOSA-1.0+FP"))


@pytest.mark.parametrize("family", ["u55", "u65", "u85", "tosa"])
@pytest.mark.parametrize(("shape", "perms"), [((1, 3, 64, 64), TO_LAST), ((1, 64, 64, 3), TO_FIRST)])
def test_small_images_are_moved_by_convolutions(family: str, shape: tuple[int, ...], perms: tuple[int, ...]) -> None:
    b = Builder()
    x = b.input(Type(DType.I8, shape))
    graph = b.finish([ops.transpose(b, x, perms)])
    after = convert_transposes(graph, family)
    assert ("TRANSPOSE" in kinds(after)) == (family == "tosa")
    verify(after, Specification.parse("TOSA-1.0+INT"))
    data = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    assert np.array_equal(reference.run(serialize(after), [data])[0], data.transpose(perms))


@pytest.mark.parametrize("shape", [(1, 64, 64, 64), (2, 3, 64, 64), (1, 3, 5, 7)])
def test_other_transposes_stay(shape: tuple[int, ...]) -> None:
    b = Builder()
    graph = b.finish([ops.transpose(b, b.input(Type(DType.I8, shape)), TO_LAST)])
    assert kinds(convert_transposes(graph, "u55")) == ["TRANSPOSE"]


def convolution(b: Builder, kind: str) -> Value:
    """A float convolution of each kind with 6 channels, and random weights."""
    dice = np.random.default_rng(1)
    shape = (1, 4, 5, 5, 3) if kind == "CONV3D" else (1, 5, 5, 3)
    weights = {"CONV3D": (6, 2, 2, 2, 3), "DEPTHWISE_CONV2D": (2, 2, 3, 2)}.get(kind, (6, 2, 2, 3))
    x = b.input(Type(DType.F32, shape))
    weight = b.const(dice.standard_normal(weights).astype(np.float32), DType.F32)
    bias = b.const(dice.standard_normal(6).astype(np.float32), DType.F32)
    if kind == "TRANSPOSE_CONV2D":
        return ops.transpose_conv2d(b, x, weight, bias, out_pad=(0,) * 4, stride=(2, 2), acc_type=DType.F32)
    window = {"pad": (0,) * 4, "stride": (1, 1), "dilation": (1, 1)}
    if kind == "CONV3D":
        window = {"pad": (0,) * 6, "stride": (1, 1, 1), "dilation": (1, 1, 1)}
    zero = b.zero_point(0, DType.F32)
    return b.emit(ops.find(kind), (x, weight, bias, zero, zero), acc_type=DType.F32, **window)[0]


def normalize(b: Builder, value: Value) -> Value:
    """Times one constant per channel, plus another one."""
    shape = (*(1,) * (value.rank - 1), 6)
    scale, shift = (np.linspace(a, 2, 6, dtype=np.float32).reshape(shape) for a in (-1, 0.5))
    return ops.add(b, ops.mul(b, value, b.const(scale, DType.F32)), b.const(shift, DType.F32))


@pytest.mark.parametrize("kind", ["CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D"])
def test_factors_go_into_the_convolution(kind: str) -> None:
    b = Builder(("conv",))
    value = convolution(b, kind)
    b.origin = ("norm",)
    graph = b.finish([normalize(b, value)])
    after = remove_dead_ops(fold_conv_scale(graph))
    assert [k for k in kinds(after) if k != "CONST"] == [kind]
    assert after.ops[-1].origin == ("conv", "norm")
    data = np.random.default_rng(2).standard_normal(graph.inputs[0].shape).astype(np.float32)
    want, got = (reference.run(serialize(g), [data])[0] for g in (graph, after))
    assert float(np.abs(want - got).max()) <= 1e-5 * float(np.abs(want).max())


def test_a_convolution_with_other_readers_stays() -> None:
    for read_twice in (True, False):
        b = Builder()
        value = convolution(b, "CONV2D")
        graph = b.finish([normalize(b, value), ops.abs(b, value) if read_twice else value])
        assert "MUL" in kinds(fold_conv_scale(graph))


def test_only_constants_of_channels_are_folded() -> None:
    b = Builder()
    value = convolution(b, "CONV2D")
    picture = np.ones((1, *value.shape[1:3], 1), np.float32)
    graph = b.finish([ops.mul(b, value, b.const(picture, DType.F32)), b.input(value.type)])
    assert kinds(fold_conv_scale(graph)) == kinds(graph)
