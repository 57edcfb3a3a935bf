"""Functions with a limited domain: right at its ends, and never zero for want of a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tosaic
from support import samples

DOMAINS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "acos": (torch.acos, -1.0, 1.0),
    "asin": (torch.asin, -1.0, 1.0),
    "acosh": (torch.acosh, 1.0, 3.0),
    "atanh": (torch.atanh, -0.99, 0.99),
    "erfinv": (torch.erfinv, -0.999, 0.999),
    "log": (torch.log, 1e-4, 3.0),
    "log10": (torch.log10, 1e-4, 3.0),
    "log1p": (torch.log1p, -0.999, 0.75),
    "log2": (torch.log2, 1e-4, 3.0),
    "logit": (torch.logit, 1e-3, 0.999),
    "pow": (lambda x: x**-1.5, 0.1, 3.0),
    "reciprocal": (torch.reciprocal, 0.05, 3.0),
    "root": (lambda x: x**0.5, 0.0, 3.0),
    "rsqrt": (torch.rsqrt, 0.01, 3.0),
    "sqrt": (torch.sqrt, 0.0, 3.0),
    "tan": (torch.tan, -1.5, 1.5),
}


@pytest.mark.parametrize("spec", ["TOSA-1.0+INT", "TOSA-1.0+INT+FP"])
@pytest.mark.parametrize("name", DOMAINS)
def test_a_table_is_right_at_both_ends_of_a_domain(name: str, spec: str) -> None:
    function, low, high = DOMAINS[name]
    x = torch.linspace(low, high, 41)
    program = tosaic.compile(samples.Call(function).eval(), (x,), spec)
    assert len(program.delegates) == 1
    got, want = torch.from_numpy(program.run(x, engine="tosa")[0]), function(x)
    # One step of the input inside the domain, and one of the output.
    step = (max(high, 0.0) - min(low, 0.0)) / 255
    near = [(function((x + s * step).clamp(low, high)) - want).abs() for s in (-1.01, 1.01)]
    bound = torch.maximum(*near) + (max(want.max(), 0.0) - min(want.min(), 0.0)) / 200
    assert bool(((got - want).abs() <= bound).all()), (got - want)[(got - want).abs() > bound]


@pytest.mark.parametrize(
    ("name", "outside", "lowest"), [("log", -5.0, True), ("rsqrt", -5.0, False), ("asin", 2.0, False)]
)
def test_what_lies_outside_a_domain_has_the_extreme_value(name: str, outside: float, lowest: bool) -> None:
    """The calibration has seen such inputs nowhere; the input's own grid reaches just below its domain."""
    function, low, high = DOMAINS[name]
    x = torch.linspace(low, high, 41)
    program = tosaic.compile(samples.Call(function).eval(), (x,), "TOSA-1.0+INT")
    inside = program.run(x, engine="tosa")[0]
    found = program.run(torch.full((41,), outside), engine="tosa")[0]
    assert np.unique(found).size == 1
    assert found[0] <= inside.min() if lowest else found[0] >= inside.max()


def test_a_choice_may_avoid_what_is_no_number() -> None:
    x = torch.linspace(-2.0, 2.0, 41)
    model = samples.Call(lambda x: torch.where(x > 0.0, torch.log(x.clamp(min=0.01)), 0.5))
    program = tosaic.compile(model.eval(), (x,), "TOSA-1.0+INT")
    assert np.abs(program.run(x, engine="tosa")[0][x.numpy() < -0.1] - 0.5).max() <= 0.03
