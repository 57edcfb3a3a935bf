"""What goes into a delegate and what comes out is what the program passes, in both APIs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tosaic
from support.apis import Call, compile_both, list_left
from support.extras import needs_converter
from tosaic.api.build import make_spec
from tosaic.api.prepare import quantize
from tosaic.backends import converter
from tosaic.driver.delegate import build
from tosaic.driver.exported import export
from tosaic.formats.tosa_writer import names, read, serialize
from tosaic.fx.source import Source
from tosaic.tools import vela

X = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(7))
MASK = torch.tensor([[[1, 1, 0, 1, 0, 1, 1, 1]]], dtype=torch.int32).expand(1, 4, 8).contiguous()
BOOLS = torch.tensor([[False, True, False, False]])
INTS = torch.arange(32, dtype=torch.int32).reshape(4, 8)


def mask_scores(layer: Any, x: Any, mask: Any) -> Any:
    return torch.matmul(torch.where(mask.bool(), 0.0, -10.0) + layer(x), x.transpose(1, 2))


@pytest.mark.parametrize(
    ("function", "inputs", "target"),
    [
        pytest.param(lambda _, x: (x * 2, (x > 0.3).float()), (X,), "ethos-u55-128", id="cast-on-cpu-u55"),
        pytest.param(lambda _, x: (x * 2, (x > 0.3).float()), (X,), "ethos-u85-256", id="cast-on-cpu-u85"),
        pytest.param(lambda _, x: (x * 2, (x > 0.3).float()), (X,), "vgf", id="cast-on-cpu-vgf", marks=needs_converter),
        pytest.param(mask_scores, (X, MASK), "ethos-u55-128", id="mask-u55"),
        pytest.param(mask_scores, (X, MASK), "TOSA-1.0+FP", id="mask-fp"),
        pytest.param(lambda _, x, y: x * torch.full_like(y, 3.2), (X, X), "TOSA-1.0+FP", id="only-its-shape"),
    ],
)
def test_unread_inputs_stay_outside(function: Any, inputs: Any, target: str) -> None:
    program, _ = compile_both(function, inputs, target)
    assert len(program.delegates) == 1


@pytest.mark.parametrize("target", ["ethos-u55-128", "TOSA-1.0+FP"])
def test_outputs_that_are_the_same_or_an_input_or_a_constant(target: str) -> None:
    def function(layer: Any, x: Any, i: Any) -> Any:
        y = layer(x)
        return y, y, x, y.view(-1), i.contiguous(), i + 1, torch.arange(8, dtype=torch.int32) + 1, torch.arange(8.0)

    compile_both(function, (X, INTS), target)


def lose_an_output(tosa: bytes) -> bytes:
    graph = read(tosa)
    del graph.outputs[-1]
    return serialize(graph)


@pytest.mark.parametrize(
    ("target", "tool"), [("ethos-u55-128", vela), pytest.param("vgf", converter, marks=needs_converter)]
)
def test_a_blob_that_does_not_fit_its_call_is_no_delegate(
    target: str, tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tool.compile_cached
    monkeypatch.setattr(tool, "compile_cached", lambda tosa, *rest: real(lose_an_output(tosa), *rest))
    model = Call(lambda layer, x: (layer(x), x * x)).eval()
    left = tosaic.compile(model, (X,), target)
    assert left.delegates == ()
    assert any("its outputs are 32 x" in r.why for r in left.reasons)
    assert len(left.run(X)) == 2


def test_equal_operands_of_an_einsum_run_on_the_reference() -> None:
    compile_both(lambda _, x: torch.einsum("bij,bkj->bik", x * x, x * x).relu(), (X,), "TOSA-1.0+FP")


MOVES: dict[str, Any] = {
    "reshape": lambda i: i.reshape(8, 4),
    "transpose": lambda i: i.transpose(0, 1),
    "permute": lambda i: i.reshape(2, 2, 8).permute(2, 0, 1),
    "unsqueeze": lambda i: i.unsqueeze(1).squeeze(1).flatten(),
    "cat": lambda i: torch.cat([i, i], 1),
    "stack": lambda i: torch.stack([i, i]),
    "slice": lambda i: i[1:, ::2],
    "flip": lambda i: i.flip(0),
    "repeat": lambda i: i.repeat(2, 1),
    "expand": lambda i: i[:1].expand(4, 8),
    "split": lambda i: i.split(2, 0)[1],
    "pad": lambda i: F.pad(i, (1, 1)),
    "roll": lambda i: i.roll(1, 0),
    "select": lambda i: i[2],
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("target", ["TOSA-1.0+FP", "TOSA-1.0+INT"])
def test_data_movement_that_a_profile_has_not_stays_on_the_cpu(target: str, dtype: torch.dtype) -> None:
    def function(layer: Any, x: Any, i: Any) -> Any:
        return (layer(x), *(move(i) for move in MOVES.values()))

    model, inputs = Call(function).eval(), (X, (INTS % 3).to(dtype))
    program = tosaic.compile(model, inputs, target)
    got = program.run(*inputs)
    for name, array, want in zip(MOVES, got[1:], model(*inputs)[1:], strict=True):
        assert (array == want.numpy()).all(), name
    if target == "TOSA-1.0+FP" and dtype is not torch.bool:
        assert {r.why for r in program.reasons if r.op in ("aten.reshape.default", "aten.transpose.int")} == {
            f"i{dtype.itemsize * 8} needs INT, which TOSA-1.0+FP does not have"
        }


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda layer, x, m: (torch.matmul(layer(x), x.transpose(1, 2)), m.reshape(4, 1)), {"reshape", "view_copy"}),
        (
            lambda layer, x, m: torch.matmul(layer(x).masked_fill(m.unsqueeze(-1), -10.0), x.transpose(1, 2)),
            {"unsqueeze", "unsqueeze_copy", "masked_fill", "where", "scalar_tensor"},
        ),
    ],
    ids=["moved", "masked"],
)
def test_a_bool_mask_costs_no_innocent_operator(function: Any, left: set[str]) -> None:
    for ops in list_left(*compile_both(function, (X, BOOLS), "ethos-u55-128")):
        assert {op.split(".")[1] for op in ops} <= left


def test_a_named_node_is_blamed_only_if_it_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that names the layers, although it is the table between them that it cannot take."""
    real = vela.compile_cached

    def compile_cached(tosa: bytes, options: Any, **rest: Any) -> Any:
        graph = read(tosa)
        if not any(op.kind == "TABLE" for op in graph.ops):
            return real(tosa, options, **rest)
        error = vela.Refused("something could not run on NPU", "")
        layers = [op for op in graph.ops if op.kind == "CONV2D"]
        error.names = tuple(names(graph)[op.outputs[0]] for op in layers[:1])
        raise error

    model = Call(lambda layer, x: layer(torch.tanh(layer(x)))).eval()
    module = quantize(export(model, (X,)), [(X,)])
    monkeypatch.setattr(vela, "compile_cached", compile_cached)
    built = build(Source.of_module(module), make_spec("ethos-u55-128"))
    assert [r.op for r in built.plan.reasons.values() if not r.is_io] == ["aten.tanh.default"]
    assert len(built.delegates) == 2
