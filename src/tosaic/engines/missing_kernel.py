"""What ExecuTorch's runtime logs about operators that it has no kernel for, as a typed error."""

from __future__ import annotations

import re

from tosaic.core.errors import ToolFailed


class MissingKernel(ToolFailed):
    """A program with operators on the CPU that ExecuTorch's runtime has no kernel for, or none for their arguments."""


def check_kernels(log: str, other_engine: str) -> None:
    """Raise MissingKernel if the log of the runtime names a missing or failed kernel; `other_engine` has torch's."""
    missing = re.findall(r"Missing operator: \[\d+\] (\S+)", log)
    failed = re.search(r"KernelCall failed at instruction \S+ in operator (\S+): ", log)
    if missing:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(missing))
        why = f"it has no kernel for {names}"
    elif failed:
        said = re.search(r"Check failed \(.*\): (.+?)\.?\n", log)
        why = f"its kernel for `{failed[1]}` refused the arguments" + (f" ({said[1]})" if said else "")
    else:
        return
    raise MissingKernel(
        "ExecuTorch's runtime cannot run the program",
        log=log,
        why=why,
        fix=f"a device needs these kernels too; engine `{other_engine}` uses torch's",
    )
