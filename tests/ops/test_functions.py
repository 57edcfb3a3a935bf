"""Float functions over their whole range: the ends of a domain, infinities, NaN, and small numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from support import samples
from tosaic.backends.tosa import TosaCompileSpec
from tosaic.driver.delegate import lower_partition
from tosaic.driver.partition import partition
from tosaic.engines import reference
from tosaic.fx.source import Source, schema
from tosaic.ops import registry

INF, NAN = float("inf"), float("nan")
ENDS = [0.0, -0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.5, 89.0, 1e4, 2.0**24, 1e20, 2e38, INF, 1.0 - 2.0**-24]
SMALL = np.geomspace(1e-30, 1.0, 301).tolist()
NUMBERS = [*ENDS, *SMALL, *np.linspace(0.0, 12.0, 401).tolist()]
ONE = torch.tensor([*NUMBERS, *(-n for n in NUMBERS), NAN])
#: every pair of these
TWO = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 0.75, 49.0, -3.0, 2.5, 1e5, 1e-20, 3e20, INF, -INF, NAN]

UNARY = (
    *("expm1", "log1p", "log2", "log10", "exp2", "tan", "sinh", "cosh", "asin", "acos", "atan"),
    *("asinh", "acosh", "atanh", "erfinv", "erfc", "sign", "sqrt", "round", "trunc", "frac"),
)
#: functions that vanish at zero and must be right in all their digits there
VANISHING = ("expm1", "log1p", "sinh", "asinh", "atanh")
BINARY = ["atan2", "hypot", "logaddexp", "logaddexp2", "xlogy", "special_xlog1py", "pow"]


def run(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """The results of the TOSA reference model and of torch."""
    model = samples.Call(function).eval()
    source, spec = Source.of_program(torch.export.export(model, tuple(inputs))), TosaCompileSpec("TOSA-1.0+FP")
    plan = partition(source, spec.target)
    assert {r.node: r.why for r in plan.reasons.values() if not r.is_io} == {}
    region = plan.partitions[0]
    _, tosa = lower_partition(source, region, spec, frozenset())
    given = [inputs[source.inputs.index(n)].numpy() for n in region.inputs]
    return reference.run(tosa, given), [t.numpy() for t in function(*inputs)]


def is_close(got: Any, want: Any, least: float = 1.0) -> Any:
    """Equal infinities and NaN; other numbers within 1e-5 of their size, or of `least`."""
    with np.errstate(all="ignore"):
        near = np.abs(got.astype(np.float64) - want) <= 1e-5 * np.maximum(np.abs(want), least)
    return near | (got == want) | (np.isnan(got) & np.isnan(want))


def test_functions_of_one_number() -> None:
    x = ONE
    outputs, expected = run(lambda x: [getattr(torch, name)(x) for name in UNARY], [x])
    for name, got, want in zip(UNARY, outputs, expected, strict=True):
        wrong = ~is_close(got, want, 0.0 if name in VANISHING else 1.0)
        # The position of a pole is not known to 1e-5 of the value there.
        wrong &= (name != "tan") | (np.abs(x.numpy()) < 1e3)
        assert not wrong.any(), (name, x.numpy()[wrong], got[wrong], want[wrong])


def test_predicates() -> None:
    names = ("isnan", "isinf", "isposinf", "isneginf", "isfinite", "signbit")
    outputs, expected = run(lambda x: [getattr(torch, name)(x) for name in names], [ONE])
    for name, got, want in zip(names, outputs, expected, strict=True):
        assert np.array_equal(got, want), name


def test_powers_of_a_constant_exponent() -> None:
    exponents = (0.5, -0.5, 1.5, 2, 3, 4, 7, -1, -2, -3, -1.5, 2.3, -2.3, 11, 0)
    outputs, expected = run(lambda x: [x**e for e in exponents] + [2.0**x, 0.3**x, (-2.0) ** x], [ONE])
    for place, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        # C defines a root of -inf to be inf, but torch's own sqrt is NaN there.
        wrong = ~is_close(got, want) & (ONE.numpy() > -INF)
        assert not wrong.any(), (place, ONE.numpy()[wrong], got[wrong], want[wrong])


def test_functions_of_two_numbers() -> None:
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(torch.tensor(TWO), torch.tensor(TWO), indexing="ij"))
    outputs, expected = run(lambda x, y: [getattr(torch.ops.aten, name)(x, y) for name in BINARY], [x, y])
    for name, got, want in zip(BINARY, outputs, expected, strict=True):
        wrong = ~is_close(got, want)
        assert not wrong.any(), (name, x.numpy()[wrong], y.numpy()[wrong], got[wrong], want[wrong])


PREDICATES: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(torch, name) for name in ("isclose", "eq", "ne", "lt", "le", "gt", "ge")},
    "within 0.5": lambda x, y: torch.isclose(x, y, atol=0.5),
    "within double": lambda x, y: torch.isclose(x, y, rtol=2.0),
}


def test_predicates_of_two_numbers() -> None:
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(torch.tensor(TWO), torch.tensor(TWO), indexing="ij"))
    outputs, expected = run(lambda x, y: [predicate(x, y) for predicate in PREDICATES.values()], [x, y])
    for name, got, want in zip(PREDICATES, outputs, expected, strict=True):
        wrong = got != want
        assert not wrong.any(), (name, x.numpy()[wrong], y.numpy()[wrong])


DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


def test_divisions() -> None:
    """A quotient near an integer falls on torch's side of it, up to 2**22; a remainder never exceeds the divisor."""
    sizes = [0.0, 0.1, 0.3, 0.7, 1.0, 3.0, 7.0, 10.0, 49.0, 0.75, 1e-3, 1e3, 12345.678, 1e-20, 1e20, INF]
    numbers = torch.tensor([*sizes, *(-n for n in sizes), NAN])
    multiples = torch.outer(torch.arange(-60.0, 60.0), numbers[:16]).reshape(-1)
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(torch.cat((numbers, multiples)), numbers, indexing="ij"))
    outputs, expected = run(lambda x, y: [f(x, y) for f in DIVISIONS.values()], [x, y])
    quotient = torch.abs(x.double() / y.double()).numpy()
    exact = (quotient < 2.0**22) | ~np.isfinite(quotient)
    for name, got, want in zip(DIVISIONS, outputs, expected, strict=True):
        wrong = ~(is_close(got, want) | (~exact & (np.abs(got) <= np.abs(y.numpy()))))
        assert not wrong.any(), (name, x.numpy()[wrong], y.numpy()[wrong], got[wrong], want[wrong])


