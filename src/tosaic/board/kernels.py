"""The CPU kernels of the firmware: found in its C files, selected for a program, and written as a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tosaic.core.errors import Invalid

FIRMWARE = Path(__file__).parent / "firmware"
_KERNEL = re.compile(r'^TOSAIC_KERNEL\((\w+), "([^"]+)", "([^"]*)"\)', re.MULTILINE)
_SIGNATURE = re.compile(r"([TOVidbrsIDBLWl*]\??)*")


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel: the operator with its overload, the C function, its arguments (`kernel.h` explains them), its file."""

    operator: str
    function: str
    signature: str
    path: Path


@cache
def list_kernels() -> Mapping[str, KernelSource]:
    """List the kernels of the firmware by operator."""
    found: dict[str, KernelSource] = {}
    for path in sorted((FIRMWARE / "kernels").glob("*.c")):
        for name, operator, signature in _KERNEL.findall(path.read_text("utf-8")):
            if operator in found:
                raise ValueError(f"`{operator}` has two kernels, in `{found[operator].path.name}` and `{path.name}`")
            if _SIGNATURE.fullmatch(signature) is None:
                raise ValueError(f"`{operator}` has the signature `{signature}`, which has unknown letters")
            found[operator] = KernelSource(operator, f"tosaic_kernel_{name}", signature, path)
    return MappingProxyType(found)


def select_kernels(operators: Iterable[str]) -> tuple[KernelSource, ...]:
    """Select the kernels of these operators; raise Invalid with all that are missing."""
    known, wanted = list_kernels(), sorted(set(operators))
    missing = [operator for operator in wanted if operator not in known]
    if missing:
        raise Invalid(
            f"the firmware has no kernel for {', '.join(f'`{operator}`' for operator in missing)}",
            why="the program calls these operators on the CPU",
            fix="delegate them to the NPU, or replace them in the model; `docs/operators.md` lists what is delegated",
        )
    return tuple(known[operator] for operator in wanted)


def make_table(kernels: Iterable[KernelSource]) -> str:
    """Write the table of kernels as C."""
    rows = list(kernels)
    lines = ['#include "kernel.h"', ""]
    lines += [f"tosaic_kernel_function {row.function};" for row in rows]
    lines += ["", "const tosaic_kernel tosaic_kernels[] = {"]
    lines += [f'    {{"{row.operator}", "{row.signature}", {row.function}}},' for row in rows]
    # C has no empty arrays.
    lines += [] if rows else ["    {0, 0, 0},"]
    lines += ["};", f"const uint32_t tosaic_kernel_count = {len(rows)};", ""]
    return "\n".join(lines)
