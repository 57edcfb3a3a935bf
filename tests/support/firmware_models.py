"""Small models for the firmware: what they leave on the CPU has a kernel there."""

from functools import cache

import torch

from support.programs import Made, compile_front


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


class Sandwich(torch.nn.Module):
    """Two convolutions on the NPU, a sum of floats between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y + x)


class Relu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Offset(torch.nn.Module):
    """A constant, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.nn.Parameter(torch.tensor([[1.0], [-2.0], [0.5]]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + self.offset, self.offset + self.offset


class Counter(torch.nn.Module):
    """Adds one to its state in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.count + x


@cache
def compile_small(target: str) -> Made:
    torch.manual_seed(0)
    return compile_front(Small(), (torch.randn(1, 3, 8, 8),), target)


@cache
def compile_sandwich(target: str) -> Made:
    torch.manual_seed(0)
    return compile_front(Sandwich(), (torch.randn(1, 3, 8, 8),), target, floats=[torch.ops.aten.add.Tensor])
