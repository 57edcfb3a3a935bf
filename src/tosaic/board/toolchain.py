"""The cross compilers for a firmware: zig's, which pip installs, or the GNU toolchain for Arm."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.paths import find_cache_folder
from tosaic.tools.process import run_tool

AUTO = "auto"
_INSTALL = "pip install 'tosaic[board]'"
_WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
#: A Cortex-M33 with single-precision FPU: a subset of Cortex-M55 and M85.
FLAGS = (
    "-std=c11",
    "-Os",
    "-ffreestanding",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-strict-aliasing",
    # Floats as on the host: no sum and product in one rounding.
    "-ffp-contract=off",
    # A square root is an instruction.
    "-fno-math-errno",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
    *_WARNINGS,
)
SCRIPT = "board.ld"
#: `-g` keeps the symbols; the linker script drops all else of it.
LINK = ("-g", "-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,max-page-size=16", "-Wl,-e,start_reset")
GCC_CPU = ("-mcpu=cortex-m33", "-mthumb", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard", "-fno-tree-loop-distribute-patterns")
GCC_LINK = ("-nostartfiles", "-nostdlib")
#: After all that calls it.
GCC_LIBRARIES = ("-lgcc",)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler: its name in messages, its version, its command, that of its archiver, and its own flags."""

    name: str
    version: str
    command: tuple[str, ...]
    archiver: tuple[str, ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    merge_flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def flags(self) -> tuple[str, ...]:
        return (*self.compile_flags, *FLAGS)

    def merge(self, folder: Path, sources: Sequence[str], headers: Sequence[str], output: str) -> None:
        """Compile sources in a folder to one object file."""
        self._compile(folder, ["-r", *self.merge_flags, *sources], headers, output)

    def archive(self, folder: Path, sources: Sequence[str], headers: Sequence[str], output: str) -> None:
        """Compile sources in a folder to a static library, with one object file for each."""
        objects = [f"{source}.o" for source in sources]
        for source, file in zip(sources, objects, strict=True):
            self._compile(folder, ["-c", source], headers, file)
        # D: no times and owners in the file.
        self._run(folder, [*self.archiver, "rcsD", output, *objects])

    def link(self, folder: Path, sources: Sequence[str], headers: Sequence[str], output: str) -> None:
        """Compile and link sources and object files in a folder to a program."""
        self._compile(folder, [*sources, "-T", SCRIPT, *LINK, *self.link_flags], headers, output)

    def _compile(self, folder: Path, arguments: Sequence[str], headers: Sequence[str], output: str) -> None:
        include = [f"-I{header}" for header in headers]
        self._run(folder, [*self.command, *self.flags, *include, *arguments, "-o", output])

    def _run(self, folder: Path, command: Sequence[str]) -> None:
        done = run_tool(self.name, command, folder=folder, environment={**os.environ, **self.environment})
        if done.code:
            why = next((line for line in done.output.splitlines() if "error" in line), f"exit code {done.code}")
            raise ToolFailed(f"{self.name} did not build the firmware", log=done.output, why=why.strip())


def find_toolchain(name: str = AUTO) -> Toolchain:
    """Return the compiler of that name, `zig` or `gcc`; by default the first that is installed."""
    makers = {"zig": _find_zig, "gcc": _find_gcc}
    if name not in (AUTO, *makers):
        raise Invalid(f"unknown toolchain `{name}`", fix="use one of auto, zig, gcc")
    for maker in makers.values() if name == AUTO else [makers[name]]:
        found = maker()
        if found is not None:
            return found
    wanted = "`ziglang` or `arm-none-eabi-gcc`" if name == AUTO else f"`{name}`"
    raise ToolFailed(f"the firmware cannot be built without {wanted}", why="it is not installed", fix=_INSTALL)


def _find_zig() -> Toolchain | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    return Toolchain(
        "zig",
        importlib.metadata.version("ziglang"),
        (sys.executable, "-m", "ziglang", "cc"),
        (sys.executable, "-m", "ziglang", "ar"),
        # A plain `cortex_m33` has no FPU; zig adds checks of undefined behavior unless told otherwise.
        (
            *("-target", "thumb-freestanding-eabihf"),
            "-mcpu=cortex_m33+fp_armv8d16sp",
            "-fno-sanitize=undefined",
            # Loops of memcpy must not become calls of memcpy.
            "-fno-builtin",
        ),
        environment={"ZIG_GLOBAL_CACHE_DIR": str(find_cache_folder() / "zig")},
    )


def _find_gcc() -> Toolchain | None:
    command = shutil.which("arm-none-eabi-gcc")
    if command is None:
        return None
    return Toolchain(
        "arm-none-eabi-gcc",
        f"{command} {Path(command).stat().st_mtime_ns}",
        (command,),
        (str(Path(command).with_name("arm-none-eabi-ar")),),
        GCC_CPU,
        (*GCC_LINK, *GCC_LIBRARIES),
        ("-nostdlib",),
    )
