"""Runs a firmware in Arm's simulator of a board (FVP), where the user has it. Not verified: see docs/boards.md."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tosaic.board.description import Board
from tosaic.board.execution import (
    ERROR,
    FAIL_LINE,
    FAILED,
    TEST_FAILED,
    Execution,
    make_command_line,
    name_inputs,
)
from tosaic.core.errors import ToolFailed
from tosaic.npu.accelerator import ACCELERATORS
from tosaic.tools.process import run_tool

#: More seconds than the simulator itself has, for its start and end.
_GRACE = 30.0


def name_program(board: Board, accelerator: str) -> str:
    """Return the name of the simulator for a board with this NPU."""
    if board.fvp is None:
        raise ToolFailed(f"there is no FVP of {board.title}", fix="use `--runner virtual`")
    return board.fvp.program.format(family=ACCELERATORS[accelerator].family.name)


def find_program(board: Board, accelerator: str) -> str | None:
    """Return the path of the simulator; None if it is not installed, or if there is none for the board."""
    return shutil.which(name_program(board, accelerator)) if board.fvp is not None else None


def make_arguments(board: Board, accelerator: str, elf: str, command_line: str, seconds: float) -> list[str]:
    """Make the command of a run; its files are in the working folder."""
    program = name_program(board, accelerator)
    assert board.fvp is not None
    cpu = board.fvp.cpu
    settings = (
        f"{board.fvp.macs}={ACCELERATORS[accelerator].macs}",
        *board.fvp.settings,
        f"{cpu}.semihosting-enable=1",
        f"{cpu}.semihosting-stack_base=0",
        f"{cpu}.semihosting-heap_limit=0",
        f"{cpu}.semihosting-cwd=.",
        f"{cpu}.semihosting-cmd_line={command_line}",
    )
    flags = [word for setting in settings for word in ("-C", setting)]
    return [program, *flags, "-a", elf, "--timelimit", f"{seconds:g}"]


def run_fvp(
    board: Board, elf: bytes, accelerator: str, inputs: Sequence[bytes] = (), *, seconds: float = 120.0
) -> Execution:
    """Run a firmware in the FVP. Its exit code comes from the log: the simulator does not pass one on."""
    program = name_program(board, accelerator)
    if find_program(board, accelerator) is None:
        raise ToolFailed(
            f"cannot run on {board.title} in an FVP",
            why=f"there is no program `{program}`",
            fix="install Arm's FVP and add it to PATH, or use `--runner virtual`",
        )
    with tempfile.TemporaryDirectory(prefix="tosaic-") as name:
        folder = Path(name)
        (folder / "firmware.elf").write_bytes(elf)
        for file, data in zip(name_inputs(inputs), inputs, strict=True):
            (folder / file).write_bytes(data)
        arguments = make_arguments(board, accelerator, "firmware.elf", make_command_line(inputs), seconds)
        done = run_tool("the FVP", arguments, folder=folder, timeout=seconds + _GRACE)
        files = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
    log, ended, _ = done.output.replace("\r\n", "\n").partition("\x04")
    if not ended:
        why = f"it ended with exit code {done.code} before the firmware did"
        raise ToolFailed("the FVP did not run the firmware to its end", log=done.output, why=why)
    return Execution(_find_exit_code(log), log, files)


def _find_exit_code(log: str) -> int:
    if FAIL_LINE in log:
        return TEST_FAILED
    return FAILED if any(line.startswith(ERROR) for line in log.splitlines()) else 0
