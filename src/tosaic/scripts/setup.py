"""The setup script of the ExecuTorch tutorials: installs with pip what a target lacks, and tries it out.

python -m tosaic.scripts.setup --i-agree-to-the-contained-eula --enable-mlsdk-deps
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tosaic.core.errors import Invalid
from tosaic.doctor import BOARD, TESTS, VGF
from tosaic.scripts.entry import Parser, call_each, script


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Install the cross compiler and the virtual board for an Ethos-U, or what the options ask for."""
    parser = Parser("setup", "Install what a target needs. Shows the commands and asks first.")
    parser.add_argument(
        "--i-agree-to-the-contained-eula", action="store_true", help="accepted for old scripts: nothing here has a EULA"
    )
    parser.add_argument("--disable-ethos-u-deps", action="store_true", help="nothing for an Ethos-U")
    parser.add_argument("--enable-mlsdk-deps", action="store_true", help="the ML SDK and a Vulkan driver, for VGF")
    parser.add_argument("--setup-test-dependency", action="store_true", help="the packages of the tests, nothing else")
    parser.add_yes()
    options = parser.parse_args(arguments)
    wanted = [TESTS] if options.setup_test_dependency else []
    if not wanted:
        wanted += [] if options.disable_ethos_u_deps else [BOARD]
        wanted += [VGF] if options.enable_mlsdk_deps else []
    if not wanted:
        raise Invalid(
            "nothing is left to set up with `--disable-ethos-u-deps` alone", fix="add `--enable-mlsdk-deps` for VGF"
        )
    return call_each(*(["doctor", "--fix", name, *(["--yes"] if options.yes else [])] for name in wanted))


if __name__ == "__main__":
    sys.exit(main())
