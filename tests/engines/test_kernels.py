"""CPU kernels of programs from strangers: no memory outside the arguments, no result that the plan does not have."""

from __future__ import annotations

import importlib
import resource
from typing import Any

import numpy as np
import pytest
import torch

from support.handmade import Spec, Step, call, make_program
from support.hostile_kernels import HUGE, LARGE, MAX, TRUSTED, UNREACHABLE, call_large, call_unreachable
from tosaic.core.errors import Invalid, TosaicError
from tosaic.engines import engine
from tosaic.engines import run as run_module
from tosaic.engines.inputs import make_ones
from tosaic.engines.interpreter import Method
from tosaic.engines.kernels import find_kernel
from tosaic.formats.pte import Operator, read

LONG = torch.int64


def run(data: bytes, **options: Any) -> list[np.ndarray[Any, Any]]:
    method = Method(read(data), **options)
    return method.run(make_ones(method.inputs))


def refuse(data: bytes) -> Invalid:
    """The error of a program that must end before it takes much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Invalid) as caught:
        run(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    return caught.value


@pytest.mark.parametrize(("name", "overload", "args"), UNREACHABLE)
def test_kernels_out_of_reach(name: str, overload: str, args: tuple[Any, ...]) -> None:
    error = refuse(call_unreachable(name, overload, args))
    assert name in error.what
    assert "--engine executorch" in error.fix


@pytest.mark.parametrize("name", TRUSTED)
def test_arguments_that_torch_takes_on_trust(name: str) -> None:
    assert refuse(TRUSTED[name]).where == "instruction 0 of method `forward`"


def test_lowest_number_divided_by_minus_one() -> None:
    """The processor's division ends the process here."""
    data = call("aten::div", "out_mode", (Spec((1,), LONG), Spec((1,), LONG), "trunc"), Spec((1,), LONG))
    with pytest.raises(Invalid, match="arguments"):
        Method(read(data)).run([np.array([-MAX - 1]), np.array([-1])])
    assert Method(read(data)).run([np.array([-7]), np.array([2])])[0].tolist() == [-3]


def test_repeats_whose_sum_overflows() -> None:
    data = call("aten::repeat_interleave", "Tensor_out", (Spec((3,), LONG), None), Spec((9,), LONG))
    with pytest.raises(Invalid, match="arguments"):
        Method(read(data)).run([np.array([MAX, MAX, 2])])
    assert Method(read(data)).run([np.array([4, 0, 5])])[0].tolist() == [0] * 4 + [2] * 5


@pytest.mark.parametrize("unbound", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", LARGE)
def test_results_are_sized_before_they_are_computed(name: str, unbound: bool) -> None:
    error = refuse(call_large(name, unbound))
    assert "bytes of memory" in error.what if unbound and name != "view" else "returns shape" in error.what or error.why


def test_columns_of_a_convolution_are_counted() -> None:
    """Input and result are small, the matrix between them is not."""
    sizes = (Spec((1, 1, 999, 999), torch.float64), Spec((1, 1, 999, 999), torch.float64))
    args = (*sizes, None, [1, 1], [998, 998], [1, 1], True, [0, 0], 1)
    error = refuse(call("aten::convolution", "out", args, Spec((1, 1, 1, 1), torch.float64)))
    assert "bytes of memory" in error.what


def test_pieces_are_counted() -> None:
    source = Spec((1 << 22,))
    for name, overload, args in (
        ("aten::split_copy", "Tensor_out", (source, 1, 0)),
        ("aten::unbind_copy", "int_out", (source, 0)),
    ):
        assert "pieces" in refuse(call(name, overload, args, [Spec((1,)), Spec((1,))])).why


def test_argument_of_another_type() -> None:
    assert "aten::add.out" in refuse(call("aten::add", "out", ("x", Spec((4,)), 1), Spec((4,)))).what
    assert "aten::cat.out" in refuse(call("aten::cat", "out", (Spec((4,)), 0), Spec((4,)))).what
    assert "aten::full.out" in refuse(call("aten::full", "out", ("x", 1.0), Spec((4,)))).what


def test_value_moved_into_one_of_another_type() -> None:
    step = Step("aten::neg", "out", (Spec((3,), torch.int8),), (Spec((3,), torch.int8),))
    other = Step("aten::neg", "out", (Spec((5,)),), (Spec((5,)),))
    refuse(make_program(step, other, moves=[(1, 3)]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64, torch.float64, torch.int8])
def test_types_that_remain(dtype: torch.dtype) -> None:
    data = call("aten::mul", "out", (Spec((3,), dtype), Spec((3,), dtype)), Spec((3,), dtype))
    (found,) = run(data)
    assert found.tolist() == [1, 1, 1]


def test_checks_are_done_once_per_call_site(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def count(*args: Any) -> Any:
        seen.append(args)
        return original(*args)

    original = run_module.foresee
    monkeypatch.setattr(run_module, "foresee", count)
    method = Method(read(call("aten::neg", "out", (Spec((3,)),), Spec((3,)))))
    for _ in range(3):
        method.run(make_ones(method.inputs))
    assert len(seen) == 1


def test_quantized_kernels_are_not_those_of_loaded_libraries() -> None:
    importlib.import_module("executorch.kernels.quantized")  # registers out variants in native code

    assert not find_kernel(Operator("quantized_decomposed::dequantize_per_tensor", "out")).outs


def test_engine_run_takes_a_limit() -> None:
    data = call("aten::neg", "out", (Spec((1 << 16,)),), Spec((1 << 16,)))
    ones = make_ones(Method(read(data)).inputs)
    assert engine.run(data, ones, engine="npu").outputs[0][0] == -1
    with pytest.raises(TosaicError, match="bytes of memory"):
        engine.run(data, ones, engine="npu", max_memory=1 << 18)


def test_plan_beyond_the_budget() -> None:
    """A kilobyte may plan gigabytes."""
    data = make_program(Step("aten::neg", "out", (Spec((4,)),), (Spec((4,)),)), planned=4 << 30)
    assert len(data) < 4096
    assert "the planned memory of method `forward` needs 4,294,967,296 bytes" in refuse(data).what
    for name in ("npu", "executorch", "vulkan", "tosa"):
        with pytest.raises(Invalid, match="planned memory"):
            engine.run(data, [np.zeros(4, np.float32)], engine=name)
    with pytest.raises(Invalid, match="the inputs and outputs"):
        Method(read(call("aten::neg", "out", (Spec((HUGE,), planned=False),), Spec((HUGE,), planned=False))))


def test_budget_is_given_back_after_each_run() -> None:
    method = Method(read(call("aten::neg", "out", (Spec((99,)),), Spec((99,), planned=False))))
    left = [method.budget.left]
    for _ in range(2):
        method.run(make_ones(method.inputs))
        left.append(method.budget.left)
    assert len(set(left)) == 1


def test_as_strided_counts_from_the_tensor() -> None:
    """Planned tensors share one memory, in which only the first begins at 0."""
    data = call("aten::as_strided_copy", "out", (Spec((9,)), [2, 3], [3, 1], 2), Spec((2, 3)))
    x = np.arange(9, dtype=np.float32)
    assert Method(read(data)).run([x])[0].tolist() == [[2, 3, 4], [5, 6, 7]]
