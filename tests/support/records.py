"""Operator records with changes, for tests that plant a mistake or leave out a check."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tosaic.lower.registry import Record, Registry
from tosaic.ops import registry


def change_record(patch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """Let the registry find a changed copy of a record until the patch is undone."""
    record = registry().records[name]
    changed = dataclasses.replace(record, **changes)
    original = Registry.find

    def find(self: Registry, overload: str) -> Record | None:
        found = original(self, overload)
        return changed if found is record else found

    patch.setattr(Registry, "find", find)
