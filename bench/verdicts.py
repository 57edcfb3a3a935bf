"""What was promised, and whether it was kept: bench/results/goals.json, with a list of goals per part of the bench."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parent.parent / "docs" / "bench"
RESULTS = Path(__file__).resolve().parent / "results"


def save(part: str, goals: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write the goals of one part; those of a trial, whose pages are elsewhere, are written next to its pages."""
    path = (RESULTS if out.resolve() == PAGES else out) / "goals.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | {part: list(goals)}, indent=1) + "\n")
