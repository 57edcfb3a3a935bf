"""Memory sizes as a user types them."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from tosaic.core.errors import Invalid

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = ("", "K", "M", "G", "T")


def parse_size(text: str) -> int:
    """Return the bytes that `2G`, `512M` or `1000000` stand for."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise Invalid(f"`{text}` is not a size", fix="use a number of bytes, or a number with K, M, G or T: 512K, 2G")
    return int(float(found[1]) * 1024 ** _UNITS.index(found[2].upper()))


MaxMemory = Annotated[
    int | None,
    typer.Option(
        "--max-memory",
        parser=parse_size,
        metavar="SIZE",
        show_default=False,
        help="Memory limit per file, e.g. 4G. Default: file size + 1 GiB.",
    ),
]
