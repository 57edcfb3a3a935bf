"""A firmware as sources: a CMake project for a user's own toolchain, or the model alone as a C array."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tosaic.board.build import Design
from tosaic.board.kernels import FIRMWARE
from tosaic.board.pools import Pools
from tosaic.board.project import DATA_SUFFIX, HEADERS, Model, make_project, name_data
from tosaic.board.toolchain import FLAGS, GCC_CPU, GCC_LIBRARIES, GCC_LINK, LINK, SCRIPT

_TEMPLATE = Path(__file__).parent / "template"
#: Of the application: what is only for runs with a host.
_LEFT_OUT = ("app/main.c",)
_PER_LINE = 16
#: How the generated `model.c` includes a file of the model.
_INCLUDED = re.compile(r'^__asm__\("\.section \.model.*?\);\n', re.MULTILINE | re.DOTALL)


def make_c_project(design: Design) -> dict[str, bytes]:
    """Return the files of a CMake project by name. The same design gives the same bytes."""
    files = make_project(design.model, design.board, design.memory_mode)
    for name in _LEFT_OUT:
        del files[name]
    # Arrays instead of the assembler's `.incbin`: every compiler has them.
    for name in [name for name in files if name.endswith((".pte", DATA_SUFFIX))]:
        del files[name]
    files["model.c"] = _INCLUDED.sub("", files["model.c"].decode()).encode()
    files[SCRIPT] = _join_scripts(files, SCRIPT).encode()
    for name in [name for name in files if name.endswith(".ld") and name != SCRIPT]:
        del files[name]
    files |= make_c_array(design)
    files["main.c"] = (_TEMPLATE / "main.c").read_bytes()
    files["README.md"] = (FIRMWARE / "README.md").read_bytes()
    files["CMakeLists.txt"] = _make_cmake([name for name in files if name.endswith(".c")]).encode()
    files["arm-none-eabi.cmake"] = _make_toolchain_file().encode()
    return files


def make_c_array(design: Design) -> dict[str, bytes]:
    """Return the model as C arrays, and a header with the memory and the kernels that it needs."""
    arrays = _list_arrays(design.model)
    lines = ["/* The files of the model. Generated. */", '#include "model_data.h"']
    for name, size, data in arrays:
        rows = [data[at : at + _PER_LINE] for at in range(0, len(data), _PER_LINE)]
        lines += ["", f'__attribute__((aligned(16), section(".model"))) const uint8_t {name}[{size}] = {{']
        lines += [*(f"    {', '.join(f'0x{byte:02x}' for byte in row)}," for row in rows), "};"]
    return {
        "model_data.c": "\n".join([*lines, ""]).encode(),
        "model_data.h": _make_header(arrays, design.pools, [kernel.operator for kernel in design.kernels]).encode(),
    }


def _list_arrays(model: Model) -> list[tuple[str, str, bytes]]:
    """List the files of a model: the name of the array, the name of its size, and the content."""
    rows = [("tosaic_model", "MODEL_SIZE", model.pte)]
    return rows + [(name_data(index), f"MODEL_DATA_{index}_SIZE", data) for index, data in enumerate(model.data)]


def _make_header(arrays: Sequence[tuple[str, str, bytes]], pools: Pools, operators: list[str]) -> str:
    lines = ["/* What the model needs. Generated. */", "#ifndef MODEL_DATA_H", "#define MODEL_DATA_H", ""]
    lines += ["#include <stdint.h>", "", *(f"#define {size} {len(data)}u" for _, size, data in arrays), ""]
    lines += ["/* Bytes of each pool. */"]
    lines += [f"#define MODEL_{name.upper()}_POOL_SIZE {bytes_}u" for name, bytes_ in pools.list_sizes().items()]
    lines += ["", "/* Kernels of the CPU, one line each. */"]
    lines += [f"/* {operator} */" for operator in operators]
    lines += [f"#define MODEL_KERNEL_COUNT {len(operators)}u", ""]
    lines += [f"extern const uint8_t {name}[{size}];" for name, size, _ in arrays]
    return "\n".join([*lines, "", "#endif", ""])


def _join_scripts(files: Mapping[str, bytes], name: str) -> str:
    """Return a linker script with the scripts that it includes: compilers look for those in different folders."""
    return re.sub(r"^INCLUDE (\S+)\n", lambda match: _join_scripts(files, match[1]), files[name].decode(), flags=re.M)


def _make_cmake(sources: list[str]) -> str:
    return "\n".join(
        [
            "# Builds firmware.elf: cmake -B build -DCMAKE_TOOLCHAIN_FILE=arm-none-eabi.cmake && cmake --build build",
            "cmake_minimum_required(VERSION 3.20)",
            "project(firmware C)",
            "add_executable(firmware",
            *(f"  {name}" for name in sorted(sources)),
            ")",
            "set_target_properties(firmware PROPERTIES SUFFIX .elf)",
            f"target_include_directories(firmware PRIVATE {' '.join(HEADERS)})",
            f"target_compile_options(firmware PRIVATE {' '.join(FLAGS)})",
            f"target_link_options(firmware PRIVATE -T ${{CMAKE_SOURCE_DIR}}/{SCRIPT} {' '.join(LINK)})",
            "",
        ]
    )


def _make_toolchain_file() -> str:
    return "\n".join(
        [
            "# The GNU toolchain for Arm, for a Cortex-M33 or later.",
            "set(CMAKE_SYSTEM_NAME Generic)",
            "set(CMAKE_SYSTEM_PROCESSOR arm)",
            "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)",
            "set(CMAKE_C_COMPILER arm-none-eabi-gcc)",
            f'set(CMAKE_C_FLAGS_INIT "{" ".join(GCC_CPU)}")',
            f'set(CMAKE_EXE_LINKER_FLAGS_INIT "{" ".join(GCC_LINK)}")',
            f'set(CMAKE_C_STANDARD_LIBRARIES_INIT "{" ".join(GCC_LIBRARIES)}")',
            "",
        ]
    )
