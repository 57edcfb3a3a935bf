"""Constraints refuse what the compiler refuses, just inside and just outside, and say what they found; overloads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support.modules import Call
from tosaic.api.prepare import quantize
from tosaic.core.targets import find, list_families
from tosaic.driver.delegate import build
from tosaic.driver.exported import export
from tosaic.driver.partition import partition
from tosaic.ethosu import EthosUCompileSpec
from tosaic.fx.source import Source
from tosaic.lower.constraints import INPUT_CHANNELS, STRIDES
from tosaic.lower.registry import Constraint
from tosaic.ops import registry


def conv(*arguments: Any, **keywords: Any) -> nn.Module:
    return nn.Conv2d(4, 4, *arguments, **keywords)


DEPTHWISE = "it is depthwise and the stride is"
CASES = {
    "stride": (conv(3, stride=8), (24, 24), "u55", None),
    "depthwise": (conv(3, stride=3, groups=4), (24, 24), "u55", None),
    "depthwise-stride": (conv(3, stride=(1, 4), groups=4), (24, 24), "u55", f"{DEPTHWISE} 1x4"),
    "depthwise-one-column": (conv(3, stride=(1, 4), groups=4), (24, 6), "u55", None),
    "depthwise-two-columns": (
        conv(3, stride=(1, 4), groups=4),
        (24, 7),
        "u55",
        f"{DEPTHWISE} 1x4",
    ),
    "depthwise-padded": (
        conv(3, stride=4, groups=4, padding=1),
        (5, 5),
        "u65",
        f"{DEPTHWISE} 4x4",
    ),
    "dilated": (conv(3, stride=3, dilation=2), (24, 24), "u55", None),
    "dilated-stride": (
        conv(3, stride=(4, 1), dilation=(1, 2)),
        (24, 24),
        "u65",
        "the dilation is 1x2 and the stride is 4x1",
    ),
    "dilated-point": (conv(1, stride=4, dilation=2), (24, 24), "u55", None),
    "dilated-u85": (conv(3, stride=4, dilation=2), (24, 24), "u85", None),
    "grouped-dilated": (
        conv(3, stride=4, dilation=2, groups=2),
        (24, 24),
        "u55",
        "the dilation is 2x2 and the stride is 4x4",
    ),
    "features": (nn.Linear(1 << 16, 2), (1 << 16,), "u85", None),
    "features-more": (nn.Linear((1 << 16) + 1, 2), ((1 << 16) + 1,), "u85", "there are 65537"),
    "features-more-u55": (nn.Linear((1 << 16) + 1, 2), ((1 << 16) + 1,), "u55", "there are 65537"),
}


def refusals(module: Any, spec: EthosUCompileSpec) -> list[str]:
    reasons = build(Source.of_module(module), spec).plan.reasons.values()
    return [r.why for r in reasons if r.op in ("aten.conv2d.default", "aten.linear.default")]


@pytest.mark.parametrize("name", CASES)
def test_constraints_are_those_of_the_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape, family, found = CASES[name]
    x = torch.randn(1, *([4] if len(shape) == 2 else []), *shape, generator=torch.Generator().manual_seed(3))
    module = quantize(export(model.eval(), (x,)), [(x,)])
    spec = EthosUCompileSpec({"u55": "ethos-u55-128", "u65": "ethos-u65-256", "u85": "ethos-u85-256"}[family])
    constraint = STRIDES if len(shape) == 2 else INPUT_CHANNELS
    assert refusals(module, spec) == ([] if found is None else [f"{constraint.sentence}; here {found}"])
    # Nothing but the compiler decides then.
    monkeypatch.setattr(Constraint, "enforce", lambda *_: None)
    free = refusals(module, spec)
    assert [why.partition(":")[0] for why in free] == ([] if found is None else ["Vela"])


CALLS = {
    "argmax": (lambda x: x.argmax(-1).to(torch.int32), (1, 20_000), "it is among 20000"),
    "upsample_bilinear2d": (
        lambda x: F.interpolate(x, (2, 1019), mode="bilinear"),
        (1, 1, 2, 23),
        "it is from 23 to 1019",
    ),
    "gt": (lambda x: x.int() > x.flip(0).int(), (3, 4), "it takes int32 and int32"),
    "where": (lambda x: torch.where(x > x.flip(0), x.int(), 0), (3, 4), "it is between int32 and 0"),
    "cumsum": (lambda x: x.cumsum(1), (2, 513), "it is over 513"),
    "bitwise_and": (lambda x: x.int() & x.flip(0).int(), (3, 4), "it takes int32 and int32"),
    "left_shift": (lambda x: x.int() << x.flip(0).int(), (3, 4), "it takes int32 and int32"),
    "gather": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), (2, 2), "`index` is computed"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_reason_has_the_sentence_and_what_was_found(name: str) -> None:
    function, shape, found = CALLS[name]
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    module = quantize(export(Call(function).eval(), (x,)), [(x,)])
    plan = partition(Source.of_module(module), find("ethos-u55-128"))
    record = registry().records[name]
    reasons = {r.why: r.fix for r in plan.reasons.values() if r.op in record.overloads}
    expected = {f"{one.sentence}; here {found}": one.fix for one in record.constraints}
    assert reasons.keys() & expected.keys() and all(expected.get(why, fix) == fix for why, fix in reasons.items())


def test_every_constraint_is_a_sentence_with_a_fix_and_a_target() -> None:
    for record in registry().records.values():
        for one in record.constraints:
            assert one.sentence and one.fix and list_families(one.targets), record.name


def test_derived_overloads_exist_in_torch() -> None:
    names = [o for record in registry().records.values() for o in record.overloads if o.startswith("aten.")]
    for name in names:
        _, packet, variant = name.split(".")
        assert variant in getattr(torch.ops.aten, packet).overloads(), name


def list_arguments(operator: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in operator._schema.arguments]


def test_in_place_and_copy_forms_have_the_schema_of_their_plain_form() -> None:
    for record in registry().records.values():
        for name in record.overloads:
            space, packet, variant = name.split(".")
            plain = packet.removesuffix("_copy") if packet.endswith("_copy") else packet.removesuffix("_")
            # index_copy writes to an index: it is no form of index.
            if space != "aten" or plain == packet or packet.startswith("_") or packet == "index_copy":
                continue
            found, forms = getattr(getattr(torch.ops.aten, packet), variant), getattr(torch.ops.aten, plain)
            # The plain form of `floor_divide_.Tensor` is `floor_divide.default`.
            expected = [list_arguments(getattr(forms, other)) for other in forms.overloads()]
            assert list_arguments(found) in expected, name
            assert found._schema.is_mutable == packet.endswith("_"), name
