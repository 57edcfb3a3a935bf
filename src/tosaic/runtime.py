"""The simulated NPU in `executorch.runtime`, so that Ethos-U files run in the user's own process.

import tosaic.runtime
from executorch.runtime import Runtime

tosaic.runtime.register()
method = Runtime.get().load_program("model.pte").load_method("forward")
outputs = method.execute([x])
"""

from __future__ import annotations

import functools
import logging

from tosaic.core.errors import Invalid, TosaicError
from tosaic.engines.interpreter import Npu
from tosaic.engines.runtime_backend import Backend, connect, load_runtime
from tosaic.formats.blob import BACKEND

__all__ = ["register"]

_log = logging.getLogger("tosaic")


def register() -> None:
    """Register the simulated NPU as `EthosUBackend` of ExecuTorch's runtime; a second call changes nothing.

    Needs a C++ compiler at the first use of an ExecuTorch release. The runtime reports a failed delegate only as a
    number: the reason is in the log of `tosaic`. The runtime trusts the files that it loads, and a wrong file may end
    the process; `tosaic run --engine executorch` checks files first, and runs them in a separate process.
    """
    _register_once()


@functools.cache
def _register_once() -> Backend:
    bindings, library = load_runtime()
    if BACKEND in bindings._get_registered_backend_names():
        raise Invalid(
            f"this ExecuTorch already has a backend `{BACKEND}`",
            why="a runtime cannot have two backends of one name",
            fix="use it as it is, or install ExecuTorch without it",
        )
    return connect(bindings, library, Npu, _log_error)


def _log_error(error: Exception) -> None:
    """Log the reason of a failure; the user sees only the runtime's number otherwise."""
    _log.error("%s failed: %s", BACKEND, error, exc_info=None if isinstance(error, TosaicError) else error)
