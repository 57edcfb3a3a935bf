"""The passes that replace int64, in the order that their documentation gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

from tosaic._passes import (
    ConvertInt64ConstOpsToInt32Pass,
    ConvertInt64OutputOpsToInt32Pass,
    InsertInt32CastsAfterInt64PlaceholdersPass,
)
from tosaic.core.errors import Invalid
from tosaic.engines.engine import run as run_pte
from tosaic.tosa import TosaCompileSpec, TOSAPartitioner


def lower(model: torch.nn.Module, inputs: tuple[Any, ...], passes: list[Any], spec: str = "TOSA-1.0+FP+INT") -> Any:
    program = torch.export.export(model.eval(), inputs)
    return to_edge_transform_and_lower(
        program, transform_passes=passes, partitioner=[TOSAPartitioner(TosaCompileSpec(spec))]
    )


def all_passes() -> list[Any]:
    return [
        ConvertInt64ConstOpsToInt32Pass(),
        ConvertInt64OutputOpsToInt32Pass(),
        InsertInt32CastsAfterInt64PlaceholdersPass(),
    ]


def list_cpu(edge: Any) -> list[str]:
    calls = [n for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    names = [str(getattr(n.target, "_op", n.target)) for n in calls]
    return [name for name in names if name.startswith(("aten", "dim_order"))]


def check(model: torch.nn.Module, inputs: tuple[Any, ...], edge: Any) -> None:
    found = run_pte(edge.to_executorch().buffer, [x.numpy() for x in inputs]).outputs
    wanted = model(*inputs)
    for ours, theirs in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours).to(theirs.dtype), theirs, atol=1e-5, rtol=0)


class Text(torch.nn.Module):
    """Tokens and positions, as in an encoder of text."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(10, 8), torch.nn.Embedding(6, 8)
        self.out = torch.nn.Linear(8, 4)
        self.register_buffer("ids", torch.arange(6))

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.out(self.tokens(i) + self.places(self.ids) + self.places(torch.arange(6)))


def test_text_is_one_delegate_behind_one_cast() -> None:
    model, inputs = Text().eval(), (torch.randint(0, 10, (1, 6)),)
    edge = lower(model, inputs, all_passes())
    assert list_cpu(edge) == ["dim_order_ops._to_dim_order_copy.default"]
    check(model, inputs, edge)


class Chosen(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = x.argmax(-1)
        return best, best.to(torch.float32) * 0.5


def test_indices_are_cast() -> None:
    inputs = (torch.randn(3, 7),)
    edge = lower(Chosen(), inputs, [ConvertInt64OutputOpsToInt32Pass()])
    check(Chosen(), inputs, edge)
    assert "aten.argmax.default" not in list_cpu(edge)


class OneHot(torch.nn.Module):
    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.one_hot(i, 5).to(torch.float32) * 2.0, i + 1


def test_operators_that_take_int64_only_and_outputs_stay_int64() -> None:
    inputs = (torch.tensor([1, 4, 0]),)
    edge = lower(OneHot(), inputs, all_passes())
    assert edge.exported_program().graph.output_node().args[0][1].meta["val"].dtype is torch.int64
    check(OneHot(), inputs, edge)


class Wide(torch.nn.Module):
    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return i + torch.full((2,), 2**40)


def test_constants_beyond_32_bits_stay(caplog: pytest.LogCaptureFixture) -> None:
    program = torch.export.export(Wide(), (torch.tensor([1, 2]),))
    module = program.run_decompositions({}).graph_module
    assert not ConvertInt64ConstOpsToInt32Pass()(module).modified
    assert "does not fit in int32" in caplog.text


def test_numbers_beyond_32_bits_are_not_delegated() -> None:
    inputs = (torch.tensor([1, 2], dtype=torch.int32),)

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("wide", torch.tensor([2**40, 1]))

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return (i * 2) + self.wide

    edge = lower(Sum(), inputs, [])
    assert "aten.add.Tensor" in list_cpu(edge)
    check(Sum(), inputs, edge)


def test_what_may_overflow_is_refused() -> None:
    class Huge(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.expand(2**31).argmax()

    module = torch.export.export(Huge(), (torch.randn(1),)).graph_module
    with pytest.raises(Invalid, match="2147483648 numbers"):
        ConvertInt64OutputOpsToInt32Pass()(module)
    assert not ConvertInt64OutputOpsToInt32Pass(on_overflow="skip")(module).modified
    with pytest.raises(Invalid, match="on_overflow"):
        ConvertInt64OutputOpsToInt32Pass(on_overflow="ignore")
