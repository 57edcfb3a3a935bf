"""What single lowerings are worth: NPU cycles of small programs with each of them and without. Writes a table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import tosaic
from tosaic import passes
from tosaic.lower import arithmetic as arith
from tosaic.lower import convolution, lowering

HERE = Path(__file__).resolve().parent
TARGETS = ("ethos-u55-128", "ethos-u85-256")


@dataclass(frozen=True)
class Case:
    """A program in which one lowering works, and what switches it off."""

    title: str
    about: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    without: Callable[[], Any]
    targets: tuple[str, ...] = TARGETS


class Attention(nn.Module):
    """Heads by a permutation of five dimensions, as vision transformers spell it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(192, 576)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).reshape(1, 65, 3, 3, 64).permute(2, 0, 3, 1, 4).unbind(0)
        return nn.functional.scaled_dot_product_attention(query, key, value)


def strided(lo: Any, x: Any, weight: Any, q: Any, bias: Any) -> Any:
    how: dict[str, Any] = {"pad": (0, 0, 0, 0), "dilation": (1, 1), "depthwise": False}
    return arith.convolve(lo, x, weight, q, bias, stride=weight.shape[1:3], **how)


CASES = (
    Case(
        "global mean",
        "sums of columns in int8, of their 16-bit results in int16: exact, and no window as large as the image",
        lambda: nn.Sequential(nn.Conv2d(8, 96, 1), nn.AdaptiveAvgPool2d(1)),
        (1, 8, 28, 28),
        lambda: mock.patch.object(arith, "_sums_twice", lambda *_: False),
    ),
    Case(
        "patch embedding",
        "a row of windows is an image of its own, or each window one pixel: no stride is left",
        lambda: nn.Conv2d(3, 192, 8, 8),
        (1, 3, 64, 64),
        lambda: mock.patch.object(convolution, "_convolve_patches", strided),
    ),
    Case(
        "first convolution, stride 2",
        "neighboring columns of an image with few channels are channels",
        lambda: nn.Conv2d(3, 64, 7, 2, 3),
        (1, 3, 224, 224),
        lambda: mock.patch.object(convolution, "_width_fold_factor", lambda *_, **__: 0),
    ),
    Case(
        "first convolution, 5x5",
        "the same, with two results computed together",
        lambda: nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 8, 1)),
        (1, 3, 96, 96),
        lambda: mock.patch.object(convolution, "_width_fold_factor", lambda *_, **__: 0),
        TARGETS[:1],
    ),
    Case(
        "image from NCHW",
        "few channels move to the end by a convolution with a one-hot kernel",
        lambda: nn.Conv2d(3, 16, 3, padding=1),
        (1, 3, 224, 224),
        lambda: mock.patch.object(passes, "PASSES", passes.PASSES[:-1]),
    ),
    Case(
        "attention heads",
        "a transposition is made in as few dimensions as it needs",
        Attention,
        (1, 65, 192),
        lambda: mock.patch.object(lowering, "simplify", lambda shape, perm: (shape, perm)),
    ),
)


def count(case: Case, target: str) -> tuple[int, int]:
    """Cycles by Vela and from the commands; what is compiled is also executed and compared with TOSA."""
    torch.manual_seed(0)
    model = case.model().eval()
    program = tosaic.compile(model, (torch.randn(case.shape),), target)
    verdict = program.verify(rounds=1)
    assert verdict.ok, verdict
    (delegate,) = program.delegates
    estimate = delegate.artifact.estimate_cycles()
    assert estimate is not None
    return int(delegate.artifact.summary["cycles_total"]), estimate.cycles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bench" / "lowerings.md")
    out: Path = parser.parse_args().out
    lines = [
        "# What single lowerings are worth",
        "",
        "Made by `bench/lowerings.py`. Each program is compiled with a lowering and without it, executed on the "
        "simulator and compared with the TOSA reference model bit for bit. Cycles by Vela, and from the commands.",
        "",
        "| lowering | target | without | with | ratio | from the commands |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for target in case.targets:
            with case.without():
                before = count(case, target)
            after = count(case, target)
            lines.append(
                f"| {case.title} | {target} | {before[0]:,} | {after[0]:,} | {after[0] / before[0]:.2f} | "
                f"{before[1]:,} to {after[1]:,} ({after[1] / before[1]:.2f}) |"
            )
            print(lines[-1], flush=True)
    lines += ["", *(f"* **{case.title}**: {case.about}." for case in CASES)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
