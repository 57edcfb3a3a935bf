"""The installation script of ExecuTorch. pip installs Tosaic with all it needs; this checks that it works.

python -m tosaic.scripts.install_executorch --editable
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tosaic.scripts.entry import Parser, call_tosaic, find_checkout, script


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Check the installation."""
    parser = Parser("install_executorch", "Check the installation, which pip has made.")
    parser.add_argument("--editable", action="store_true", help="check that it is an editable one too")
    if parser.parse_args(arguments).editable:
        sys.stderr.write(f"installed from `{find_checkout()}`\n")
    return call_tosaic("doctor")


if __name__ == "__main__":
    sys.exit(main())
