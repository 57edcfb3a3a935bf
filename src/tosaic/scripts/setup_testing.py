"""The script that prepares the tests of boards: installs with pip what they lack, and tries it out.

python -m tosaic.scripts.setup_testing
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tosaic.doctor import BOARD, TESTS
from tosaic.scripts.entry import Parser, call_each, script


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Install what the tests of boards need."""
    parser = Parser("setup_testing", "Install what the tests of boards need. Shows the commands and asks first.")
    parser.add_yes()
    options = parser.parse_args(arguments)
    return call_each(*(["doctor", "--fix", name, *(["--yes"] if options.yes else [])] for name in (TESTS, BOARD)))


if __name__ == "__main__":
    sys.exit(main())