def test_rounding_to_decimals() -> None:
    x = torch.cat(
        (ONE, torch.arange(-100.0, 100.0) * 0.5, torch.arange(-100.0, 100.0) * 500.0, torch.linspace(-9, 9, 999))
    )
    decimals = (1, 2, 4, -1, -2, -3)
    outputs, expected = run(lambda x: [torch.round(x, decimals=d) for d in decimals], [x])
    for d, got, want in zip(decimals, outputs, expected, strict=True):
        wrong = ~is_close(got, want)
        assert not wrong.any(), (d, x.numpy()[wrong], got[wrong], want[wrong])


def list_overloads(packet: str) -> set[str]:
    """The overloads of an operator and of its in-place form that take and return tensors."""
    found: set[str] = set()
    for name in (packet, f"{packet}_"):
        operator = getattr(torch.ops.aten, name, None)
        for variant in operator.overloads() if operator is not None else ():
            one = getattr(operator, variant)
            arguments = {a.name: str(a.type) for a in schema(one)}
            if "Tensor" in arguments.values() and "out" not in arguments:
                found.add(str(one))
    return found


@pytest.mark.parametrize("family", ["functions", "division"])
def test_every_overload_of_an_operator_is_registered(family: str) -> None:
    for record in (r for r in registry().records.values() if r.family == family):
        packets = {overload.split(".")[1].rstrip("_") for overload in record.overloads}
        every = {o for packet in packets for o in list_overloads(packet)}
        known = {o for other in registry().records.values() for o in other.overloads}
        assert every <= known, record.name
        assert set(record.overloads) <= every, record.name
