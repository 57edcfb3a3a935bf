"""Quantizer and lowering read what they need to know of an operator from its record, never from its name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tosaic
from tosaic.core.targets import ACCELERATORS, VGF
from tosaic.ops import registry

ROOT = Path(tosaic.__file__).parent
MODULES = [path for package in ("quantization", "lower") for path in sorted((ROOT / package).glob("*.py"))]
RECORDS = registry().records.values()
#: an argument and a rounding mode have these names, too
ARGUMENTS = {"pad", "floor"}
FAMILIES = {target.family for target in (*ACCELERATORS.values(), VGF)}


def list_strings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("path", MODULES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_no_operator_or_family_is_named(path: Path) -> None:
    names = {record.name for record in RECORDS} | {record.family for record in RECORDS}
    names |= {overload for record in RECORDS for overload in record.overloads}
    assert [(line, text) for line, text in list_strings(path) if text in names - ARGUMENTS] == []


def test_no_target_family_is_named_in_records_and_lowering() -> None:
    for path in (*MODULES, *sorted((ROOT / "ops").glob("*.py"))):
        assert [(path.name, line) for line, text in list_strings(path) if text in FAMILIES] == []


def test_record_files_do_not_import_each_other() -> None:
    for path in sorted((ROOT / "ops").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert path.name == "__init__.py" or "tosaic.ops" not in text, path.name
