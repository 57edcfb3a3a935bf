"""The script that runs a firmware: in Arm's FVP if that is on PATH, else on the virtual board.

python -m tosaic.scripts.run_fvp --elf=mv2_arm_ethos_u55/cmake-out/arm_executor_runner --target=ethos-u55-128
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tosaic.core.errors import Invalid
from tosaic.scripts.entry import TARGET, Parser, call_tosaic, script


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a firmware and print its log; return 1 if a test in it fails."""
    from tosaic.board.options import RUNNERS

    parser = Parser("run_fvp", "Run a firmware in Arm's FVP if that is on PATH, else on the virtual board.")
    parser.add_argument("--elf", type=Path, required=True, help="the firmware that build_executor_runner has built")
    parser.add_argument("--target", default=TARGET, help="the NPU of the board; default: %(default)s")
    parser.add_argument(
        "--runner", choices=RUNNERS, help="where to run it; default: fvp if that is on PATH, or virtual"
    )
    options = parser.parse_args(arguments)
    return run(options.elf, options.target, options.runner)


def run(elf: Path, target: str, runner: str | None = None) -> int:
    """Run a firmware on the board with a target."""
    from tosaic.board.fvp import find_program
    from tosaic.board.options import FVP, VIRTUAL
    from tosaic.core import input_file
    from tosaic.engines.board import extract_model, is_elf, match_board
    from tosaic.formats.external import read

    data = bytes(input_file.read(elf)[0])
    if not is_elf(data):
        raise Invalid(f"`{elf}` is not an ELF file", fix="build one with `build_executor_runner --pte=FILE.pte`")
    board = match_board(read(*extract_model(data)), target)
    chosen = runner or (FVP if find_program(board, target.lower()) else VIRTUAL)
    return call_tosaic("run", elf, "--engine", "board", "--board", board.name, "--runner", chosen)


if __name__ == "__main__":
    sys.exit(main())
