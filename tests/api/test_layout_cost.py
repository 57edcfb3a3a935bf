"""The warning about cycles that only change the layout of inputs and outputs."""

import pytest
import torch
from torch import nn

import tosaic
from tosaic.api import layouts
from tosaic.core.hints import get_cli_form

WORDS = "if the caller can pass images with channels last, add `--layout nhwc`"


def _compile(layout: str, *further: nn.Module) -> tosaic.Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), *further).eval()
    return tosaic.compile(model, (torch.randn(1, 3, 16, 16),), "ethos-u55-128", layout=layout)


def _warn(program: tosaic.Program) -> list[str]:
    return [get_cli_form(one) for one in program.report().warnings if "layout" in one]


def test_a_large_part_of_the_cycles_is_named() -> None:
    slow, fast = (_compile(layout) for layout in ("nchw", "nhwc"))
    before, after = (program.profile().cycles or 0 for program in (slow, fast))
    (found,) = _warn(slow)
    assert found.endswith(WORDS) and abs(int(found.partition("%")[0]) - 100 * (before - after) / before) < 5
    assert _warn(fast) == []


def test_a_small_part_is_not() -> None:
    assert _warn(_compile("nchw", nn.Conv2d(32, 32, 3), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(3200, 4))) == []


def test_a_large_network_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_LARGEST_GRAPH", 1)
    assert _warn(_compile("nchw")) == []
