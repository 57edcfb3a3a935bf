"""Private names of other packages are imported by one module per package, which says for which releases they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src" / "tosaic"
#: the only modules that may import private names, by package
HOMES = {
    "torch": {"fx/torch_compat.py", "api/model_program.py"},
    "executorch": {"core/exir_compat.py"},
    "torchao": set[str](),
}


def list_private(tree: ast.Module) -> Iterator[str]:
    """The names of HOMES' packages that a module imports and that have a private part."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, *parts = name.split(".")
            if package in HOMES and any(part.startswith("_") for part in parts):
                yield name


def find_strays(text: str, place: str) -> list[str]:
    return [name for name in list_private(ast.parse(text)) if place not in HOMES[name.split(".")[0]]]


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCES)))
def test_private_names_have_one_home(path: Path) -> None:
    assert not find_strays(path.read_text(encoding="utf-8"), str(path.relative_to(SOURCES)))


def test_a_stray_is_found() -> None:
    text = "import torch.utils._pytree as p\nfrom torch._ops import OpOverload\nfrom executorch.exir import _warnings\n"
    assert find_strays(text, "lower/walk.py") == [
        "torch.utils._pytree",
        "torch._ops.OpOverload",
        "executorch.exir._warnings",
    ]
