"""Modules that several tests use."""

from __future__ import annotations

from typing import Any

import torch


class Call(torch.nn.Module):
    """A module around a plain function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)
