"""The firmware's CPU kernels: the results of ExecuTorch's own, for every type and the values that go wrong first."""

from __future__ import annotations

import importlib

import pytest

from support.firmware import GCC, Firmware
from support.kernel_calls import compare, compute_case
from support.kernel_cases import FAMILIES, list_cases
from tosaic.board.kernels import list_kernels

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
CASES = list_cases()


@pytest.fixture(scope="module", autouse=True)
def quantized_operators() -> None:
    importlib.import_module("executorch.kernels.quantized")  # operators with `out`


@pytest.mark.parametrize("operator", sorted(CASES))
def test_results(firmware: Firmware, operator: str) -> None:
    for by_torch in (False, True):
        cases = [case for case in CASES[operator] if case.by_torch == by_torch]
        expected = [result.numpy() for case in cases for result in compute_case(case)] if by_torch else None
        assert not cases or compare(firmware, cases, expected) == []


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
