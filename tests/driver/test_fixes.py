"""Every reason is true, and its fix works: a program that shows the reason, and the same program with the fix."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tosaic
from support.fixes import CASES, FP, U55, U85, Program, i, program, r
from support.samples import Call
from support.shortcuts import without_qat_patterns
from tosaic.api.prepare import quantize
from tosaic.driver.exported import export
from tosaic.ethosu import EthosUCompileSpec
from tosaic.lower.constraints import RESULT
from tosaic.ops import registry

#: constraints that no program of torch.export violates, and why
UNREACHABLE = {
    "quantized values next to float ones": "test_the_profiles_of_a_quantized_model",
    "indices are int32 numbers, not a mask": "torch takes no other integers, and a mask makes a dynamic shape",
    "values are added to float data": "Tosaic's quantizer decomposes it first",
}


def leave(one: Program, target: str) -> dict[str, str]:
    model = one.model if isinstance(one.model, nn.Module) else Call(one.model)
    with without_qat_patterns():
        reasons = tosaic.compile(model.eval(), one.inputs, target).reasons
    return {r.why: r.fix for r in reasons if not (r.is_io and "quantize_per" in r.op)}


@pytest.mark.parametrize("name", CASES)
def test_a_reason_is_given_and_its_fix_works(name: str) -> None:
    case = CASES[name]
    assert [fix for why, fix in leave(case.shown, case.target).items() if why.startswith(case.reason)] == [case.fix]
    if case.fixed is not None:
        assert leave(case.fixed, case.target) == {}
    if "Ethos-U85" in case.fix:
        assert leave(case.shown, U85) == {}


def test_every_constraint_is_in_the_table() -> None:
    records = registry().records.values()
    constraints = {(one.sentence, one.fix) for one in RESULT}
    constraints |= {(one.sentence, one.fix) for record in records for one in record.constraints}
    missing = [
        sentence
        for sentence, fix in constraints
        if not any(case.fix == fix and case.reason.startswith(sentence[: len(case.reason)]) for case in CASES.values())
        and not any(sentence.startswith(known) for known in UNREACHABLE)
    ]
    assert missing == []


def test_the_profiles_of_a_quantized_model() -> None:
    model, x = nn.Conv2d(3, 4, 1).eval(), r(1, 3, 4, 4)
    module = quantize(export(model, (x,)), [(x,)])
    fixes = {r.fix for r in tosaic.compile(module, (x,), FP).reasons if "profiles FP and INT" in r.why}
    assert fixes == {"use a specification with FP and INT"}
    assert tosaic.compile(module, (x,), "TOSA-1.0+INT+FP").reasons == ()


def test_data_movement_alone_is_delegated_on_request() -> None:
    shown = program(lambda x: x.reshape(4, 3), i(3, 4))
    (fix,) = leave(shown, U55).values()
    assert "delegate_data_movement = True" in fix
    spec = EthosUCompileSpec(U55)
    spec.delegate_data_movement = True
    assert tosaic.compile(Call(shown.model).eval(), shown.inputs, spec).reasons == ()


def test_float_inputs_and_outputs_are_one_choice() -> None:
    reasons = tosaic.compile(nn.Conv2d(3, 4, 1).eval(), (r(1, 3, 4, 4),), U55).reasons
    assert {r.fix for r in reasons} == {'compile with `io="int8"`, for a program with quantized inputs and outputs'}
    assert tosaic.compile(nn.Conv2d(3, 4, 1).eval(), (r(1, 3, 4, 4),), U55, io="int8").reasons == ()


def choose_sorted(x: torch.Tensor) -> torch.Tensor:
    above = x > 0.5
    return torch.where(above, (torch.sort(above.to(torch.int32), 1)[0] != 0).float() * x, x)


def test_what_is_fused_around_an_operator_of_the_cpu_follows_it() -> None:
    reasons = tosaic.compile(Call(choose_sorted).eval(), (r(3, 4),), U55).reasons
    (cause,) = [one for one in reasons if not one.cause and not one.is_io]
    assert cause.op == "aten.sort.default"
    fused = [one for one in reasons if one.why.startswith("it is fused with operators that need the result of `sort`")]
    assert {one.op for one in fused} > {"aten.gt.Scalar", "aten.where.self"}
    assert {(one.cause, one.fix) for one in fused} == {("sort", f"for `sort`: {cause.fix}")}


def test_every_reason_has_a_fix() -> None:
    # torch.sinc has no record of its own: it is a table in int8, and nothing in float.
    assert all(leave(program(torch.sinc, r(3, 4)), FP).values())
