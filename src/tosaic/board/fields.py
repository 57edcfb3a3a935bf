"""Makes the firmware's header with the field numbers of .pte and .ptd files, from the tables of the Python readers.

`python -m tosaic.board.fields > src/tosaic/board/firmware/fields.h` writes it.
"""

from __future__ import annotations

import re
import sys

from tosaic.formats.pte_schema import DATA_FIELDS, FIELDS, UNIONS

_INTRODUCTION = """\
/* The field numbers of .pte and .ptd files, from ExecuTorch's schemas. Generated: `python -m tosaic.board.fields`. */
#ifndef TOSAIC_FIELDS_H
#define TOSAIC_FIELDS_H
"""


def make_header() -> str:
    """Return the header: an enumeration for each table and each union of the schema."""
    parts = [_INTRODUCTION]
    for table, fields in {**FIELDS, **DATA_FIELDS}.items():
        parts.append(_make_enum(table, dict(zip(fields, range(len(fields)), strict=True))))
    for union, members in UNIONS.items():
        parts.append(_make_enum(union, {member: number for number, member in enumerate(members, 1)}))
    parts.append(_make_enum("DataLocation", {"Inline": 0, "Segment": 1}))
    parts.append("#endif\n")
    return "\n".join(parts)


def _make_enum(name: str, rows: dict[str, int]) -> str:
    prefix = _to_upper(name)
    lines = [f"    {prefix}_{_to_upper(row)} = {number}," for row, number in rows.items()]
    return "\n".join(["enum {", *lines, "};", ""])


def _to_upper(name: str) -> str:
    """Convert `KernelCall` and `kernel_call` to `KERNEL_CALL`, and `EValue` to `EVALUE`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


if __name__ == "__main__":
    sys.stdout.write(make_header())
