"""Hides other packages' developer messages from users; Tosaic's own warnings stay."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType

#: packages whose warnings a user cannot act on
_OTHERS = r"(torch|torchao|torchvision|executorch|numpy|sympy|pydantic)(\.|$)"
_LOGGERS = ("torch", "torchao", "executorch")
#: Held while changing what all threads share: warnings, log levels, standard error, and torch.export's own state.
EXCLUSIVE = threading.RLock()


def silence() -> None:
    """Hide everything below an error of these packages from now on; TORCH_LOGS still enables torch's log."""
    for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
        warnings.simplefilter("ignore", category)
    warnings.filterwarnings("ignore", module=_OTHERS)
    # torch.export warns about its own LSTM, in the name of contextlib.
    warnings.filterwarnings("ignore", message="The tensor attributes? .* assigned during export")
    for name in _LOGGERS:
        if name != "torch" or "TORCH_LOGS" not in os.environ:
            logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def quiet() -> Generator[None]:
    """Hide the same temporarily, for one thread at a time: warnings and log levels belong to the whole process."""
    with EXCLUSIVE, warnings.catch_warnings():
        levels = {name: logging.getLogger(name).level for name in _LOGGERS}
        silence()
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextmanager
def quiet_imports() -> Generator[None]:
    """Import modules without messages; torch sets the level of its logger meanwhile, so all below an error is off."""
    with EXCLUSIVE:
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(before)


def import_quietly(name: str) -> ModuleType:
    """Import a module by its name, without messages."""
    with quiet_imports():
        return importlib.import_module(name)
