"""Bugs of Tosaic itself: affected nodes stay on the CPU, and the user is asked to report them."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager

from tosaic.core.errors import TosaicError, Unsupported, first_line

#: the environment variable that makes such a bug end the compile: for tests and for debugging
STRICT = "TOSAIC_STRICT"

_log = logging.getLogger("tosaic")


class InternalError(Unsupported):
    """An unexpected exception, as the reason to leave something on the CPU."""

    def __init__(self, doing: str, cause: Exception) -> None:
        what = cause.what if isinstance(cause, TosaicError) else first_line(cause)
        super().__init__(
            f"internal error while {doing}: {what}",
            f"please report this with the traceback in the log; `{STRICT}=1` raises it instead",
        )


def is_strict() -> bool:
    """Tell whether a bug of Tosaic ends the compile."""
    return os.environ.get(STRICT, "") == "1"


@contextmanager
def contained(doing: str, *, planned: tuple[type[TosaicError], ...] = (TosaicError,)) -> Generator[None]:
    """Turn every exception but the planned ones into an InternalError; with TOSAIC_STRICT=1 it is raised unchanged."""
    try:
        yield
    except (MemoryError, InternalError):
        raise
    except Exception as error:
        if isinstance(error, planned) or is_strict():
            raise
        _log.exception("internal error while %s; it stays on the CPU", doing)
        raise InternalError(doing, error) from error
