"""The rule by which an output of a bundle must match, from the types in the program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tosaic.api.bundle_check import check_cases
from tosaic.core.errors import Invalid
from tosaic.formats import pte
from tosaic.formats.bpte import Case


@pytest.fixture
def plan(add_pte: dict[str, bytes]) -> pte.Plan:
    return pte.read(add_pte["inline"]).find("forward")


def retype(plan: pte.Plan, dtype: str) -> pte.Plan:
    values = [replace(value, dtype=dtype) if isinstance(value, pte.Tensor) else value for value in plan.values]
    return replace(plan, values=tuple(values))


def check(plan: pte.Plan, got: Any, want: Any) -> Any:
    x = np.zeros(5, np.int32)
    return check_cases(plan, [Case((x,), (want,))], [[got]])


def test_integers_of_32_bits_are_equal(plan: pte.Plan) -> None:
    y = np.arange(5, dtype=np.int32)
    assert check(plan, y, y).ok
    verdict = check(plan, y, y + np.asarray([0, 0, 1, 0, 0], np.int32))
    assert not verdict.ok
    assert verdict.first == "case 0, output 0, element [2]: 2 instead of 3"
    assert verdict.matches[0].rule == "equal"


@pytest.mark.parametrize(("off", "ok"), [(1, True), (2, False), (100, False)])
def test_quantized_values_are_compared_in_steps(plan: pte.Plan, off: int, ok: bool) -> None:
    """One step everywhere is allowed; more than that only for 1 % of the values, and of five that is none."""
    y = np.asarray([-1, 0, 1, 0, 1], np.int8)
    assert check(retype(plan, "int8"), y, (y + off).astype(np.int8)).ok is ok


def test_halves_have_the_tolerance_of_halves(plan: pte.Plan) -> None:
    y = np.linspace(0.5, 1.0, 5, dtype=np.float16)
    assert check(retype(plan, "float16"), y, y + np.float16(2**-9)).ok
    assert not check(retype(plan, "float32"), y.astype(np.float32), y.astype(np.float32) - 4).ok


def test_other_types_are_refused(plan: pte.Plan) -> None:
    with pytest.raises(Invalid, match=r"test case 0 expects int64\[5\]") as caught:
        check(plan, np.zeros(5, np.int32), np.zeros(5, np.int64))
    assert caught.value.why == "the program returns int32[5]"
