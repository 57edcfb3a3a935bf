"""The script that builds the firmware with a .pte in it.

python -m tosaic.scripts.build_executor_runner --pte=mv2_arm_ethos_u55.pte --target=ethos-u55-128
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tosaic.scripts.entry import TARGET, Parser, call_tosaic, script

#: The name of the ELF file, and of the folder that it is in.
ELF, FOLDER = "arm_executor_runner", "cmake-out"


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Build the firmware: NAME/cmake-out/arm_executor_runner for NAME.pte."""
    parser = Parser("build_executor_runner", "Build the firmware of Corstone-300 or Corstone-320 with a .pte in it.")
    parser.add_argument("--pte", type=Path, required=True, help="the compiled model")
    parser.add_argument("--target", default=TARGET, help="the NPU of the board; default: %(default)s")
    parser.add_argument(
        "--portable_kernels", help="the CPU kernels to include, separated by commas; default: those that it calls"
    )
    parser.add_argument("--memory_mode", help="Sram_Only, Shared_Sram or Dedicated_Sram; default: that of the .pte")
    parser.add_argument("--toolchain", help="zig or gcc; default: the first that is installed")
    parser.add_root()
    options = parser.parse_args(arguments)
    elf = options.root / options.pte.stem / FOLDER / ELF
    return build(options.pte, options.target, elf, options.portable_kernels, options.memory_mode, options.toolchain)


def build(
    pte: Path,
    target: str,
    elf: Path,
    portable_kernels: str | None = None,
    memory_mode: str | None = None,
    toolchain: str | None = None,
) -> int:
    """Build the firmware for the board with a target."""
    from tosaic.core import input_file
    from tosaic.engines.board import match_board
    from tosaic.formats.pte import read

    board = match_board(read(bytes(input_file.read(pte)[0])), target)
    options = ["--board", board.name, "-o", str(elf)]
    options += [] if portable_kernels is None else ["--select-ops", portable_kernels]
    options += [] if memory_mode is None else ["--memory-mode", memory_mode]
    options += [] if toolchain is None else ["--toolchain", toolchain]
    return call_tosaic("build", pte, *options)


if __name__ == "__main__":
    sys.exit(main())
