"""What ExecuTorch's runtime logs about operators that it has no kernel for, as a typed error."""

from __future__ import annotations

import re

from tosaic.core.errors import ToolFailed


class MissingKernel(ToolFailed):
    """A program with operators on the CPU that ExecuTorch's runtime has no kernel for."""


def check_kernels(log: str, other_engine: str) -> None:
    """Raise MissingKernel if the log of the runtime names missing operators; `other_engine` has torch's kernels."""
    missing = re.findall(r"Missing operator: \[\d+\] (\S+)", log)
    if missing:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(missing))
        raise MissingKernel(
            "ExecuTorch's runtime cannot run the program",
            log=log,
            why=f"it has no kernel for {names}",
            fix=f"a device needs these kernels too; engine `{other_engine}` uses torch's",
        )
