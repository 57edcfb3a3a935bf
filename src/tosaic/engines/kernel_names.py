"""The kernels that a program may call here: an allow list, since many of torch's operators trust their caller.

Operators that take sizes, strides or offsets into memory without a check (`_reshape_alias`, `set_`, `resize_`,
`as_strided`), that skip the check of an index, that compute gradients or that access files are not here.
"""

from __future__ import annotations

#: Out variants whose result shapes torch can infer before it computes.
_OUT = """
_adaptive_avg_pool2d _adaptive_avg_pool3d _cdist_forward _conj_physical _fft_c2r _fft_r2c _log_softmax
_native_batch_norm_legit _native_batch_norm_legit_no_training _pdist_forward _softmax _to_copy _upsample_bilinear2d_aa
abs acos acosh add addmm alias_copy all amax amin any arange argmax argmin argsort asin asinh atan atan2 atanh
avg_pool1d avg_pool2d avg_pool3d baddbmm bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
bitwise_xor bmm cat ceil celu clamp clamp_max clamp_min clone constant_pad_nd convolution copy copysign cos cosh cumprod
cumsum detach_copy diagonal_copy digamma div elu embedding eq erf erfc erfinv exp exp2 expand_copy expm1 fill flip floor
floor_divide fmax fmin fmod frac full full_like gather ge gelu glu grid_sampler_2d grid_sampler_3d gt hardsigmoid
hardswish hardtanh hypot im2col index index_add index_put index_select isinf isnan isneginf isposinf le leaky_relu lerp
lgamma lift_fresh_copy linear log log10 log1p log2 log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not
logical_or logical_xor logit logsumexp lt masked_fill masked_scatter max max_pool2d_with_indices
max_pool3d_with_indices maximum mean min minimum mm mul mv nan_to_num narrow_copy native_dropout native_group_norm
native_layer_norm ne neg ones ones_like permute_copy pixel_shuffle pixel_unshuffle polar pow prod rand rand_like randn
randn_like reciprocal
reflection_pad1d reflection_pad2d reflection_pad3d relu remainder repeat replication_pad1d replication_pad2d
replication_pad3d roll round rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce select_copy select_scatter
sgn sigmoid sign signbit silu sin sinc sinh slice_copy slice_scatter softplus sort split_copy
split_with_sizes_copy sqrt squeeze_copy stack sub sum t_copy tan tanh threshold topk transpose_copy tril triu trunc
unbind_copy unfold_copy unsqueeze_copy upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean view_as_complex_copy view_as_real_copy view_copy
where xlogy zeros zeros_like
"""
#: The same beyond what ExecuTorch's own runtime has: CPU fallbacks of models should run here anyway.
_MORE = """
__lshift__ __rshift__ _upsample_bicubic2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d adaptive_max_pool2d adaptive_max_pool3d addcdiv addcmul cummax cummin
diag_embed diagonal_scatter dist hardshrink heaviside
index_copy index_fill kthvalue linalg_vector_norm median mish softshrink std
"""
#: Out variants whose result shapes depend on values of their inputs.
_BY_VALUE = "masked_select nonzero repeat_interleave"
#: Kernels without an out variant: they change their first argument, or return a number.
_PLAIN = "_local_scalar_dense copy_ index_put_ sym_numel sym_size"
_QUANTIZED = """
choose_qparams choose_qparams_per_token_asymmetric dequantize_per_channel dequantize_per_tensor dequantize_per_token
quantize_per_channel quantize_per_tensor quantize_per_token
"""

#: Kernels that resize an image.
RESIZES = frozenset(
    f"aten::{name}" for name in f"{_OUT} {_MORE}".split() if name.removeprefix("_").startswith("upsample_")
)
BY_VALUE = frozenset(f"aten::{name}" for name in _BY_VALUE.split())
PLAIN = frozenset(f"aten::{name}" for name in _PLAIN.split())
#: Kernels of ExecuTorch that torch has as plain Python functions, without out variants.
QUANTIZED = frozenset(f"quantized_decomposed::{name}" for name in _QUANTIZED.split())
ALLOWED = frozenset(f"aten::{name}" for name in f"{_OUT} {_MORE}".split()) | BY_VALUE | PLAIN | QUANTIZED
