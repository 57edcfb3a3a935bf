"""`make mutate`: do the simulator's tests notice 100 small errors in it?

One constant, comparison or operator on a line of `npu/` that its quick tests execute is changed at a time, and these
tests are run against the change in a process of their own. A mutant dies if a test fails, or if the tests take far more
time or memory than they should. Who survives needs a reason in survivors.json, which is written by hand. Which mutants
are drawn depends on the seed and on the text of each line: a change of one line leaves the draw of the others alone.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
import torch

from tosaic.engines import reference
from tosaic.tools import vela

ROOT = Path(__file__).resolve().parents[1]
NPU, TESTS = ROOT / "src" / "tosaic" / "npu", ROOT / "tests" / "npu"
REASONS, RESULT = ROOT / "bench" / "survivors.json", ROOT / "bench" / "results" / "mutants.md"
SEED, COUNT, ENOUGH = 2026, 100, 95
OPTIONS = ("-m", "not slow", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:logging")
#: How much a stream may ask for, in how large pieces it is computed, and what is kept: choices of ours, of which a
#: little more is as good. Their values, and comparisons with them, are not changed; nor is what feeds them, work.py.
CHOICES = {
    "Limits", "MAX_BYTES", "PIECE", "_CACHE_BYTES", "_DECODE_SECONDS", "_MAX_BYTES", "_MAX_ELEMENTS",
    "_MAX_MEMORY", "_MAX_PIECE", "_MAX_UNFOLDED", "_MAX_WEIGHTS", "_UNFOLDED", "_limit", "limits",
}  # fmt: skip
LEFT_OUT = ("work.py",)
#: Processor time in seconds and memory in bytes for all tests: several times of what they take.
SECONDS, BYTES = 150, 3 << 30
WALL_SECONDS = 1800

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.USub: ast.UAdd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one node: its place in the walk over the module's tree, and what becomes of it."""

    file: str
    line: int
    index: int
    change: str
    text: str


def find_changes(node: ast.AST) -> dict[str, Callable[[], None]]:
    """What can be changed about a node, each with the function that does it."""

    def swap(old: Any, put: Callable[[Any], None]) -> dict[str, Callable[[], None]]:
        new = SWAPPED.get(type(old))
        return {} if new is None else {f"{type(old).__name__} -> {new.__name__}": lambda: put(new())}

    match node:
        case ast.Constant(value=bool() as old):
            return {f"{old} -> {not old}": lambda: setattr(node, "value", not old)}
        case ast.Constant(value=int() | float() as old):
            return {f"{old} -> {old + 1}": lambda: setattr(node, "value", old + 1)}
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return {"Not -> nothing": lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), operand))}
        case ast.Compare(ops=[only]):
            return swap(only, lambda new: setattr(node, "ops", [new]))
        case ast.Compare(ops=[first, *others]):
            return swap(first, lambda new: setattr(node, "ops", [new, *others]))
        case ast.BinOp(op=old) | ast.AugAssign(op=old) | ast.BoolOp(op=old) | ast.UnaryOp(op=old):
            return swap(old, lambda new: setattr(node, "op", new))
        case _:
            return {}


