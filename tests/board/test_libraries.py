"""The static libraries: the same bytes, the kernels that are asked for, and an application that links them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from support.boards import needs_board
from support.firmware_models import compile_sandwich
from tosaic.board.build import design
from tosaic.board.kernels import list_kernels
from tosaic.board.libraries import DRIVER, KERNELS, RUNTIME, TABLE, make_libraries
from tosaic.board.project import HEADERS, make_project
from tosaic.board.toolchain import GCC_CPU, find_toolchain
from tosaic.board.virtual import run_virtual
from tosaic.core.errors import Invalid
from tosaic.engines import engine

pytestmark = needs_board
NAMES = (RUNTIME, DRIVER, KERNELS, TABLE)
INPUT = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def libraries() -> dict[str, bytes]:
    return make_libraries()


def test_names(libraries: dict[str, bytes]) -> None:
    assert sorted(libraries) == ["include/ethosu.h", "include/tosaic.h", *(f"lib/{name}" for name in sorted(NAMES))]


def test_firmware_from_libraries(libraries: dict[str, bytes], tmp_path: Path) -> None:
    """The application and the board as sources, all else from the libraries: it computes what engine `npu` does."""
    data = compile_sandwich("ethos-u55-128").pte["inline"]
    made = design(data, "corstone-300")
    files = make_project(made.model, made.board, made.memory_mode)
    kept = ("app/", "board/", "model.", "kernel.h")
    sources = [name for name in files if name.endswith(".c") and name.startswith(kept)]
    for name, content in {**files, **{Path(name).name: data for name, data in libraries.items()}}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    find_toolchain().link(tmp_path, [*sources, *NAMES], HEADERS, "firmware.elf")
    elf = (tmp_path / "firmware.elf").read_bytes()
    done = run_virtual(made.board, elf, made.accelerator, (INPUT.tobytes(),))
    assert done.exit_code == 0, done.log
    (expected,) = engine.run(data, [INPUT], engine="npu").outputs
    assert done.files["output-0.bin"] == expected.tobytes()


def test_gcc(libraries: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with the names of the GNU toolchain, and zig behind them."""
    zig = find_toolchain("zig")
    for name, command in (("gcc", (*zig.command, *zig.compile_flags)), ("ar", zig.archiver)):
        program = tmp_path / f"arm-none-eabi-{name}"
        words = f"[*{command!r}, *(word for word in sys.argv[1:] if word not in {GCC_CPU!r})]"
        program.write_text(f"#!{sys.executable}\nimport os, sys\nwords = {words}\nos.execv(words[0], words)\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", zig.environment["ZIG_GLOBAL_CACHE_DIR"])
    assert make_libraries(toolchain="gcc") == libraries


def test_selected_kernels() -> None:
    chosen, again = (make_libraries(["aten::add.out"]) for _ in range(2))
    assert chosen == again
    assert b"tosaic_kernel_add_out" in chosen[f"lib/{KERNELS}"] and b"aten::add.out" in chosen[f"lib/{TABLE}"]
    kernels = list_kernels()
    others = [kernel for kernel in kernels.values() if kernel.path != kernels["aten::add.out"].path]
    assert others and not any(kernel.function.encode() in chosen[f"lib/{KERNELS}"] for kernel in others)
    with pytest.raises(Invalid, match="no kernel for `aten::nothing"):
        make_libraries(["aten::nothing.out"])
