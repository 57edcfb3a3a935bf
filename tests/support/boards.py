"""Small programs in C for a board, built by the compiler of the extra `board`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tosaic.board.build import Design, compile_design
from tosaic.board.kernels import KernelSource

PROGRAMS = Path(__file__).parents[1] / "board" / "programs"
_REASON = "the extra `board` is not installed. Fix: tosaic doctor --fix board"
needs_zig = pytest.mark.skipif(find_spec("ziglang") is None, reason=_REASON)
needs_board = pytest.mark.skipif(find_spec("ziglang") is None or find_spec("unicorn") is None, reason=_REASON)
needs_cross_gcc = pytest.mark.skipif(
    not shutil.which("arm-none-eabi-gcc"), reason="there is no cross gcc: install the package gcc-arm-none-eabi"
)
_TARGET = ("-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m33+fp_armv8d16sp")
_FLAGS = ("-Os", "-g", "-ffreestanding", "-fno-sanitize=undefined", "-fno-unwind-tables", "-Wl,-e,start")


def build_program(folder: Path, body: str) -> bytes:
    """Build a program; `body` is C after `start.h`, with `main` and the handlers it needs."""
    source, elf = folder / "program.c", folder / "program.elf"
    source.write_text(f'#include "start.h"\n{body}\n')
    script = ("-T", str(PROGRAMS / "small.ld"), "-I", str(PROGRAMS))
    command = [sys.executable, "-m", "ziglang", "cc", *_TARGET, *_FLAGS, *script, str(source), "-o", str(elf)]
    subprocess.run(command, check=True, cwd=folder)
    return elf.read_bytes()


def rebuild(design: Design, kernels: tuple[KernelSource, ...] | None = None, **sizes: int) -> bytes:
    """Build a firmware with other pools or kernels than its model needs."""
    chosen = design.kernels if kernels is None else kernels
    model = replace(design.model, pools=replace(design.pools, **sizes), kernels=chosen)
    return compile_design(replace(design, model=model), "zig")


def check_memory(log: str) -> None:
    """The high-water mark of every pool is its size; the stack is reported apart, and has room."""
    rows = {name: (int(used), int(size)) for name, used, size in re.findall(r"(\w+): +(\d+) / (\d+) free", log)}
    used, size = rows.pop("stack_used")
    assert 0 < used < size
    assert len(rows) == 4 and all(used == size for used, size in rows.values()), rows
