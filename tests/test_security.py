"""SECURITY.md: every claim names the tests that hold it, and they exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tosaic.core.budget import DEFAULT, Budget
from tosaic.core.errors import Invalid

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
#: asks, and promises nothing that a test could hold
WITHOUT_CLAIMS = "How to report"
#: how paragraphs begin that introduce, ask or limit a claim
NO_CLAIM = re.compile("Files that you|Every row|A crash|The budget does not")
NETWORK = {"socket", "ssl", "urllib", "http", "ftplib", "smtplib", "requests", "asyncio", "xmlrpc", "webbrowser"}


def _list_claims() -> list[str]:
    """The rows of the table, and the paragraphs of the sections that claim something."""
    claims: list[str] = []
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        if title != WITHOUT_CLAIMS:
            claims += [row for row in body.splitlines() if row.startswith("| ") and not row.startswith("| Files")]
            claims += [part.strip() for part in body.split("\n\n") if not part.strip().startswith("|")]
    return [claim for claim in claims if claim and not NO_CLAIM.match(claim)]


@cache
def _list_tests(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("claim", _list_claims(), ids=lambda claim: re.sub(r"\W+", " ", claim)[:60].strip())
def test_every_claim_has_a_test(claim: str) -> None:
    named = TEST.findall(claim)
    assert named, f"no test holds: {claim}"
    for file, name in named:
        assert (ROOT / file).is_file() and name in _list_tests(file), f"there is no {file}::{name}"


def test_the_table_covers_every_kind_of_file() -> None:
    kinds = set(
        re.findall(r"\.[a-z0-9]+", " ".join(claim.split("|")[1] for claim in _list_claims() if claim[0] == "|"))
    )
    assert kinds >= {".py", ".pt2", ".pt", ".npy", ".npz", ".bin", ".raw", ".pte", ".tosaic", ".tosa", ".vgf", ".ini"}
    assert len(_list_claims()) >= 15


def test_the_default_budget() -> None:
    assert DEFAULT == 1 << 30
    budget = Budget(5000)
    budget.take(5000 + (1 << 30), "everything")
    with pytest.raises(Invalid, match="needs 1 bytes"):
        budget.take(1, "one more")


def test_nothing_imports_network_modules() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & NETWORK, path
