"""Limits of operators: what they refuse is what the compiler refuses, just inside and just outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from support.records import change_record
from tosaic.api.build import export, quantize
from tosaic.driver.delegate import build
from tosaic.ethosu import EthosUCompileSpec
from tosaic.fx.source import Source
from tosaic.ops.conv import LIMITS

STRIDES, CHANNELS = LIMITS


def conv(*arguments: Any, **keywords: Any) -> nn.Module:
    return nn.Conv2d(4, 4, *arguments, **keywords)


CASES = {
    "stride": (conv(3, stride=8), (24, 24), "u55", None),
    "depthwise": (conv(3, stride=3, groups=4), (24, 24), "u55", None),
    "depthwise-stride": (conv(3, stride=(1, 4), groups=4), (24, 24), "u55", STRIDES),
    "depthwise-one-column": (conv(3, stride=(1, 4), groups=4), (24, 6), "u55", None),
    "depthwise-two-columns": (conv(3, stride=(1, 4), groups=4), (24, 7), "u55", STRIDES),
    "depthwise-padded": (conv(3, stride=4, groups=4, padding=1), (5, 5), "u65", STRIDES),
    "dilated": (conv(3, stride=3, dilation=2), (24, 24), "u55", None),
    "dilated-stride": (conv(3, stride=(4, 1), dilation=(1, 2)), (24, 24), "u65", STRIDES),
    "dilated-point": (conv(1, stride=4, dilation=2), (24, 24), "u55", None),
    "dilated-u85": (conv(3, stride=4, dilation=2), (24, 24), "u85", None),
    "grouped-dilated": (conv(3, stride=4, dilation=2, groups=2), (24, 24), "u55", STRIDES),
    "features": (nn.Linear(1 << 16, 2), (1 << 16,), "u85", None),
    "features-more": (nn.Linear((1 << 16) + 1, 2), ((1 << 16) + 1,), "u85", CHANNELS),
    "features-more-u55": (nn.Linear((1 << 16) + 1, 2), ((1 << 16) + 1,), "u55", CHANNELS),
}


def refusals(module: Any, spec: EthosUCompileSpec) -> list[str]:
    reasons = build(Source.of_module(module), spec).plan.reasons.values()
    return [r.why for r in reasons if r.op in ("aten.conv2d.default", "aten.linear.default")]


@pytest.mark.parametrize("name", CASES)
def test_limits_are_those_of_the_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape, family, limit = CASES[name]
    x = torch.randn(1, *([4] if len(shape) == 2 else []), *shape, generator=torch.Generator().manual_seed(3))
    module = quantize(export(model.eval(), (x,)), [(x,)])
    spec = EthosUCompileSpec({"u55": "ethos-u55-128", "u65": "ethos-u65-256", "u85": "ethos-u85-256"}[family])
    assert refusals(module, spec) == ([] if limit is None else [limit.sentence])
    # Nothing but the compiler decides then.
    change_record(monkeypatch, "conv2d" if len(shape) == 2 else "linear", limits=())
    free = refusals(module, spec)
    assert [why.partition(":")[0] for why in free] == ([] if limit is None else ["Vela"])
