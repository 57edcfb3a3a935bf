"""Tables of 16 bits with interpolation: how near their sums are to a function, for every number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn import functional as F

from tosaic.core.errors import Unsupported
from tosaic.lower import interpolation
from tosaic.lower.interpolation import Table

NUMBERS = np.arange(-(2**15), 2**15)
#: by name: a function, the range of its input, and the most tables that it may take
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], float, int]] = {
    "sigmoid": (torch.sigmoid, 8.0, 1),
    "sigmoid, wide": (torch.sigmoid, 40.0, 2),
    "tanh": (torch.tanh, 4.0, 1),
    "tanh, wide": (torch.tanh, 16.0, 3),
    "gelu": (F.gelu, 8.0, 1),
    "hardswish": (F.hardswish, 20.0, 4),
    "exp": (lambda x: torch.exp(torch.clamp(x, max=0.0)), 20.0, 2),
    "sqrt": (lambda x: torch.sqrt(torch.relu(x)), 9.0, 3),
    "rsqrt": (lambda x: torch.rsqrt(torch.clamp(x, min=0.001)), 9.0, 3),
    "log": (lambda x: torch.log(torch.clamp(x, min=0.05)), 600.0, 3),
    "sign": (torch.sign, 3.0, 2),
}


def find_steps(function: Callable[[Any], Any], most: float) -> npt.NDArray[np.float64]:
    """The results of a function in steps of a scale that fits them."""
    reals = function(torch.tensor(NUMBERS, dtype=torch.float32) * (most / 32767)).double().numpy()
    return reals / np.abs(reals).max() * 32767


def look_up(tables: list[Table]) -> npt.NDArray[np.int64]:
    """What TABLE and the RESCALE after it make of all numbers, as the specification has it, added up."""
    total = np.zeros(len(NUMBERS), np.int64)
    for table in tables:
        at = np.clip((NUMBERS - table.center) << table.zoom, -(2**15), 2**15 - 1)
        entries = table.entries.astype(np.int64)
        base, above = entries[(at >> 7) + 256], entries[(at >> 7) + 257]
        assert np.abs(above - base).max() < 2**15
        total += ((base << 7) + (above - base) * (at & 127) + 64) >> 7
    return total


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_result_is_near(name: str) -> None:
    function, most, count = FUNCTIONS[name]
    wanted = find_steps(function, most)
    tables = interpolation.fit(wanted)
    # The lowest number has no quantized value.
    steps = np.abs(look_up(tables) - np.rint(wanted))[1:]
    assert steps.max() <= 2
    assert (steps <= 1).mean() >= 0.999
    assert len(tables) <= count


def test_a_pole_keeps_what_is_not_next_to_it() -> None:
    wanted = np.clip(find_steps(lambda x: 1.0 / torch.where(x == 0, 1e-9, x), 6.0) * 1e6, -32767, 32767)
    steps = np.abs(look_up(interpolation.fit(wanted)) - np.rint(wanted))
    assert steps[2**15 :].max() <= 2
    assert steps[1 : 2**15 - 256].max() <= 2


def test_eight_bits_are_looked_up_exactly() -> None:
    wanted = np.random.default_rng(0).integers(-32767, 32768, 256).astype(np.float64)
    found = look_up([interpolation.exact(wanted)])[::256]
    assert np.array_equal(found, wanted)


def test_a_function_of_too_many_steps_is_refused() -> None:
    with pytest.raises(Unsupported, match="at most 16 tables") as raised:
        interpolation.fit(find_steps(torch.sin, 400.0))
    assert raised.value.fix == "quantize this part of the model to int8"


#: by name: a function of whole numbers up to 2**31, and the most tables that it may take
WIDE: dict[str, tuple[Callable[[Any], Any], int]] = {
    "square root": (lambda x: np.sqrt(x / 2**31) * 32767, 7),
    "square root that saturates": (lambda x: np.sqrt(x / 2**31) * 40000, 7),
    "inverse root": (lambda x: 32767 / np.sqrt(np.maximum(x, 0.1) / 5000), 10),
    "inverse root, unlucky": (lambda x: 32767 / np.sqrt(np.maximum(x, 0.1) / 7000), 10),
    "straight line": (lambda x: x / 2**31 * 32767, 1),
    "cube root": (lambda x: np.cbrt(x / 2**31) * 32767, 12),
}


@pytest.mark.parametrize("name", WIDE)
def test_every_result_for_a_sum_is_near(name: str) -> None:
    function, count = WIDE[name]
    parts = interpolation.fit_parts(function, 2.0**31, (-32767.0, 32767.0))
    assert len(parts) <= count
    numbers = np.unique(np.rint(np.concatenate([np.arange(5000), np.geomspace(1, 2**31 - 1, 300_000)])))
    total = np.zeros(len(numbers), np.int64)
    for part in parts:
        at = np.floor(np.minimum(numbers, np.ceil(part.end)) * 2.0**15 / part.end + 0.5).clip(0, 2**15 - 1)
        at = at.astype(np.int64)
        entries = part.entries.astype(np.int64)
        base, above = entries[(at >> 7) + 256], entries[(at >> 7) + 257]
        total += ((base << 7) + (above - base) * (at & 127) + 64) >> 7
    assert np.abs(np.clip(total, -32767, 32767) - np.clip(function(numbers), -32767, 32767)).max() < 2


def test_a_function_that_needs_too_many_tables_for_a_sum_is_refused() -> None:
    with pytest.raises(Unsupported, match="at most 16 tables"):
        interpolation.fit_parts(lambda x: np.sin(x) * 32767, 2.0**31, (-32767.0, 32767.0))
