"""The command in this process, and a few programs that it has compiled once."""

import os
from pathlib import Path

import pytest

from support.cli import Command, Outcome, run_command

# Two inputs, two outputs, and one operator that stays on the CPU between two delegates.
TINY = """
import torch

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x, y):
        z = torch.relu(self.conv(x))
        return torch.sort(z.flatten(1).tile(1, 4))[0][:, ::4].reshape(z.shape) + y, z

torch.manual_seed(0)
model = Tiny().eval()
inputs = (torch.randn(1, 3, 8, 8), torch.randn(1, 8, 6, 6))
"""
CPU_LINE = 11


@pytest.fixture(scope="session")
def tosaic() -> Command:
    return run_command


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file."""
    path = tmp_path_factory.mktemp("model") / "tiny.py"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def cpu_line() -> int:
    """The line of the model file whose operator stays on the CPU."""
    return CPU_LINE


@pytest.fixture(scope="session")
def floats(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """The tiny model for an Ethos-U55 with float borders, and what the command said."""
    folder = tmp_path_factory.mktemp("floats")
    return folder / "tiny.pte", run_command("compile", tiny, "-t", "ethos-u55-128", "-o", f"{folder}{os.sep}")


@pytest.fixture(scope="session")
def codes(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """The same with int8 borders and channels last, a C header, intermediate files, and a report in JSON."""
    folder = tmp_path_factory.mktemp("codes")
    options = ["--io", "int8", "--layout", "nhwc", "--header", folder / "tiny.h", "--intermediates", folder / "all"]
    return folder / "tiny.pte", run_command("compile", tiny, "-o", folder / "tiny.pte", *options, "--json")
