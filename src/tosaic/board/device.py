"""Runs a firmware with a runner and checks how it ended."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from tosaic.board.description import Board
from tosaic.board.execution import FAIL_LINE, FAILED, TEST_FAILED, Execution
from tosaic.board.fvp import run_fvp
from tosaic.board.options import FVP, QEMU, RUNNERS, VIRTUAL, BoardOptions
from tosaic.board.qemu import run_qemu
from tosaic.board.virtual import VirtualOptions, run_virtual
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.tools.process import TIMEOUT_VARIABLE, find_time_limit

#: Seconds for a firmware on this machine, unless the environment allows others.
_SECONDS = 120.0
#: A line of the log with an error.
_ERROR = re.compile(r"^E \[[^\]]*\] (.+)$", re.MULTILINE)


class FirmwareError(Invalid):
    """A firmware that ended with an error, which its log explains."""

    def __init__(self, what: str, *, log: str, why: str = "", fix: str = "") -> None:
        self.log = log
        super().__init__(what, why=why, fix=fix)


def run_firmware(
    board: Board, elf: bytes, accelerator: str, inputs: Sequence[bytes], options: BoardOptions
) -> Execution:
    """Run a firmware; raise FirmwareError if it reports an error. A failed test is not an error."""
    if options.runner not in RUNNERS:
        raise Invalid(f"unknown runner `{options.runner}`", fix=f"use one of {', '.join(RUNNERS)}")
    if options.count_instructions and options.runner != VIRTUAL:
        raise Invalid("only the virtual board counts instructions", fix="use `--runner virtual`")
    place = f"{board.title} with {accelerator}, runner {options.runner}"
    done = replace(_run(board, elf, accelerator, inputs, options), place=place, is_measured=options.runner == FVP)
    if done.exit_code == 0 or (done.exit_code == TEST_FAILED and FAIL_LINE in done.log):
        return done
    errors = _ERROR.findall(done.log)
    if done.exit_code != FAILED:
        last = (done.log.strip().splitlines() or [""])[-1]
        raise ToolFailed(f"the firmware ended with exit code {done.exit_code}", log=done.log, why=last)
    raise FirmwareError(
        f"the program does not run on {board.title}",
        log=done.log,
        why="; ".join((*(errors[-1:] or ["the log has no error"]), *done.notes)),
    )


def _run(board: Board, elf: bytes, accelerator: str, inputs: Sequence[bytes], options: BoardOptions) -> Execution:
    seconds = find_time_limit(None if TIMEOUT_VARIABLE in os.environ else _SECONDS)
    if options.runner == QEMU:
        return run_qemu(board, elf, accelerator, inputs, seconds=seconds)
    if options.runner == FVP:
        return run_fvp(board, elf, accelerator, inputs, seconds=seconds)
    return run_virtual(board, elf, accelerator, inputs, VirtualOptions(seconds, options.count_instructions))
