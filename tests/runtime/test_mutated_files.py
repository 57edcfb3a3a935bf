"""300 damaged blobs and .pte files: each gives a typed error or a result, quickly and in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tosaic

CHILD = Path(__file__).with_name("mutated_child.py")


class Net(torch.nn.Module):
    """A convolution with its table and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.conv(x))
        return y + y.mean((2, 3), keepdim=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, add: Any, conv: Any, mixed_pte: bytes) -> Path:
    """The files to damage: both forms of a .pte, one delegate or two or none, and the blobs of all three families."""
    torch.manual_seed(0)
    model, inputs = Net().eval(), (torch.randn(1, 3, 8, 8),)
    nets = {name: tosaic.compile(model, inputs, target=name) for name in ("ethos-u55-128", "ethos-u65-512")}
    files = {
        "add_inline.pte": add.pte["inline"],
        "add_segment.pte": add.pte["segment"],
        "conv_u85.pte": conv.pte["inline"],
        "net_u55.pte": nets["ethos-u55-128"].pte,
        "mixed.pte": mixed_pte,
    }
    files |= {f"{name}.blob": net.delegates[0].blob for name, net in nets.items()}
    files |= {f"conv_u85_{i}.blob": data for i, data in enumerate(conv.tosa)}
    folder = tmp_path_factory.mktemp("whole")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def run(folder: Path, first: int, last: int) -> list[dict[str, Any]]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder), str(first), str(last)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1200,
        check=False,
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    ended = f"after {len(lines)} files the process ended with {done.returncode}: {done.stderr[-2000:]}"
    assert (done.returncode, len(lines)) == (0, last - first), ended
    return lines


def check(lines: list[dict[str, Any]], enough: int) -> None:
    untyped = [line for line in lines if line["end"].startswith("UNTYPED")]
    assert untyped == []
    assert sum(line["header"] for line in lines) >= enough
    assert {line["end"] for line in lines if line["header"]} - {"result"}, "no damage behind the header was noticed"


def test_sixty_damaged_files(folder: Path) -> None:
    check(run(folder, 0, 60), 20)


@pytest.mark.slow
def test_three_hundred_damaged_files(folder: Path) -> None:
    check(run(folder, 0, 300), 100)
