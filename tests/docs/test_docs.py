"""The documentation is true: its code runs, its outputs are the real ones, its links lead somewhere."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from support import pages

PAGES = {page.relative_to(pages.ROOT).as_posix(): page for page in pages.list_pages()}
#: further pages for readers, with nothing to run
TEXTS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "ROADMAP.md", "THIRD_PARTY.md")

#: how pages of the site name files of this repository that are outside `docs`
FILES = "https://github.com/tosaic/tosaic/blob/main/"
PICTURES = "https://raw.githubusercontent.com/tosaic/tosaic/main/"


def list_runs() -> list[object]:
    """The pages with code, and once more those with slow blocks. A page may say that it needs a package."""
    cases = []
    for name, page in PAGES.items():
        text = page.read_text(encoding="utf-8")
        conditions = pages.read_conditions(text)
        needed = conditions.get("needs", "")
        missing = needed and importlib.util.find_spec(needed) is None
        marks = [pytest.mark.skip(reason=f"`{name}` needs the package `{needed}`")] if missing else []
        blocks = [block for block in pages.read_blocks(text) if block.language in pages.RUN]
        if blocks and "slow" not in conditions:
            cases.append(pytest.param(page, False, id=name, marks=marks))
        if "slow" in conditions or any(block.is_slow for block in blocks):
            cases.append(pytest.param(page, True, id=f"{name}-slow", marks=[*marks, pytest.mark.slow]))
    return cases


@pytest.mark.parametrize(("page", "slow"), list_runs())
def test_code_runs_and_prints_what_the_page_shows(page: Path, slow: bool, tmp_path: Path) -> None:
    problems = []
    with torch.random.fork_rng():
        for result in pages.run_page(page, tmp_path, slow=slow):
            if result.shown is not None:
                problem = pages.compare(result.shown.text, result.output)
                problems += [f"{page.name}:{result.shown.start + 1}: {problem}"] if problem else []
            elif result.output:
                problems.append(f"{page.name}:{result.block.start + 1}: prints what the page does not show")
    assert problems == [], f"`python tests/support/pages.py {page}` writes the real output into the page"


@pytest.mark.parametrize("name", PAGES)
def test_nothing_escapes_the_tests(name: str) -> None:
    """Every block says what it is, and only commands for setting up are not run."""
    for block in pages.read_blocks(PAGES[name].read_text(encoding="utf-8")):
        assert block.language in (*pages.RUN, *pages.SHOWN), f"```{block.language} at line {block.start}"
        assert block.flags == "" or (block.is_slow and block.language in pages.RUN), block.flags
        if block.language == "console":
            assert all(line.startswith(pages.SETUP) for line in block.lines), block.text


@pytest.mark.parametrize("name", [*PAGES, *TEXTS])
def test_links_and_places(name: str) -> None:
    page = pages.ROOT / name
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if link.startswith((FILES, PICTURES)):
            assert (pages.ROOT / link.removeprefix(FILES).removeprefix(PICTURES)).exists(), link
        elif not link.startswith(("http://", "https://")):
            assert name != "README.md", f"{link}: the package index shows this page, too"
            assert (page.parent / link).exists(), link
    assert str(pages.ROOT) not in text
    assert not re.search(r"(^|[\s`\"'(])/(home|root|tmp|work|usr|var)/", text), "a path of one machine"


def test_comparison() -> None:
    assert pages.compare("a 100 b\ntime 1 s", "a 100.5 b\ntime 9 s\n") == ""
    assert pages.compare("first\n...\nlast", "first\nx\ny\nlast") == ""
    assert pages.compare("first\n...", "first\nx") == ""
    assert "`a 110 b`" in pages.compare("a 110 b", "a 100 b")
    assert "does not show `b`" in pages.compare("a", "a\nb")
    assert pages.compare("a\nc", "a\nb\nc")


def load_generator(name: str = "generate") -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", pages.ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_operators_page_is_the_generated_one() -> None:
    generate = load_generator()
    assert generate.OPERATORS.read_text(encoding="utf-8") == generate.write_operators(), "run docs/generate.py"


def test_reference_pages_are_the_generated_ones() -> None:
    for page, text in load_generator("reference").list_pages().items():
        assert page.read_text(encoding="utf-8") == text, "run docs/reference.py"


def test_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=pages.ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\">\s]*)", text)
        assert loaded == [], page


def test_figures_of_the_readme_are_those_of_the_bench() -> None:
    bench = pages.ROOT / "docs" / "bench"
    compared = json.loads((bench / "results.json").read_text())
    means = {(m["figure"], m["target"]): m for m in compared["means"] if m["column"] == "front"}
    rows = [row for study in json.loads((bench / "accuracy.json").read_text())["studies"] for row in study["rows"]]
    targets = ("ethos-u55-128", "ethos-u85-256")
    shown = {
        "CPU seconds from the model to the `.pte`": [f"{means['module_to_pte', t]['mean']:.2f}" for t in targets],
        "NPU cycles, Vela's estimate": [f"{means['cycles', t]['mean']:.2f}" for t in targets],
        "numbers that differ from the TOSA reference model": [
            str(sum(row["file"]["checked_wrong"] for row in rows if (row["side"], row["target"]) == ("ours", t)))
            for t in targets
        ],
    }
    readme = (pages.ROOT / "README.md").read_text(encoding="utf-8")
    for title, figures in shown.items():
        assert f"| {title} | {' | '.join(figures)} |" in readme
    first, second = (len(means["cycles", target]["models"]) for target in targets)
    assert (
        f"over {len(means['module_to_pte', targets[0]]['models'])} models (cycles: the {first} and {second} " in readme
    )


@pytest.mark.slow
def test_picture_of_the_readme_shows_what_the_commands_print() -> None:
    picture = load_generator("picture")
    texts = re.findall(r"<text [^>]*>(.*?)</text>", picture.PICTURE.read_text(encoding="utf-8"))
    assert pages.compare("\n".join(map(html.unescape, texts)), "\n".join(picture.run())) == "", "run docs/picture.py"


@pytest.mark.slow
def test_memory_table_is_the_measured_one() -> None:
    generate = load_generator()
    page = generate.MEMORY.read_text(encoding="utf-8")
    shown = page.partition(generate.BEGIN)[2].partition(generate.END)[0]
    assert pages.compare(shown.strip(), generate.write_memory()) == "", "run docs/generate.py --measure"
