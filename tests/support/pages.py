"""Runs the code on the pages of the documentation, and compares what it prints with what the page shows.

    python tests/support/pages.py docs/first-hour.md    writes the real output into a page

```python    runs; all such blocks of a page share one namespace, and a first line `# name.py` also makes it that file
```bash      runs, with `tosaic` and `python` of this environment; ```bash slow only in the slow tests
```text      right after one of these: what it prints; a line `...` stands for any lines
```console   commands for setting up, which no test can run

A comment `<!-- test: slow -->` or `<!-- test: needs some_module -->` on a page says when its code is run.
"""

from __future__ import annotations

import contextlib
import gc
import io
import linecache
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ("python", "bash")
SHOWN = ("text", "console", "c", "ini", "json")
#: what a block for setting up may begin its lines with
SETUP = (
    "make ",
    "python3 -m venv ",
    "pip install ",
    "source .venv/bin/activate",
    ".venv/bin/",
    "git ",
    "cd ",
    "tosaic doctor",
)
_FENCE = re.compile(r"^```(.*)$")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
_TOLERANCE = 0.01
_TIMEOUT = 300


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the number of its first line (from 0) on the page."""

    language: str
    lines: tuple[str, ...]
    start: int
    after: Block | None = None
    flags: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def is_slow(self) -> bool:
        return self.flags == "slow"

    @property
    def is_output(self) -> bool:
        return self.language == "text" and self.after is not None

    @property
    def file(self) -> str | None:
        """The name that a Python block wants to be saved under."""
        match = re.fullmatch(r"# (\w+\.py)", self.lines[0]) if self.language == "python" and self.lines else None
        return match[1] if match else None


@dataclass(frozen=True)
class Result:
    """What a block has printed, and the block that shows it, if any."""

    block: Block
    shown: Block | None
    output: str


def list_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_blocks(text: str) -> list[Block]:
    """All fenced blocks of a page; `after` is the block that runs right before one, with only blank lines between."""
    blocks: list[Block] = []
    language: str | None = None
    flags = ""
    lines: list[str] = []
    before: Block | None = None
    for number, line in enumerate(text.splitlines()):
        fence = _FENCE.match(line)
        if language is None and fence:
            (language, _, flags), lines = fence[1].partition(" "), []
        elif language is not None and line == "```":
            block = Block(language, tuple(lines), number - len(lines), before, flags)
            blocks.append(block)
            before = block if language in RUN else None
            language = None
        elif language is not None:
            lines.append(line)
        elif line.strip():
            before = None
    if language is not None:
        raise ValueError(f"the last block (```{language}) has no end")
    return blocks


def read_conditions(text: str) -> dict[str, str]:
    """What the comments on a page say about running it: {"slow": "", "needs": "some_module"}."""
    return {m[1]: m[2].strip() for m in re.finditer(r"^<!-- test: (\w+)(.*?)-->$", text, re.MULTILINE)}


def run_page(page: Path, folder: Path, *, slow: bool = True) -> Iterator[Result]:
    """Run the blocks of a page one after the other in a folder."""
    blocks = read_blocks(page.read_text(encoding="utf-8"))
    shown = {block.after: block for block in blocks if block.is_output}
    blocks = [block for block in blocks if slow or not block.is_slow]
    module = types.ModuleType(f"page_{re.sub(r'[^a-zA-Z0-9]', '_', page.stem)}")
    sys.modules[module.__name__] = module
    try:
        with contextlib.chdir(folder):
            for block in blocks:
                if block.language == "python":
                    yield Result(block, shown.get(block), _run_python(block, page, module))
                elif block.language == "bash":
                    yield Result(block, shown.get(block), _run_bash(block))
    finally:
        del sys.modules[module.__name__]
        module.__dict__.clear()
        # A page may define a backend, and exir finds every class that still lives.
        gc.collect()


def _run_python(block: Block, page: Path, module: types.ModuleType) -> str:
    # torch reads the lines of the model's code, so they must be where the traceback says.
    if block.file:
        name, source = str(Path(block.file).absolute()), block.text + "\n"
        Path(block.file).write_text(source, encoding="utf-8")
    else:
        name = f"{page.stem}.py"
        source = "\n" * block.start + block.text + "\n"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, name, "exec"), module.__dict__)
    return printed.getvalue()


def _run_bash(block: Block) -> str:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "80",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["bash", "-e", "-c", block.text],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode} of\n{block.text}\n{done.stdout}{done.stderr}")
    return done.stdout


def compare(shown: str, real: str) -> str:
    """Empty if the output is what the page shows; else the first line that is not. Numbers may differ by 1 %."""
    lines = [line.rstrip() for line in real.strip("\n").splitlines()]
    at, free = 0, False
    for line in shown.strip("\n").splitlines():
        if line == "...":
            free = True
            continue
        found = next((i for i in range(at, len(lines)) if _same(line, lines[i])), None)
        if found is None or (found > at and not free):
            return f"the page shows `{line}`, but the output goes on with `{lines[at] if at < len(lines) else ''}`"
        at, free = found + 1, False
    return "" if free or at == len(lines) else f"the page does not show `{lines[at]}`"


def _same(shown: str, real: str) -> bool:
    # Seconds are another machine's.
    if shown.startswith("time ") and real.startswith("time "):
        return True
    if _NUMBER.split(shown) != _NUMBER.split(real):
        return False
    pairs = zip(_numbers(shown), _numbers(real), strict=True)
    return all(abs(a - b) <= _TOLERANCE * max(abs(a), abs(b)) for a, b in pairs)


def _numbers(line: str) -> list[float]:
    return [float(n.replace(",", "")) for n in _NUMBER.findall(line)]


def refresh(page: Path) -> None:
    """Write the real output into a page; blocks with `...` are left to a person."""
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    with tempfile.TemporaryDirectory() as folder:
        results = list(run_page(page, Path(folder)))
    for result in reversed(results):
        if result.shown is not None:
            problem = compare(result.shown.text, result.output)
            if problem and "..." in result.shown.lines:
                print(f"{page.name}:{result.shown.start}: {problem}\n{result.output}")
            elif problem:
                start = result.shown.start
                real = [line.rstrip() for line in result.output.strip("\n").splitlines()]
                lines[start : start + len(result.shown.lines)] = real
        elif result.output:
            print(f"{page.name}:{result.block.start}: not shown:\n{result.output}")
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    for name in arguments:
        refresh(Path(name).absolute())


if __name__ == "__main__":
    main(sys.argv[1:])
