"""The interface of an engine, a place where a .pte runs.

An engine is a module with a subclass of `Engine`, and one line in `tosaic.engines.engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tosaic.board.execution import Execution
from tosaic.board.options import DEFAULTS, BoardOptions
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.engines.interpreter import Executor, Method
from tosaic.engines.run import Call
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan, Pte
from tosaic.formats.sidecar import Sidecar
from tosaic.npu.weights import WeightCache


@dataclass(frozen=True, slots=True)
class Job:
    """A method of a .pte file with its .ptd files, and its inputs and options.

    `weights` are those that earlier runs of a trusted program have decoded.
    """

    pte: bytes
    program: Pte
    method: str
    inputs: Sequence[Array]
    sidecar: Sidecar | None = None
    max_memory: int | None = None
    data: Sequence[bytes] = ()
    board: BoardOptions = DEFAULTS
    weights: WeightCache | None = None

    @property
    def plan(self) -> Plan:
        return self.program.find(self.method)


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs of a run, the calls it made, for a board what its firmware did, and the name of a Vulkan device."""

    outputs: list[Array]
    calls: Sequence[Call]
    execution: Execution | None = None
    device: str = ""


class Engine(Protocol):
    """A place where a .pte runs. `title` is its name in messages."""

    title: str

    def find_obstacle(self) -> str:
        """Explain why the engine does not work on this machine; return an empty text if it does."""
        return ""

    def require(self) -> None:
        """Raise a TosaicError where the engine does not work on this machine."""

    def run(self, job: Job) -> Result:
        """Run a program."""
        method = self.load(job)
        return Result(method.run(job.inputs), method.calls)

    def load(self, job: Job) -> Method:
        """Load a program for several runs, in which its memory persists; the inputs of the job are not used."""
        raise Invalid(f"{self.title} runs a program only once", fix="use engine `npu` or `tosa`")

    def open(self, plan: Plan, sidecar: Sidecar | None, budget: Budget) -> Executor:
        """Return the executor of a single delegate, for `verify` to compare."""
        ...
