"""What every runner takes and returns: inputs as files, outputs as files, and the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The prefix of the files with outputs.
OUTPUT = "output"
#: Exit codes of a firmware: a test failed, and an error that its log explains.
TEST_FAILED, FAILED = 1, 2
#: What the log has in these cases: a line, and the begin of a line.
FAIL_LINE, ERROR = "Test_result: FAIL", "E ["


@dataclass(frozen=True, slots=True)
class Execution:
    """A firmware that has ended.

    exit_code     what it returned: 0 done, 1 a test failed, 2 an error that the log explains
    log           what it printed
    files         the files it wrote, and its inputs
    place         where it ran, for people
    is_measured   whether its cycle counts come from a model of the real hardware, and not from estimates
    notes         the reasons of NPU faults, which the firmware knows only as bits of a register
    npu_seconds   the CPU time of this process that the simulated NPU took
    instructions  how many the CPU executed, if they were counted
    """

    exit_code: int
    log: str
    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    place: str = ""
    is_measured: bool = False
    npu_seconds: float = 0.0
    instructions: int | None = None


def name_inputs(inputs: Sequence[bytes]) -> list[str]:
    """Return the names of the files with inputs."""
    return [f"input-{index}.bin" for index in range(len(inputs))]


def name_output(index: int) -> str:
    """Return the name of the file with an output."""
    return f"{OUTPUT}-{index}.bin"


def make_command_line(inputs: Sequence[bytes]) -> str:
    """Return the command line that the firmware reads."""
    return " ".join(["firmware", *(f"-i {name}" for name in name_inputs(inputs)), f"-o {OUTPUT}"])
