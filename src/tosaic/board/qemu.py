"""Runs a firmware in QEMU, which has the CPU and the devices of a board. Its NPU is a mailbox to this process."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from tosaic.board.description import Board
from tosaic.board.elf import read_elf
from tosaic.board.execution import Execution, make_command_line, name_inputs
from tosaic.board.mailbox import Mailbox
from tosaic.board.memory import Block, Memory, make_memory
from tosaic.core.errors import ToolFailed, TosaicError
from tosaic.tools.process import TIMEOUT_VARIABLE

PROGRAM = "qemu-system-arm"
INSTALL = "install QEMU, e.g. `apt install qemu-system-arm`"
#: The size of the machine's memory, which is fixed.
_DDR_BYTES = 2 << 30
_LONGEST_MESSAGE = 64


def find_obstacle(board: Board) -> str:
    """Explain why a board does not run in QEMU here; return an empty text if it does."""
    if board.qemu is None:
        return f"QEMU has no model of {board.title}"
    return "" if shutil.which(PROGRAM) else f"there is no program `{PROGRAM}`"


def run_qemu(
    board: Board, elf: bytes, accelerator: str, inputs: Sequence[bytes] = (), *, seconds: float = 120.0
) -> Execution:
    """Run a firmware in QEMU."""
    obstacle = find_obstacle(board)
    if obstacle:
        fix = INSTALL if board.qemu is not None else "use `--runner virtual`"
        raise ToolFailed(f"cannot run on {board.title} in QEMU", why=obstacle, fix=fix)
    # QEMU loads what is outside its memories without a word.
    make_memory(board, read_elf(elf))
    with tempfile.TemporaryDirectory(prefix="tosaic-") as name:
        folder = Path(name)
        (folder / "firmware.elf").write_bytes(elf)
        for file, data in zip(name_inputs(inputs), inputs, strict=True):
            (folder / file).write_bytes(data)
        return _Run(board, accelerator, folder, seconds).run(make_command_line(inputs))


def make_arguments(machine: str, command_line: str) -> list[str]:
    """Make the command of a run; its files are in the working folder."""
    words = ",".join(f"arg={word}" for word in command_line.split())
    return [
        PROGRAM,
        *("-machine", f"{machine},memory-backend=ddr"),
        *("-object", f"memory-backend-file,id=ddr,size={_DDR_BYTES},mem-path=ddr,share=on"),
        *("-display", "none", "-monitor", "none", "-nodefaults"),
        *("-serial", "file:uart", "-serial", "pipe:mailbox"),
        *("-semihosting-config", f"enable=on,target=native,{words}"),
        *("-kernel", "firmware.elf"),
    ]


class _Run:
    """One run in its own folder."""

    def __init__(self, board: Board, accelerator: str, folder: Path, seconds: float) -> None:
        assert board.qemu is not None
        self._board, self._qemu, self._folder, self._seconds = board, board.qemu, folder, seconds
        self._notes: list[str] = []
        self._failure: TosaicError | None = None
        with (folder / "ddr").open("wb+") as file:
            file.truncate(_DDR_BYTES)
            shared = mmap.mmap(file.fileno(), _DDR_BYTES)
        for side in ("in", "out"):
            os.mkfifo(folder / f"mailbox.{side}")
        # Opened for both directions, a pipe does not wait for its other end.
        self._to_qemu, self._from_qemu = (os.open(folder / f"mailbox.{side}", os.O_RDWR) for side in ("in", "out"))
        block = Block(self._qemu.ddr, np.frombuffer(shared, np.uint8), True, False, "axi1")
        self._mailbox = Mailbox(board, accelerator, Memory((block,)), self._notes.append)

    def run(self, command_line: str) -> Execution:
        errors = self._folder / "errors"
        thread = threading.Thread(target=self._serve, daemon=True)
        with errors.open("wb") as log:
            process = subprocess.Popen(
                make_arguments(self._qemu.machine, command_line),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            thread.start()
            try:
                code = self._wait(process)
            finally:
                process.kill()
                process.wait()
                self._close(thread)
        return self._collect(code, errors)

    def _close(self, thread: threading.Thread) -> None:
        """End the thread that serves: it may wait for a message, or for the rest of one."""
        os.write(self._from_qemu, bytes(_LONGEST_MESSAGE))
        thread.join()
        os.close(self._to_qemu)
        os.close(self._from_qemu)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end; the time of NPU jobs does not count."""
        begin = time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.02)
            if self._failure is not None:
                raise self._failure
            if time.monotonic() - begin - self._mailbox.stopwatch.read() > self._seconds:
                raise ToolFailed(
                    f"the firmware was stopped: it did not end within {self._seconds:g} s",
                    log=self._read("uart"),
                    fix=f"allow more seconds with the environment variable `{TIMEOUT_VARIABLE}`",
                )

    def _serve(self) -> None:
        """Answer messages until one is not known."""
        try:
            while answer := self._mailbox.answer(self._receive):
                os.write(self._to_qemu, answer)
        except TosaicError as error:
            self._failure = error

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += os.read(self._from_qemu, size - len(data))
        return data

    def _read(self, name: str) -> str:
        file = self._folder / name
        return file.read_text("utf-8", "replace").replace("\r\n", "\n") if file.is_file() else ""

    def _collect(self, code: int, errors: Path) -> Execution:
        if code < 0:
            raise ToolFailed("QEMU crashed", log=self._read("uart") + errors.read_text("utf-8", "replace"))
        text = self._read("uart").partition("\x04")[0]
        if not text:
            why = errors.read_text("utf-8", "replace").strip().partition("\n")[0]
            raise ToolFailed("QEMU could not run the firmware", why=why or f"it ended with exit code {code}")
        kept = {path.name: path.read_bytes() for path in self._folder.glob("*.bin")}
        return Execution(code, text, kept, tuple(self._notes), npu_seconds=self._mailbox.stopwatch.cpu)
