"""The firmware's code as static libraries with the names of ExecuTorch's, for an application of one's own.

The order matters to some linkers: put the libraries between `-Wl,--start-group` and `-Wl,--end-group`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from tosaic.board.kernels import FIRMWARE, list_kernels, make_table, select_kernels
from tosaic.board.toolchain import AUTO, find_toolchain

RUNTIME, DRIVER = "libexecutorch.a", "libexecutorch_delegate_ethos_u.a"
KERNELS, TABLE = "libportable_kernels.a", "libportable_ops_lib.a"
#: What an application includes.
HEADERS = ("tosaic.h", "ethosu.h")
#: Only the driver: the runtime refers to its delegate, so that a program without an NPU could not be linked.
_OF_DRIVER = frozenset(("ethosu.c",))
_TABLE_SOURCE = "kernels.c"


def make_libraries(operators: Iterable[str] | None = None, toolchain: str = AUTO) -> dict[str, bytes]:
    """Build the libraries; return them and the headers by name, `lib/...` and `include/...`.

    `operators` are the kernels in them, by default all. `toolchain` is `zig`, `gcc`, or the first that is installed.
    """
    chosen = select_kernels(list_kernels() if operators is None else operators)
    compiler = find_toolchain(toolchain)
    runtime = sorted(path.name for path in FIRMWARE.glob("*.c"))
    parts = {
        RUNTIME: [name for name in runtime if name not in _OF_DRIVER],
        DRIVER: [name for name in runtime if name in _OF_DRIVER],
        KERNELS: sorted({f"kernels/{path.name}" for path in (*_list_shared(), *(kernel.path for kernel in chosen))}),
        TABLE: [_TABLE_SOURCE],
    }
    with tempfile.TemporaryDirectory(prefix="tosaic-") as temporary:
        folder = Path(temporary)
        for path in (*FIRMWARE.glob("*.[ch]"), *FIRMWARE.glob("kernels/*.[ch]")):
            copy = folder / path.relative_to(FIRMWARE)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
        (folder / _TABLE_SOURCE).write_text(make_table(chosen), "utf-8")
        for name, sources in parts.items():
            compiler.archive(folder, sources, ["."], name)
        files = {f"lib/{name}": (folder / name).read_bytes() for name in parts}
    return files | {f"include/{name}": (FIRMWARE / name).read_bytes() for name in HEADERS}


def _list_shared() -> list[Path]:
    """List the sources that kernels share."""
    own = {kernel.path for kernel in list_kernels().values()}
    return [path for path in (FIRMWARE / "kernels").glob("*.c") if path not in own]
