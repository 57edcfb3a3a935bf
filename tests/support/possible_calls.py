"""A possible call of each kernel, from which tests make impossible ones."""

from typing import Any

import numpy as np

from support.handmade import Optionals
from support.kernel_calls import BOOL, CODES, FLOAT, INT, LONG, draw

_X, _W, _IMAGE = draw((2, 4, 3)), draw((3, 2)), draw((1, 4, 6, 5))
_ONE, _TWO = np.array([1, 0]), np.array([[0, 1], [1, 2]])
_TABLE = np.array([[[0, 1, 0], [3, 2, 1]], [[1, 1, 0], [2, 0, 3]]])

#: The arguments of an operator, and the types of its results.
CALLS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "aten::_adaptive_avg_pool2d.out": ((_IMAGE, [2, 3]), (FLOAT,)),
    "aten::_cdist_forward.out": ((_X, draw((1, 5, 3)), 3.0, None), (FLOAT,)),
    "aten::_log_softmax.out": ((_X, 1, False), (FLOAT,)),
    "aten::_native_batch_norm_legit.no_stats_out": (
        (_IMAGE, draw((4,)), draw((4,)), True, 0.1, 1e-5),
        (FLOAT,) * 3,
    ),
    "aten::_native_batch_norm_legit_no_training.out": (
        (_IMAGE, draw((4,)), draw((4,)), draw((4,)), np.ones(4, np.float32), 0.1, 1e-5),
        (FLOAT,) * 3,
    ),
    "aten::_softmax.out": ((_X, 1, False), (FLOAT,)),
    "aten::addmm.out": ((draw((2,)), draw((4, 3)), _W, 2, 1), (FLOAT,)),
    "aten::amax.out": ((_X, [0, -1], True), (FLOAT,)),
    "aten::amin.out": ((_X, [1], False), (FLOAT,)),
    "aten::any.all_out": ((_X,), (BOOL,)),
    "aten::any.dims_out": ((_X, [1, 2], False), (BOOL,)),
    "aten::any.out": ((_X, 1, True), (BOOL,)),
    "aten::argmax.out": ((_X, 1, True), (LONG,)),
    "aten::argmin.out": ((_X, None, False), (LONG,)),
    "aten::avg_pool2d.out": ((_IMAGE, [3, 2], [2, 1], [1, 1], True, False, None), (FLOAT,)),
    "aten::bmm.out": ((_X, np.stack([_W, _W])), (FLOAT,)),
    "aten::convolution.out": (
        (_IMAGE, draw((4, 2, 3, 2)), draw((4,)), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
        (FLOAT,),
    ),
    "aten::cumsum.out": ((_X, 1, None), (FLOAT,)),
    "aten::embedding.out": ((_W, _TWO, -1, False, False), (FLOAT,)),
    "aten::gather.out": ((_X, 1, _TABLE, False), (FLOAT,)),
    "aten::grid_sampler_2d.out": ((_IMAGE, draw((1, 3, 2, 2)), 2, 2, False), (FLOAT,)),
    "aten::index.Tensor_out": ((_X, Optionals([_ONE, None, _TWO])), (FLOAT,)),
    "aten::index_put.out": ((_X, Optionals([None, draw((4, 3), BOOL)]), draw((2, 1)), True), (FLOAT,)),
    "aten::index_select.out": ((_X, 1, _ONE), (FLOAT,)),
    "aten::linear.out": ((_X, draw((5, 3)), draw((5,))), (FLOAT,)),
    "aten::masked_scatter.out": ((_X, draw((4, 3), BOOL), draw((24,))), (FLOAT,)),
    "aten::max.dim_max": ((_X, -1, True), (FLOAT, LONG)),
    "aten::max.unary_out": ((_X,), (FLOAT,)),
    "aten::max_pool2d_with_indices.out": ((_IMAGE, [3, 2], [2, 1], [1, 1], [1, 2], True), (FLOAT, LONG)),
    "aten::mean.dtype_out": ((_X, None), (FLOAT,)),
    "aten::mean.out": ((_X, [1], False, CODES[FLOAT]), (FLOAT,)),
    "aten::min.dim_min": ((_X, 0, False), (FLOAT, LONG)),
    "aten::min.unary_out": ((_X,), (FLOAT,)),
    "aten::mm.out": ((draw((4, 3)), _W), (FLOAT,)),
    "aten::native_group_norm.out": ((_IMAGE, draw((4,)), draw((4,)), 1, 4, 30, 2, 1e-5), (FLOAT,) * 3),
    "aten::native_layer_norm.out": ((_X, [4, 3], draw((4, 3)), draw((4, 3)), 1e-5), (FLOAT,) * 3),
    "aten::nonzero.out": ((draw((3, 4), BOOL),), (LONG,)),
    "aten::pixel_shuffle.out": ((_IMAGE, 2), (FLOAT,)),
    "aten::pixel_unshuffle.out": ((draw((2, 4, 6)), 2), (FLOAT,)),
    "aten::prod.int_out": ((draw((2, 3), INT), 1, True, CODES[LONG]), (LONG,)),
    "aten::prod.out": ((_X, None), (FLOAT,)),
    "aten::repeat_interleave.Tensor_out": ((np.array([2, 0, 3]), 5), (LONG,)),
    "aten::scatter.src_out": ((_X, 1, _TABLE, _X), (FLOAT,)),
    "aten::scatter.value_out": ((_X, 1, _TABLE, 2.5), (FLOAT,)),
    "aten::scatter_add.out": ((_X, 1, _TABLE, _X), (FLOAT,)),
    "aten::sum.IntList_out": ((_X, [0, 2], True, None), (FLOAT,)),
    "aten::topk.values": ((_X, 2, 1, True, True), (FLOAT, LONG)),
    "aten::tril.out": ((_X, -1), (FLOAT,)),
    "aten::upsample_bilinear2d.vec_out": ((_IMAGE, [3, 9], True, None), (FLOAT,)),
    "aten::upsample_nearest2d.vec_out": ((_IMAGE, None, [2.5, 0.7]), (FLOAT,)),
    "aten::var.correction_out": ((_X, [1], 2, True), (FLOAT,)),
    "aten::var.out": ((_X, [1, 2], True, False), (FLOAT,)),
    "aten::var_mean.correction_out": ((_X, [1], None, False), (FLOAT, FLOAT)),
}
