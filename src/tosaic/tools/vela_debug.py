"""Vela's debug database: its tables, and a canonical form that depends on the graph alone."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Columns with numbers from one counter that Vela never resets, so they grow from compile to compile.
_COUNTED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "group": ("id", "group_id"),
        "perf": ("id",),
        "perf_debug": ("id",),
        "perf_debug_conn": ("id", "input_op_id"),
        "perf_debug_main": ("id",),
        "perf_debug_wd": ("id",),
        "queue": ("scheduled_id",),
        "tensors": ("id",),
    }
)
#: Tables that Vela sorts by one column and fills in the order of heap addresses, with the columns that decide.
_SORTED: Mapping[str, tuple[str, ...]] = MappingProxyType({"tensors": ("start_time", "id")})
#: The last column before those per memory, which Vela writes in the order of heap addresses.
_LAST_FIXED: Mapping[str, str] = MappingProxyType({"perf": "mac_count", "perf_debug": "kernel_stride_z"})
_TABLE = re.compile(r'<table name="(\w+)">\n<!\[CDATA\[\n(.*?)\]\]>\n</table>', re.DOTALL)
#: a number, as short as a file offset is; Python refuses to parse very long ones
_NUMBER = re.compile(r"0|[1-9]\d{0,17}|0x[0-9a-f]{1,16}", re.ASCII)
#: Vela names an unnamed tensor by its number.
_UNNAMED = re.compile(r"^#(\d+)")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the database; every cell is text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def read_tables(xml: str) -> dict[str, Table]:
    """Read the tables of a debug database by name; a damaged table is left out."""
    tables: dict[str, Table] = {}
    for match in _TABLE.finditer(xml):
        try:
            rows = [tuple(row) for row in csv.reader(match[2].splitlines())]
        except csv.Error:
            continue
        if rows:
            tables[match[1]] = Table(rows[0], tuple(rows[1:]))
    return tables


def list_rows(tables: Mapping[str, Table], name: str) -> Iterator[dict[str, str]]:
    """List the rows of a table by column; none if the database lacks it."""
    table = tables.get(name, Table((), ()))
    return (dict(zip(table.columns, row, strict=False)) for row in table.rows)


def parse_number(text: str) -> int:
    """Parse a number of the database, -1 where there is none."""
    return int(text, 0) if _NUMBER.fullmatch(text) else -1


def write_tables(tables: Mapping[str, Table]) -> str:
    """Return the text of a debug database, in Vela's own layout but without the path of its source."""
    parts = ["<?xml version='1.0' encoding='UTF-8'?>\n<debug>\n"]
    for name, table in tables.items():
        lines = "".join(_write_row(row) for row in table.rows)
        header = ",".join(f'"{column}"' for column in table.columns)
        parts.append(f'<table name="{name}">\n<![CDATA[\n{header}\n{lines}]]>\n</table>\n')
    return "".join([*parts, "</debug>\n"])


def _write_row(row: tuple[str, ...]) -> str:
    return ",".join(cell if cell.isnumeric() else f'"{cell}"' for cell in row) + "\n"


def canonicalize(xml: str) -> str:
    """Canonicalize a database: columns and rows in fixed order, counters replaced by their rank."""
    tables = {name: _order_rows(name, _order_columns(name, table)) for name, table in read_tables(xml).items()}
    numbers = sorted({int(number) for name, table in tables.items() for number in _find_numbers(name, table)})
    ranks = {str(number): str(rank) for rank, number in enumerate(numbers)}
    return write_tables({name: _renumber(name, table, ranks) for name, table in tables.items()})


def _order_columns(name: str, table: Table) -> Table:
    if name not in _LAST_FIXED or _LAST_FIXED[name] not in table.columns:
        return table
    fixed = table.columns.index(_LAST_FIXED[name]) + 1
    order = [*range(fixed), *sorted(range(fixed, len(table.columns)), key=lambda column: table.columns[column])]
    return Table(
        tuple(table.columns[column] for column in order),
        tuple(tuple(row[column] for column in order) for row in table.rows),
    )


def _order_rows(name: str, table: Table) -> Table:
    keys = [table.columns.index(column) for column in _SORTED.get(name, ()) if column in table.columns]
    return Table(table.columns, tuple(sorted(table.rows, key=lambda row: [parse_number(row[key]) for key in keys])))


def _find_counter_columns(name: str, table: Table) -> list[int]:
    return [table.columns.index(column) for column in _COUNTED.get(name, ()) if column in table.columns]


def _find_numbers(name: str, table: Table) -> Iterator[str]:
    counted = _find_counter_columns(name, table)
    names = [table.columns.index("name")] if "name" in table.columns else []
    for row in table.rows:
        yield from (row[column] for column in counted if row[column].isdecimal())
        yield from (match[1] for column in names if (match := _UNNAMED.match(row[column])))


def _renumber(name: str, table: Table, ranks: Mapping[str, str]) -> Table:
    counted = _find_counter_columns(name, table)
    names = [table.columns.index("name")] if "name" in table.columns else []
    rows: list[tuple[str, ...]] = []
    for row in table.rows:
        cells = list(row)
        for column in counted:
            cells[column] = ranks.get(cells[column], cells[column])
        for column in names:
            cells[column] = _UNNAMED.sub(lambda match: f"#{ranks[match[1]]}", cells[column])
        rows.append(tuple(cells))
    return Table(table.columns, tuple(rows))
