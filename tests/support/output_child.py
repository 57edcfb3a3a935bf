"""Writes the files of every command into this folder: `python -m support.output_child NAME...`.

A name is that of a case, or `sweep`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import tosaic
from support.cli import run_command
from support.firmware_models import Sandwich


class Recurrent(nn.Module):
    """A recurrent layer of 20 steps, most of which have the same shapes."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.steps, self.head = kind(8, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.steps(x)[0][:, -1])


class Loop(nn.Module):
    """A loop with a known number of rounds, which is unrolled."""

    def forward(self, x: Tensor) -> Tensor:
        def go_on(count: Tensor, y: Tensor) -> Tensor:
            return count < 3

        def step(count: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return count + 1, torch.tanh(y * 0.9)

        return torch.while_loop(go_on, step, (torch.tensor(0), x))[1]


def make_cases() -> dict[str, tuple[nn.Module, Tensor, str]]:
    """Models by name, each with its input and target."""
    torch.manual_seed(0)
    steps, image = torch.randn(1, 20, 8), torch.randn(1, 3, 12, 12)
    return {
        "lstm": (Recurrent(nn.LSTM), steps, "ethos-u55-128"),
        "gru": (Recurrent(nn.GRU), steps, "ethos-u65-512"),
        "parts": (Sandwich(), image, "ethos-u85-256"),
        "loop": (Loop(), image, "ethos-u85-256"),
        "graph": (Sandwich(), image, "TOSA-1.0+FP"),
    }


def write_outputs(name: str, board: str) -> None:
    """Write what every command says about a .pte."""
    pte = f"{name}.pte"
    run_command("report", pte, "-o", f"{name}.html")
    run_command("inspect", pte, "--csv", f"{name}.csv", "--trace", f"{name}.trace")
    run_command("run", pte, "--etdump", f"{name}.etdp", "-o", f"{name}.npz")
    run_command("build", pte, "--board", board, "--c-project", f"{name}_project", "--with-samples")
    run_command("build", pte, "--board", board, "-o", f"{name}.elf")
    for command in ("inspect --json", "inspect --layers --json", "inspect --text", "verify --json", "run --log"):
        first, *others = command.split()
        Path(f"{name}.{command.replace(' ', '')}").write_text(run_command(first, pte, *others).stdout)


def main(chosen: Sequence[str]) -> None:
    cases = make_cases()
    for name in chosen:
        if name == "sweep":
            run_command("sweep", "add", "softmax", "-t", "ethos-u55-128", "-j", "1", "-o", name, "-q", "--keep")
            continue
        model, x, target = cases[name]
        program = tosaic.compile(model.eval(), (x,), target)
        if target.startswith("ethos"):
            program.save(f"{name}.pte")
            write_outputs(name, "corstone-320" if "u85" in target else "corstone-300")
        else:
            program.save(name)


if __name__ == "__main__":
    main(sys.argv[1:])
