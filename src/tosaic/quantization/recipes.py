"""Quantization recipes as data: dtype, range and observer of activations, weights and biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchao.quantization import pt2e
from torchao.quantization.pt2e.quantizer import QuantizationSpec

from tosaic.core.errors import Invalid
from tosaic.fx.observers import with_args
from tosaic.quantization.observer import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver, RoomyObserver


@dataclass(frozen=True, eq=True)
class QuantizationConfig:
    """The recipe of a part of the model; None in a field leaves that tensor in float, but a bias is derived."""

    input_activation: QuantizationSpec | None
    output_activation: QuantizationSpec | None
    weight: QuantizationSpec | None
    bias: QuantizationSpec | None = None


def _activation(
    dtype: torch.dtype, qmin: int, qmax: int, scheme: torch.qscheme, is_qat: bool, eps: float
) -> QuantizationSpec:
    kind: Any = RoomyObserver if dtype is torch.int16 else HistogramObserver
    observer: Any = (
        with_args(pt2e.FusedMovingAvgObsFakeQuantize, observer=pt2e.MovingAverageMinMaxObserver, eps=eps)
        if is_qat
        else with_args(kind, eps=eps)
    )
    return QuantizationSpec(dtype, observer, qmin, qmax, scheme, is_dynamic=False)


def _weight(qmin: int, qmax: int, per_channel: bool, is_qat: bool) -> QuantizationSpec:
    scheme = torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric
    if is_qat:
        inner: Any = pt2e.MovingAveragePerChannelMinMaxObserver if per_channel else pt2e.MovingAverageMinMaxObserver
        observer: Any = with_args(pt2e.FakeQuantize, observer=inner)
    else:
        observer = PerChannelMinMaxObserver if per_channel else MinMaxObserver
    return QuantizationSpec(torch.int8, observer, qmin, qmax, scheme, 0 if per_channel else None, False)


def get_symmetric_quantization_config(
    is_per_channel: bool = True, is_qat: bool = False, is_dynamic: bool = False, act_qmin: int = -128,
    act_qmax: int = 127, weight_qmin: int = -127, weight_qmax: int = 127, eps: float = 2**-16,
) -> QuantizationConfig:  # fmt: skip
    """Return int8 symmetric weights, per channel or per tensor, and int8 activations with a zero point."""
    _refuse_dynamic(is_dynamic)
    activation = _activation(torch.int8, act_qmin, act_qmax, torch.per_tensor_affine, is_qat, eps)
    return QuantizationConfig(activation, activation, _weight(weight_qmin, weight_qmax, is_per_channel, is_qat))


def get_symmetric_a16w8_quantization_config(
    is_per_channel: bool = True, is_qat: bool = False, is_dynamic: bool = False, weight_qmin: int = -127,
    weight_qmax: int = 127, epsilon: float = 2**-12,
) -> QuantizationConfig:  # fmt: skip
    """Return int16 activations without a zero point and int8 weights."""
    _refuse_dynamic(is_dynamic)
    activation = _activation(torch.int16, -(2**15) + 1, 2**15 - 1, torch.per_tensor_symmetric, is_qat, epsilon)
    return QuantizationConfig(activation, activation, _weight(weight_qmin, weight_qmax, is_per_channel, is_qat))


def get_symmetric_a8w4_quantization_config(
    is_per_channel: bool = True, is_qat: bool = True, is_dynamic: bool = False
) -> QuantizationConfig:
    """Return int8 activations and weights of 4 bits."""
    return get_symmetric_quantization_config(is_per_channel, is_qat, is_dynamic, weight_qmin=-7, weight_qmax=7)


def get_uint8_io_quantization_config(
    is_qat: bool = False, is_dynamic: bool = False, eps: float = 2**-16
) -> QuantizationConfig:
    """Return uint8 for `set_io`: the inputs and outputs of a model that is int8 inside."""
    _refuse_dynamic(is_dynamic)
    activation = _activation(torch.uint8, 0, 255, torch.per_tensor_affine, is_qat, eps)
    return QuantizationConfig(activation, activation, None)


def get_vgf_snorm_quantization_config(
    is_per_channel: bool = True, is_qat: bool = False, is_dynamic: bool = False, eps: float = 2**-16
) -> QuantizationConfig:
    """Return int8 from -127 to 127, which Vulkan's SNORM formats read as -1 to 1."""
    return get_symmetric_quantization_config(is_per_channel, is_qat, is_dynamic, act_qmin=-127, eps=eps)


def _refuse_dynamic(is_dynamic: bool) -> None:
    if is_dynamic:
        raise Invalid(
            "dynamic quantization is not supported",
            why="no target measures ranges at run time",
            fix="remove `is_dynamic=True` and calibrate with sample inputs",
        )
