"""A small delegate is run before it is accepted, and compiled in another form if its commands are wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tosaic
from support.apis import compile_both, list_left
from tosaic import passes
from tosaic.backends import ethosu
from tosaic.backends.protocol import Artifact
from tosaic.core.errors import ToolCrashed
from tosaic.driver import delegate, rehearsal
from tosaic.engines import reference
from tosaic.formats.tosa_writer import read, serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Type
from tosaic.npu import Fault
from tosaic.tools import vela

U55 = "ethos-u55-128"
X = torch.linspace(-2, 2, 2 * 8 * 6).reshape(2, 8, 6)


class MaximumOfSlice(torch.nn.Module):
    """Vela reads past the slice, unless `separate_vela_pairs` keeps it apart from the maximum."""

    def forward(self, x: Any) -> Any:
        return x[:, 1:4].amax(2), x * 2


@pytest.fixture
def without_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PASSES", [p for p in passes.PASSES if p.name != "separate_vela_pairs"])


def compile_maximum() -> Any:
    return tosaic.compile(MaximumOfSlice().eval(), (X,), U55)


@pytest.mark.usefixtures("without_pairs")
def test_wrong_commands_are_replaced(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with caplog.at_level(logging.WARNING, logger="tosaic"):
        program = compile_maximum()
    assert "all operators of this delegate are kept apart now" in caplog.text
    assert [d.separated for d in program.delegates] == [True]
    assert any(text.startswith("Vela miscompiled delegate 0") for text in program.warnings)
    assert program.verify(rounds=1).ok
    monkeypatch.setattr(delegate, "find_fault", lambda *_: "")
    assert not compile_maximum().verify(rounds=1).ok


def test_right_commands_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tosaic"):
        program = compile_maximum()
    assert "kept apart" not in caplog.text
    assert [d.separated for d in program.delegates] == [False]
    assert program.verify(rounds=1).ok


@pytest.mark.usefixtures("without_pairs")
def test_both_apis_replace_the_same() -> None:
    program, used = compile_both(lambda _, x: (x[:, 1:4].amax(2), x * 2), (X,), U55)
    assert len(program.delegates) == 1
    assert list_left(program, used)[0] == list_left(program, used)[1]


def test_what_is_wrong_in_every_form_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegate, "find_fault", lambda tosa, _: "output 0 is wrong" if has_maximum(tosa) else "")
    program = compile_maximum()
    (reason,) = [r for r in program.reasons if "output 0" in r.why]
    assert reason.op == "aten.amax.default"
    assert reason.why == "Vela: output 0 is wrong"


def has_maximum(tosa: bytes) -> bool:
    return any(op.kind == "REDUCE_MAX" for op in read(tosa).ops)


def test_a_crash_is_tried_in_the_other_form(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = vela.compile_cached, list[int]()

    def crash_once(tosa: bytes, *options: Any) -> Any:
        calls.append(len(tosa))
        if len(calls) == 1:
            raise ToolCrashed("Vela crashed with SIGSEGV")
        return real(tosa, *options)

    monkeypatch.setattr(vela, "compile_cached", crash_once)
    assert len(compile_maximum().delegates) == 1


def find_fault(compute: Callable[[Sequence[Any]], Any], dtype: DType = DType.I8) -> str:
    """What is found for a graph that negates its input, with commands that compute something else."""
    b = Builder()
    x = b.input(Type(dtype, (4,)))
    graph = b.finish([ops.negate(b, x) if dtype is DType.I8 else ops.add(b, x, x)])

    class Commands(Artifact):
        @property
        def is_simulated(self) -> bool:
            return True

        def simulate(self, inputs: Sequence[Any]) -> Any:
            return compute(inputs)

    rehearsal.FOUND.clear()
    return rehearsal.find_fault(serialize(graph), Commands(b""))


def raise_fault(_: Any) -> Any:
    raise Fault("a command has no operation", offset=8)


def test_faults_are_found() -> None:
    assert find_fault(lambda given: [(-given[0].astype(int)).clip(-128, 127).astype("i1")]) == ""
    assert find_fault(lambda given: [given[0]]) == "output 0 is not what its TOSA graph computes"
    assert find_fault(lambda _: []) == "it has 0 of 1 outputs"
    assert find_fault(raise_fault) == "its commands end in a fault: a command has no operation"


@pytest.mark.parametrize(("figure", "most"), [("cycles_total", 100), ("nn_macs", -1)])
def test_a_large_delegate_is_not_run(monkeypatch: pytest.MonkeyPatch, figure: str, most: int) -> None:
    monkeypatch.setitem(ethosu.MOST_SIMULATED, figure, most)
    monkeypatch.setattr(rehearsal.reference, "run", lambda *_: pytest.fail("it was run"))
    rehearsal.FOUND.clear()
    compile_maximum()


def test_numbers_for_which_tosa_defines_nothing_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    largest: list[int] = []

    def run(_: bytes, inputs: Sequence[Any]) -> Any:
        largest.append(int(inputs[0].max()))
        raise reference.Undefined("the index is out of range")

    monkeypatch.setattr(rehearsal.reference, "run", run)
    assert find_fault(lambda given: [given[0]], DType.I32) == ""
    assert largest[0] > 1 >= largest[1]


def test_a_product_out_of_range_is_no_fault() -> None:
    x = torch.arange(12, dtype=torch.int32).reshape(3, 4) % 4

    class Power(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x**8

    assert [d.separated for d in tosaic.compile(Power().eval(), (x,), U55).delegates] == [False]


def test_a_lookup_of_rows_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    class Lookup(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(32, 8)
            self.layer = torch.nn.Linear(8, 4)

        def forward(self, index: Any) -> Any:
            return self.layer(self.table(index))

    with caplog.at_level(logging.WARNING, logger="tosaic"):
        program = tosaic.compile(Lookup().eval(), (torch.arange(6, dtype=torch.int32),), "ethos-u85-256")
    assert [d.separated for d in program.delegates] == [False]
    assert "miscompiled" not in caplog.text
