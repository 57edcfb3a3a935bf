"""The firmware's CPU kernels: the results of ExecuTorch's own, for every type and the values that go wrong first."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import pytest

from support.firmware import GCC, STATUSES, Firmware
from support.kernel_cases import FAMILIES, Case, list_cases
from support.kernel_runs import compute, find_difference, list_inputs, make_pte
from tosaic.board.kernels import list_kernels
from tosaic.engines import executorch

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
CASES = list_cases()


@pytest.fixture(scope="module", autouse=True)
def quantized_operators() -> None:
    importlib.import_module("executorch.kernels.quantized")  # operators with `out`


def compare(firmware: Firmware, cases: Sequence[Case], *, by_torch: bool) -> list[str]:
    """Run cases in one program; say where the results differ."""
    data = make_pte(cases)
    if by_torch:
        expected = [result.numpy() for case in cases for result in compute(case)]
    else:
        expected = executorch.run(data, list_inputs(cases, in_memory=False))
    ended = firmware.run(data, list_inputs(cases, in_memory=True))
    if ended.status:
        return [f"{STATUSES[ended.status]}:  case {ended.instruction}, {cases[ended.instruction]}"]
    assert len(ended.outputs) == len(expected)
    found = map(find_difference, ended.outputs, expected)
    return [f"output {index}: {text}" for index, text in enumerate(found) if text]


@pytest.mark.parametrize("operator", sorted(CASES))
def test_results(firmware: Firmware, operator: str) -> None:
    for by_torch in (False, True):
        cases = [case for case in CASES[operator] if case.by_torch == by_torch]
        assert not cases or not compare(firmware, cases, by_torch=by_torch)


def test_every_kernel_has_cases() -> None:
    """All kernels of the files that have a family of cases, but for those that copy nothing."""
    kernels = {name for name, kernel in list_kernels().items() if kernel.path.stem in FAMILIES}
    without = {
        "aten::copy_",
        "executorch_prim::et_view.default",
        "aten::empty.out",
        "dim_order_ops::_empty_dim_order.out",
    }
    assert kernels - set(CASES) == without
