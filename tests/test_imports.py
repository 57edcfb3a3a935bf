"""Who may import whom, and what stays cheap to import."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MODULES = sorted((SRC / "tosaic").rglob("*.py"))

# A package on the left imports nothing that starts with a name on the right. Records stay free of backends, so that
# the quantizer, the documentation and every target can read them.
RULES = {
    "tosaic": ["executorch.backends.arm"],
    "tosaic.ops": ["tosaic.ethosu", "tosaic.vgf", "tosaic.tools", "tosaic.api.build", "tosaic.cli", "tosaic.engines"],
}


def _module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read_imports(path: Path) -> list[tuple[int, str]]:
    """Every (line, dotted name) that a file imports, at the top or inside a function, by statement or by string."""
    name = _module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        match node:
            case ast.Import(names=names):
                found += [(node.lineno, alias.name) for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                base = importlib.util.resolve_name("." * level + (module or ""), package) if level else module or ""
                found += [(node.lineno, f"{base}.{alias.name}") for alias in names]
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                found.append((node.lineno, target))
            case _:
                pass
    return found


def _is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("package", RULES)
def test_forbidden_imports(package: str) -> None:
    broken = [
        f"{path.relative_to(SRC)}:{line} imports {name}"
        for path in MODULES
        if _is_inside(_module_name(path), package)
        for line, name in _read_imports(path)
        if any(_is_inside(name, banned) for banned in RULES[package])
    ]
    assert not broken, "\n".join(broken)


def test_import_reader_sees_every_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tosaic" / "ops" / "conv.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import tosaic.api.build\n"
        "def f():\n    from tosaic import cli\n"
        "from ..runtime import pte\n"
        "import importlib\nimportlib.import_module('tosaic.vgf')\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "SRC", tmp_path)
    names = {name for _, name in _read_imports(path)}
    assert names == {"tosaic.api.build", "tosaic.cli", "tosaic.formats.pte", "importlib", "tosaic.vgf"}


_PROBE = """
import json, sys
sys.argv[1:] = {arguments!r}
code = 0
try:
    import tosaic
    if sys.argv[1:]:
        from tosaic.cli import main
        code = main() or 0
except SystemExit as stop:
    code = stop.code or 0
heavy = sorted({{"torch", "executorch", "torchao", "torchvision"}} & set(sys.modules))
print(json.dumps([code, heavy]), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [[], ["--help"], ["ops"], ["targets"]], ids=lambda a: " ".join(a) or "import")
def test_stays_light(arguments: list[str]) -> None:
    probe = _PROBE.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    code, heavy = json.loads(done.stderr.strip().splitlines()[-1])
    assert code == 0, done.stderr
    assert heavy == []
