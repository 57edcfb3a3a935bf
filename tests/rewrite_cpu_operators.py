"""Rewrites the list of operators that samples leave on the CPU: run it after a new record."""

import sys

from support.cpu_operators import PATH, find_operators, write_list
from tosaic.ops import registry


def main() -> int:
    PATH.write_text(write_list(find_operators(registry().records)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
