"""The script that builds the static libraries for an application of one's own: runtime, kernels, Ethos-U driver.

python -m tosaic.scripts.build_executorch
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import environ

from tosaic.core.errors import ExitStatus
from tosaic.core.output import write_files
from tosaic.scripts.entry import Parser, script


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Build the libraries and print their paths."""
    from tosaic.board.libraries import make_libraries
    from tosaic.board.toolchain import AUTO

    parser = Parser("build_executorch", "Build the runtime as static libraries, in arm_test/cmake-out.")
    parser.add_argument(
        "--portable_kernels",
        default=environ.get("EXECUTORCH_SELECT_OPS_LIST"),
        help="the CPU kernels to include, separated by commas; default: EXECUTORCH_SELECT_OPS_LIST, or all",
    )
    parser.add_argument("--toolchain", default=AUTO, help="zig or gcc; default: the first that is installed")
    parser.add_root()
    options = parser.parse_args(arguments)
    given: str | None = options.portable_kernels
    operators = None if given is None else [name.strip() for name in given.split(",") if name.strip()]
    folder = options.root / "arm_test" / "cmake-out"
    files = {folder / name: data for name, data in make_libraries(operators, options.toolchain).items()}
    write_files(files)
    sys.stdout.write("".join(f"{path}\n" for path in files))
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
