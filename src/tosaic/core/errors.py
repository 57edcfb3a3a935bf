"""The errors a user sees: what happened, where in the user's code, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

from tosaic.core.hints import get_cli_form


class ExitStatus(IntEnum):
    """The exit codes of all commands."""

    DONE = 0
    CHECK_FAILED = 1
    BAD_INPUT = 2
    TOOL_FAILED = 3
    INTERRUPTED = 130


class TosaicError(Exception):
    """Base of all errors that Tosaic raises on purpose."""

    exit_code: ExitStatus = ExitStatus.BAD_INPUT

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(what)

    def __str__(self) -> str:
        return self._describe(self.fix)

    def to_cli_text(self) -> str:
        """Return the message with its fix in the words of the command line."""
        return self._describe(get_cli_form(self.fix))

    def _describe(self, fix: str) -> str:
        parts = [self.what]
        for label, text in (("where", self.where), ("why", self.why), ("fix", fix)):
            if text:
                parts.append(f"  {label}: {text}")
        return "\n".join(parts)


def first_line(error: BaseException) -> str:
    """Return the type of a foreign error and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


class Unsupported(TosaicError):
    """A node that cannot run on the target; the partitioner leaves it on the CPU with this reason."""

    def __init__(self, why: str, fix: str = "", *, where: str = "") -> None:
        super().__init__(why, where=where, fix=fix)


class TensorRefused(Unsupported):
    """A node with a tensor that the target does not take; the node before or after it may be the real reason.

    kind  the type of the tensor, such as `float`; empty if the type is not the problem
    """

    def __init__(self, why: str, fix: str = "", *, kind: str = "") -> None:
        super().__init__(why, fix)
        self.kind = kind


class InputRefused(TensorRefused):
    """A node with an input that the target does not take; the input's producer may be the real reason."""


class ResultRefused(TensorRefused):
    """A node with a result that the target cannot store; the user of the result may be the real reason."""


class Invalid(TosaicError):
    """An unusable input (a model, a file, an option)."""


def check_choice(what: str, value: str, choices: Collection[str]) -> None:
    """Raise Invalid for an option that is not one of its choices."""
    if value not in choices:
        raise Invalid(f"{what} is `{value}`", fix=f"use one of {', '.join(choices)}")


class ToolFailed(TosaicError):
    """A native tool (Vela, the reference model) that failed, crashed or ran out of time."""

    exit_code = ExitStatus.TOOL_FAILED

    def __init__(self, what: str, *, log: str = "", where: str = "", why: str = "", fix: str = "") -> None:
        self.log = log
        super().__init__(what, where=where, why=why, fix=fix)


class Refused(ToolFailed):
    """A graph that a compiler rejects. `names` are the tensors that it may mean, if it reports any.

    `outputs` are the outputs of the graph, by number, that are certainly the cause.
    """

    names: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()


class ToolCrashed(ToolFailed):
    """A native tool that died; with other input it may work."""
