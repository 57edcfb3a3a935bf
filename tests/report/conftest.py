"""A program with two delegates, an operator on the CPU between them, and layers of several operations."""

from __future__ import annotations

import inspect

import pytest
import torch

import tosaic
from tosaic.api.program import Program


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
        self.skip = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        y = y + self.skip(y)
        z = torch.native_dropout(y.mean((2, 3)), 0.0, True)[0]
        return torch.softmax(self.head(z), 1)


def find_line(text: str) -> int:
    """The line of this file on which the model calls something."""
    lines, first = inspect.getsourcelines(Net)
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.fixture(scope="session")
def lines() -> dict[str, int]:
    """The source lines of the model's calls."""
    return {name: find_line(f"{name}(") for name in ("self.body", "self.skip", "torch.native_dropout", "self.head")}


@pytest.fixture(scope="session")
def program() -> Program:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return tosaic.compile(Net().eval(), (torch.randn(1, 3, 16, 16),), target="ethos-u55-128")
