"""Biases: int32 with the scale of the accumulator, which is the input's scale times the weight's.

The smaller that scale, the smaller the largest bias that 32 bits hold. A channel whose weights are nearly zero, as a
batch norm can leave it, has a bias anyway: its weights get a scale that is large enough for the bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torchao.quantization.pt2e.quantizer import DerivedQuantizationSpec, QuantizationSpec, QuantizationSpecBase

from tosaic.quantization.observer import MinMaxObserver, PerChannelMinMaxObserver
from tosaic.quantization.prepare import attribute

_PER_CHANNEL = (torch.per_channel_symmetric, torch.per_channel_affine)
#: The next float32 is 2**31, which torch would turn into the most negative int32.
_LARGEST = 2**31 - 128
#: how large a bias may be next to what the accumulator adds to it
_ROOM = 2**30
#: the smallest scale of an activation: a bias that fits with it always fits
_SMALLEST_SCALE = 2**-16


def derive_bias(x: Node, weight: Node, node: Node, spec: QuantizationSpec) -> DerivedQuantizationSpec:
    """Derive the spec of a bias from those of the input and the weight."""

    def derive(observers: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        (x_scale, _), (w_scale, _) = (o.calculate_qparams() for o in observers)
        scale = x_scale.to(torch.float32) * w_scale.to(torch.float32)
        return scale, torch.zeros_like(scale, dtype=torch.int32)

    per_channel = spec.qscheme in _PER_CHANNEL
    return DerivedQuantizationSpec(
        derived_from=[(x, node), (weight, node)],
        derive_qparams_fn=derive,
        dtype=torch.int32,
        quant_min=-(2**31),
        quant_max=_LARGEST,
        qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric,
        ch_axis=0 if per_channel else None,
    )


def fit_weight(x: Node, weight: Node, bias: Node, node: Node, spec: QuantizationSpec) -> QuantizationSpecBase:
    """Derive the spec of a weight from the input's if its own scale could be too small for the bias."""
    make: Any = spec.observer_or_fake_quant_ctr
    # While a model is trained, its biases change.
    if make not in (MinMaxObserver, PerChannelMinMaxObserver) or weight.op != "get_attr" or bias.op != "get_attr":
        return spec
    owner: Any = node.graph.owning_module
    fields: dict[str, Any] = {
        name: getattr(spec, name) for name in ("dtype", "quant_min", "quant_max", "qscheme", "ch_axis")
    }
    numbers, size = attribute(owner, weight).detach(), attribute(owner, bias).detach().abs()
    observer: Any = make(**{name: value for name, value in fields.items() if value is not None})
    observer(numbers)
    if not all(bool(torch.isfinite(ends).all()) for ends in (observer.min_val, observer.max_val, size)):
        # Calibration refuses them.
        return spec
    own, zero_points = observer.calculate_qparams()
    needed = (size if own.numel() > 1 else size.max().reshape(1)) / _ROOM
    if bool((own >= needed / _SMALLEST_SCALE).all()):
        return spec

    def derive(observers: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        x_scale, _ = observers[0].calculate_qparams()
        return torch.maximum(own, needed / x_scale.to(torch.float32)), zero_points

    return DerivedQuantizationSpec(derived_from=[(x, node)], derive_qparams_fn=derive, **fields)
