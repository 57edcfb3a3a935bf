"""The layers that packages keep, also where a module is named by a string, and what stays cheap to import.

import-linter holds import statements to the contract in pyproject.toml; this file holds strings to the same contract.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
MODULES = sorted((SRC / "tosaic").rglob("*.py"))
#: The only places that name a module by a string: the lazy top level, and whoever starts or finds a module of its own.
BY_STRING = {
    "tosaic",
    "tosaic.cli.group",
    "tosaic.engines.executorch",
    "tosaic.engines.shim",
    "tosaic.engines.vulkan",
    "tosaic.engines.vulkan_child",
    "tosaic.engines.vulkan_device",
    "tosaic.npu.weights",
    "tosaic.tools.vela",
}


def _read_contract() -> list[set[str]]:
    """The layers of the contract, the highest first."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    return [set(layer.split(" : ")) for layer in contract["layers"]]


def _module_name(path: Path, root: Path = SRC) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {_module_name(path) for path in MODULES}
RANK = {package: rank for rank, layer in enumerate(_read_contract()) for package in layer}


def _read_strings(text: str) -> Iterator[tuple[int, str]]:
    """Every (line, module) that is named by a string."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if name in NAMES and name != "tosaic":
                yield node.lineno, name


def _find_broken(module: str, text: str) -> list[str]:
    """What is wrong with the modules that a file names by strings."""
    broken = []
    for line, name in _read_strings(text):
        if module not in BY_STRING:
            broken.append(f"{module}:{line} names `{name}` by a string; import it")
        elif module != "tosaic" and RANK[name.split(".")[1]] < RANK[module.split(".")[1]]:
            broken.append(f"{module}:{line} names `{name}`, which is in a layer above")
    return broken


def test_strings_keep_the_layers() -> None:
    broken = [line for path in MODULES for line in _find_broken(_module_name(path), path.read_text(encoding="utf-8"))]
    assert not broken, "\n".join(broken)


def test_a_string_into_a_higher_layer_is_found() -> None:
    text = "import importlib\nimportlib.import_module('tosaic.api.build')\n"
    assert _find_broken("tosaic.tools.vela", text) == [
        "tosaic.tools.vela:2 names `tosaic.api.build`, which is in a layer above"
    ]
    assert _find_broken("tosaic.ops.conv", text) == [
        "tosaic.ops.conv:2 names `tosaic.api.build` by a string; import it"
    ]
    assert _find_broken("tosaic.api.program", "Worker('tosaic.tools.vela_child')\n") != []


def _lint(root: Path) -> subprocess.CompletedProcess[str]:

    code = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": ""},
    )


def test_import_statements_keep_the_layers() -> None:
    done = _lint(SRC)
    assert done.returncode == 0, done.stdout


def test_an_import_from_a_higher_layer_fails(tmp_path: Path) -> None:
    for path in MODULES:
        copy = tmp_path / path.relative_to(SRC)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    wrong = tmp_path / "tosaic" / "core" / "errors.py"
    wrong.write_text(wrong.read_text() + "\n\ndef late() -> None:\n    from tosaic.driver import partition\n")
    done = _lint(tmp_path)
    assert done.returncode == 1
    assert "tosaic.core.errors -> tosaic.driver.partition" in done.stdout


def test_the_peer_is_never_imported() -> None:
    peer = re.compile(r"^\s*(from|import) +executorch\.backends\.arm\b|[\"']executorch\.backends\.arm", re.MULTILINE)
    assert [path for path in MODULES if peer.search(path.read_text(encoding="utf-8"))] == []


def test_no_module_hides_a_public_function() -> None:
    import tosaic

    assert {name.split(".")[1] for name in NAMES if "." in name} & set(tosaic.__all__) == set()


def test_the_diagram_shows_the_contract() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## The layers")[2].partition("\n## ")[0]
    shown = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines() if row.startswith("| `")]
    assert shown == _read_contract()


def find_stale(table: str) -> list[str]:
    """Find the files and names in backticks that the packages do not have: a class, or a member of a class."""
    stale: list[str] = []
    for text in re.findall(r"`([^`]+)`", table):
        if text.endswith(".py") and not (ROOT / "src" / "tosaic" / text).is_file():
            stale.append(text)
        owner, _, member = text.partition(".")
        if re.fullmatch(r"[A-Z]\w+", owner) and re.fullmatch(r"\w*", member):
            texts = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
            parts = [part for one in texts for part in re.split(r"^(?=class |[A-Z])", one, flags=re.M)]
            own = [part for part in parts if re.match(rf"(class )?{owner}\b", part)]
            if not any(re.search(rf"\b{member}\b", part) for part in own):
                stale.append(text)
    return stale


def test_the_glossary_names_what_exists() -> None:
    glossary = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Glossary")[2]
    assert len(re.findall(r"`\w+/\w+\.py`", glossary)) > 30
    assert find_stale(glossary) == []
    old = "`lower/tensor.py` `Reason.border` `Stored.lut` `lower/gone.py` `Gone` `QDQ` `Record.overloads`"
    assert find_stale(old) == ["Reason.border", "lower/gone.py", "Gone"]


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


def test_running_a_program_needs_no_exir() -> None:
    """Importing exir takes longer than most programs run."""
    code = "import sys, tosaic.api.verification, tosaic.engines.engine; print('executorch.exir' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
