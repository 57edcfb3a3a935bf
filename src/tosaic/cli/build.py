"""`tosaic build`: from a .pte to the firmware of a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.run import Data, File, open_bundle, read_beside, read_data, read_program
from tosaic.cli.size import MaxMemory
from tosaic.core.errors import Invalid
from tosaic.core.output import find_target, write_files


@guarded
def build_firmware(
    file: File,
    board: Annotated[
        str,
        typer.Option(
            "--board", metavar="NAME", help="corstone-300, corstone-320, or the folder of a board.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.elf", help="The ELF file to write.")
    ] = None,
    c_project: Annotated[
        Path | None, typer.Option("--c-project", metavar="DIR", help="Write a CMake project instead of an ELF file.")
    ] = None,
    c_array: Annotated[
        bool, typer.Option("--c-array", help="Write only the model as a C array, with a header, next to the output.")
    ] = False,
    select_ops: Annotated[
        str | None,
        typer.Option(
            "--select-ops",
            metavar="LIST",
            envvar="EXECUTORCH_SELECT_OPS_LIST",
            help="The CPU kernels to include, separated by commas. Default: those that the method calls.",
        ),
    ] = None,
    with_samples: Annotated[
        bool, typer.Option("--with-samples", help="Include the samples of the .tosaic file: the firmware tests itself.")
    ] = False,
    memory_mode: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Sram_Only, Shared_Sram or Dedicated_Sram. Default: that of the .pte if it fits."
        ),
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="The method to run.")] = "forward",
    data_files: Data = None,
    toolchain: Annotated[
        str, typer.Option("--toolchain", metavar="NAME", help="auto, zig or gcc (arm-none-eabi-gcc).")
    ] = "auto",
    max_memory: MaxMemory = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build the firmware that runs a .pte on a board: an ELF file, a CMake project or a C array.

    It needs the compiler of the extra `board` (`pip install 'tosaic[board]'`) or arm-none-eabi-gcc, but not for a CMake
    project or a C array. `tosaic run NAME.elf` runs the firmware on a virtual board.
    With --with-samples it prints `Test_result: PASS` or `FAIL`, and `tosaic run` returns 0 or 1.
    """
    from tosaic.board import build
    from tosaic.board import c_project as project
    from tosaic.engines.board_samples import make_samples
    from tosaic.report.firmware import describe_firmware, firmware_to_json

    if sum((output is not None and not c_array, c_project is not None, c_array)) > 1:
        raise Invalid("`-o`, `--c-project` and `--c-array` exclude each other", fix="choose one of them")
    path = output or Path(file.stem).with_suffix(".elf")
    find_target(path)
    data, _ = open_bundle(read_program(file, max_memory), max_memory)
    files = read_data(file, data, data_files, max_memory)
    samples, tolerance = make_samples(data, read_beside(file, max_memory), method, files) if with_samples else ([], 0.0)
    made = build.design(
        data,
        board,
        memory_mode=memory_mode,
        method=method,
        operators=None if select_ops is None else [name.strip() for name in select_ops.split(",") if name.strip()],
        samples=samples,
        atol=tolerance,
        data=files,
    )
    if c_project is not None:
        written = {c_project / name: content for name, content in project.make_c_project(made).items()}
    elif c_array:
        written = {path.with_name(name): content for name, content in project.make_c_array(made).items()}
    else:
        written = {path: build.compile_design(made, toolchain)}
    write_files(written)
    if as_json:
        print_json(firmware_to_json(made, written))
    else:
        typer.echo(describe_firmware(made, written))
