"""Programs of kernel calls that try to harm whoever runs them."""

from __future__ import annotations

from typing import Any

import torch

from support.handmade import Spec, Step, call, make_program

MAX = (1 << 63) - 1
HUGE = 1 << 30
SIDE = 4096
LONG, BYTE = torch.int64, torch.int8

#: Kernels that reach memory outside of their arguments, or files, and names that are none: (name, overload, arguments).
UNREACHABLE: list[tuple[str, str, tuple[Any, ...]]] = [
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
]


def call_unreachable(name: str, overload: str, args: tuple[Any, ...]) -> bytes:
    """A .pte that calls such a kernel on a tensor."""
    return call(name, overload, (Spec((16,)), *args), Spec((16,)))


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
    "antialiased bicubic resize by another factor": call(
        "aten::_upsample_bicubic2d_aa", "out", (Spec((1, 1, 4, 4)), [8, 8], False, 1e-6, 1e-6), Spec((1, 1, 8, 8))
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
_RANKS = {"convolution": 4, "resize": 4, "zeros": 2, "outer product": 2, "one hot": 2, "distances": 2}


def call_large(name: str, unbound: bool) -> bytes:
    """A .pte with such a call, whose result has one element in the plan or any number."""
    kernel, overload, args = LARGE[name]
    rank = _RANKS.get(name, 1) + (name in ("embedding", "index", "unfold"))
    return call(kernel, overload, args, Spec((1,) * rank, unbound=unbound, planned=not unbound))


#: One call each, of memory within the budget.
LONG_CALLS = {
    "a convolution as large as its input": call(
        "aten::convolution",
        "out",
        (Spec((1, 1, 999, 999)), Spec((1, 1, 999, 999)), None, [1, 1], [499, 499], [1, 1], False, [0, 0], 1),
        Spec((1, 1, 999, 999)),
    ),
    "a dilated convolution": call(
        "aten::convolution",
        "out",
        (Spec((1, 1, 1 << 20)), Spec((1, 1, 1 << 18)), None, [1], [1 << 19], [4], False, [0], 1),
        Spec((1, 1, (1 << 20) + (1 << 20) - 4 * ((1 << 18) - 1))),
    ),
    "a product of matrices": call(
        "aten::mm", "out", (Spec((SIDE, 2 * SIDE), BYTE), Spec((2 * SIDE, SIDE), BYTE)), Spec((SIDE, SIDE), BYTE)
    ),
    "distances": call(
        "aten::_cdist_forward", "out", (Spec((SIDE, SIDE)), Spec((SIDE, SIDE)), 3.0, None), Spec((SIDE, SIDE))
    ),
    "a pool of large windows": call(
        "aten::avg_pool2d",
        "out",
        (Spec((1, 1, 1500, 1500)), [750, 750], [1, 1], [0, 0], False, True, None),
        Spec((1, 1, 751, 751)),
    ),
}
