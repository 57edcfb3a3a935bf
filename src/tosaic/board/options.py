"""The choice of a board, of the program that runs its firmware, and of what is reported."""

from __future__ import annotations

from dataclasses import dataclass

VIRTUAL, QEMU, FVP = "virtual", "qemu", "fvp"
RUNNERS = (VIRTUAL, QEMU, FVP)


@dataclass(frozen=True, slots=True)
class BoardOptions:
    """Options of a run on a board.

    board               the name or the folder of a board; empty for one with the NPU that the program is for
    runner              virtual, qemu or fvp
    count_instructions  whether the virtual board counts the CPU's instructions, which takes many times longer
    elf                 a firmware with the program, if there is one already
    """

    board: str = ""
    runner: str = VIRTUAL
    count_instructions: bool = False
    elf: bytes | None = None


#: The virtual board.
DEFAULTS = BoardOptions()
