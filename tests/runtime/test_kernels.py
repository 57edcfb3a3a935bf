"""CPU kernels of programs from strangers: no memory outside the arguments, no result that the plan does not have."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
import torch
from handmade import Spec, Step, call, make_program

from tosaic.errors import Invalid, TosaicError
from tosaic.runtime import engine
from tosaic.runtime import run as run_module
from tosaic.runtime.host import Method
from tosaic.runtime.inputs import make_ones
from tosaic.runtime.kernels import find_kernel
from tosaic.runtime.pte import Operator, read

MAX = (1 << 63) - 1
HUGE = 1 << 30
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


@pytest.mark.parametrize(
    ("name", "overload", "args"),
    [
        ("aten::_reshape_alias", "", ([1 << 20], [1])),
        ("aten::as_strided", "", ([1 << 20], [1], 0)),
        ("aten::as_strided_", "", ([1 << 20], [1], 0)),
        ("aten::_unsafe_view", "", ([16],)),
        ("aten::_unsafe_index", "Tensor", ([Spec((1,), LONG)],)),
        ("aten::resize_", "", ([1 << 20],)),
        ("aten::set_", "", ()),
        ("aten::view", "", ([16],)),
        ("aten::max_pool2d_with_indices_backward", "grad_input", ()),
        ("aten::from_file", "", ()),
        ("aten::add_", "Tensor", (Spec((16,)), 1)),
        ("aten::add", "Tensor", (Spec((16,)), 1)),
        ("aten::nothing", "out", ()),
        ("aten::__class__", "out", ()),
    ],
)
def test_kernels_out_of_reach(name: str, overload: str, args: tuple[Any, ...]) -> None:
    error = refuse(call(name, overload, (Spec((16,)), *args), Spec((16,))))
    assert name in error.what
    assert "--engine executorch" in error.fix


#: What torch takes as it is, with a result of memory that is not the arguments', or the end of the process.
TRUSTED = {
    "batch norm with too few weights": call(
        "aten::_native_batch_norm_legit_no_training",
        "out",
        (Spec((1, 99, 1, 1)), *[Spec((1,)) for _ in range(4)], 0.1, 1e-5),
        Spec((1, 99, 1, 1)),
        Spec((0,)),
        Spec((0,)),
    ),
    "group norm of other sizes": call(
        "aten::native_group_norm",
        "out",
        (Spec((1, 4, 2, 2)), None, None, 1, 4, 1 << 20, 2, 1e-5),
        Spec((1, 4, 2, 2)),
        Spec((1, 2)),
        Spec((1, 2)),
    ),
    "grid sampler of an unknown mode": call(
        "aten::grid_sampler_2d",
        "out",
        (Spec((1, 1, 4, 4)), Spec((1, 2, 2, 2)), 77, 0, False),
        Spec((1, 1, 2, 2)),
    ),
    "fft along a dimension that is not there": call(
        "aten::_fft_r2c", "out", (Spec((4, 4)), [999999], 0, True), Spec((4, 3), torch.complex64)
    ),
    "antialiased resize by another factor": call(
        "aten::_upsample_bilinear2d_aa", "out", (Spec((1, 1, 4, 4)), [8, 8], False, 1e-6, 1e-6), Spec((1, 1, 8, 8))
    ),
    "pixel shuffle whose factor overflows": call(
        "aten::pixel_shuffle", "out", (Spec((1, 4, 2, 2)), 1 << 32), Spec((1, 4, 2, 2))
    ),
    "as_strided behind the end": call(
        "aten::as_strided_copy", "out", (Spec((4,)), [4], [1], 1), Spec((4,)), Spec((400,))
    ),
    "as_strided before the beginning": call("aten::as_strided_copy", "out", (Spec((4,)), [2], [1], -1), Spec((2,))),
    "index behind the end": call(
        "aten::embedding", "out", (Spec((1, 4)), Spec((1,), LONG), 0, False, False), Spec((1, 4))
    ),
    "a text times a number": call("executorch_prim::mul", "Scalar", ("x", HUGE), None),
    "a text with a width": call("executorch_prim::mod", "Scalar", (f"%{HUGE}d", 5), None),
    "numbers that grow": make_program(
        *[Step("executorch_prim::mul", "Scalar", (MAX, MAX), (None,)) for _ in range(2)],
    ),
}


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


#: Results that would take gigabytes: of a shape that the plan does not have, or of one it leaves open.
LARGE = {
    "full": ("aten::full", "out", ([HUGE], 1.0)),
    "zeros": ("aten::zeros", "out", ([1 << 15, 1 << 15],)),
    "empty": ("aten::empty", "out", ([HUGE], None)),
    "empty dim order": ("dim_order_ops::_empty_dim_order", "out", ([HUGE], [0])),
    "arange": ("aten::arange", "start_out", (0, HUGE, 1)),
    "rand": ("aten::rand", "out", ([HUGE],)),
    "repeat": ("aten::repeat", "out", (Spec((4,)), [HUGE >> 2])),
    "expand": ("aten::expand_copy", "out", (Spec((1,)), [HUGE], False)),
    "outer product": ("aten::mul", "out", (Spec((1 << 15, 1)), Spec((1, 1 << 15)))),
    "pad": ("aten::constant_pad_nd", "out", (Spec((4,)), [HUGE, 0], 0.0)),
    "convolution": (
        "aten::convolution",
        "out",
        (Spec((1, 1, 1, 1)), Spec((1, 1, 1, 1)), None, [1, 1], [1 << 14, 1 << 14], [1, 1], False, [0, 0], 1),
    ),
    "resize": ("aten::upsample_nearest2d", "out", (Spec((1, 1, 99, 99)), [1 << 15, 1 << 15], None, None)),
    "embedding": ("aten::embedding", "out", (Spec((4, 1 << 15)), Spec((1 << 15,), LONG), -1, False, False)),
    "index": ("aten::index", "Tensor_out", (Spec((4,)), [Spec((1 << 15, 1 << 15), LONG, planned=False)])),
    "masks": ("aten::masked_select", "out", (Spec((1 << 15, 1)), Spec((1, 1 << 15), torch.bool))),
    "one hot": ("aten::eq", "Tensor_out", (Spec((1 << 15, 1)), Spec((1, 1 << 15)))),
    "as_strided": ("aten::as_strided_copy", "out", (Spec((4,)), [HUGE], [0], 0)),
    "unfold": ("aten::unfold_copy", "out", (Spec((1 << 16,)), 0, 1 << 15, 1)),
    "distances": ("aten::_cdist_forward", "out", (Spec((1 << 15, 1)), Spec((1 << 15, 1)), 2.0, 0)),
    "view": ("executorch_prim::et_view", "default", (Spec((1,)), [HUGE])),
}


@pytest.mark.parametrize("unbound", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", LARGE)
def test_results_are_sized_before_they_are_computed(name: str, unbound: bool) -> None:
    kernel, overload, args = LARGE[name]
    rank = {"convolution": 4, "resize": 4, "zeros": 2, "outer product": 2, "one hot": 2, "distances": 2}.get(name, 1)
    rank += name in ("embedding", "index", "unfold")
    error = refuse(call(kernel, overload, args, Spec((1,) * rank, unbound=unbound, planned=not unbound)))
    assert "bytes of memory" in error.what if unbound and name != "view" else "gives shape" in error.what or error.why


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
    import executorch.kernels.quantized  # noqa: F401  (registers out variants in native code)

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