def find_quiet(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node in which nothing is changed: words of errors, types, decorators, and choices."""
    match node:
        case ast.Raise():
            yield from (part for part in ast.walk(node) if isinstance(part, ast.JoinedStr))
        case ast.FunctionDef(returns=returns):
            arguments = (*node.args.args, *node.args.kwonlyargs)
            yield from (part for part in (returns, *(a.annotation for a in arguments)) if part)
            yield from node.decorator_list
        case ast.ClassDef():
            yield from node.decorator_list
        case ast.AnnAssign():
            yield node.annotation
        case ast.Assign(value=ast.BinOp(op=ast.BitOr(), left=ast.Name())):
            yield node
        case _:
            pass
    named = {name for part in ast.walk(node) for field in ("id", "attr") if (name := getattr(part, field, None))}
    chosen = isinstance(node, ast.Assign | ast.Compare) and named & CHOICES
    if chosen or (isinstance(node, ast.ClassDef) and node.name in CHOICES):
        yield node


def list_mutants(file: str, lines: set[int]) -> Iterator[Mutant]:
    """All changes of a module on these lines."""
    source = (NPU / file).read_text()
    tree, texts = ast.parse(source), source.splitlines()
    quiet = {id(n) for top in ast.walk(tree) for part in find_quiet(top) for n in ast.walk(part)}
    for index, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0)
        if id(node) not in quiet and line in lines:
            yield from (Mutant(file, line, index, change, texts[line - 1].strip()) for change in find_changes(node))


def draw(lines: dict[str, set[int]], count: int, seed: int) -> list[Mutant]:
    """Those whose names have the lowest hashes."""
    seen: Counter[tuple[str, str, str]] = Counter()
    ranked: list[tuple[str, Mutant]] = []
    for file in sorted(lines.keys() - {*LEFT_OUT}):
        for mutant in list_mutants(file, lines[file]):
            name = (mutant.file, mutant.text, mutant.change)
            seen[name] += 1
            ranked.append((hashlib.sha256(repr((seed, name, seen[name])).encode()).hexdigest(), mutant))
    print(f"{count} of {len(ranked)} mutants on {sum(map(len, lines.values()))} executed lines")
    chosen = [mutant for _, mutant in sorted(ranked, key=lambda pair: pair[0])[:count]]
    return sorted(chosen, key=lambda m: (m.file, m.line, m.index))


class Watch:
    """A plugin of pytest that keeps the name of the first test that fails."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._take(report)

    def pytest_collectreport(self, report: Any) -> None:
        self._take(report)

    def _take(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid.rpartition("/")[2]


def remember(known: dict[tuple[str, bytes], Any]) -> None:
    """Let what Vela and the reference model have once made of a graph be known: the mutants are in neither."""

    def wrap(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def find(*arguments: Any, **options: Any) -> Any:
            key = name, hashlib.sha256(pickle.dumps((arguments, options))).digest()
            if key not in known:
                known[key] = plain(*arguments, **options)
            return known[key]

        return find

    vela.compile, reference.run = wrap("compile", vela.compile), wrap("run", reference.run)


def run_tests() -> str:
    """What ended the tests; nothing if all passed. Those that compile models come last: they take longest to begin."""
    files = sorted(map(str, TESTS.glob("test_*.py")))
    late = [file for file in files if file.endswith(("test_models.py", "test_locate.py", "test_vela_5_1.py"))]
    for chosen in ([file for file in files if file not in late], late):
        watch = Watch()
        if pytest.main([*OPTIONS, *chosen], plugins=[watch]) != 0:
            return watch.failed or "the import"
    return ""


def try_mutant(mutant: Mutant) -> str:
    """In a child: how the mutant died."""
    path = str(NPU / mutant.file)
    tree = ast.parse(Path(path).read_text())
    find_changes(list(ast.walk(tree))[mutant.index])[mutant.change]()
    code = compile(ast.fix_missing_locations(tree), path, "exec")
    plain, loaded = SourceFileLoader.get_code, []

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        if loader.path != path:
            return plain(loader, name)
        loaded.append(name)
        return code

    SourceFileLoader.get_code = get_code
    end = run_tests()
    return end if loaded else "NOT LOADED"


def find_lines(kept: Path) -> str:
    """In a child: the lines of the simulator that the tests execute, those of its import included."""
    lines: dict[str, set[int]] = {}
    known: dict[tuple[str, bytes], Any] = {}
    remember(known)
    folder = f"{NPU}{os.sep}"

    def trace(frame: Any, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(folder):
            return None
        lines.setdefault(name.removeprefix(folder), set()).add(frame.f_lineno)
        return trace

    sys.settrace(trace)
    end = run_tests()
    sys.settrace(None)
    kept.write_bytes(pickle.dumps(known))
    others = sorted(name for name in sys.modules if name.startswith(("executorch.exir", "torchao", "torchvision")))
    return json.dumps({"end": end, "lines": {n: sorted(found) for n, found in lines.items()}, "modules": others})


def fork(function: Callable[[], str], seconds: int) -> str:
    """The text that a function gives in a child of this process, or the signal that ended the child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(quiet, stream)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + BYTES, taken + BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(WALL_SECONDS)
        code = 1
        try:
            os.write(writer, function().encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code > 0:
        raise SystemExit("the process that should have run the tests has failed")
    return signal.Signals(-code).name if code else text


def write_result(results: Sequence[tuple[Mutant, str]]) -> int:
    """The table of survivors with their reasons; 0 if enough died and no survivor is without one."""
    reasons = {(r["file"], r["text"], r["change"]): r["reason"] for r in json.loads(REASONS.read_text())}
    died = sum(bool(end) for _, end in results)
    lines = ["# Mutants of the simulator", ""]
    lines += [
        f"{died} of {len(results)} died. `make mutate` makes this page; the reasons are in `bench/survivors.json`."
    ]
    lines += ["", "| where | line | change | why it changes nothing |", "|---|---|---|---|"]
    missing = 0
    for m in (mutant for mutant, end in results if not end):
        reason = reasons.get((m.file, m.text, m.change), "")
        missing += not reason
        text = m.text.replace("|", "\\|")
        lines.append(f"| {m.file}:{m.line} | `{text}` | {m.change} | {reason or '**not explained**'} |")
    lines += ["", "| where | change | died in |", "|---|---|---|"]
    lines += [f"| {m.file}:{m.line} | {m.change} | {end.replace('|', ' ')} |" for m, end in results if end]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    print(f"{died} of {len(results)} died; {missing} survivors without a reason; see {RESULT.relative_to(ROOT)}")
    return 0 if died >= ENOUGH * len(results) / COUNT and not missing else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED, help="for another draw than the one that counts")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "known.pickle"
        found = json.loads(fork(lambda: find_lines(kept), 20 * SECONDS))
        if found["end"]:
            raise SystemExit(f"{found['end']} fails before anything is changed")
        remember(pickle.loads(kept.read_bytes()))
    # Once for all children.
    for name in found["modules"]:
        importlib.import_module(name)
    assert "tosaic.npu" not in sys.modules
    results: list[tuple[Mutant, str]] = []
    for mutant in draw({name: set(lines) for name, lines in found["lines"].items()}, given.count, given.seed):
        end = fork(lambda mutant=mutant: try_mutant(mutant), SECONDS)
        if end == "NOT LOADED":
            raise SystemExit(f"{mutant.file} is not what the tests import")
        results.append((mutant, end))
        print(f"{mutant.file}:{mutant.line}: {mutant.change}: {end or 'SURVIVED: ' + mutant.text}", flush=True)
    print(f"{time.monotonic() - begin:.0f} s")
    return write_result(results)


if __name__ == "__main__":
    sys.exit(main())
