"""`make mutate`: are the tests of the simulator strict enough to notice 100 small errors in it?

A corpus of streams for every accelerator is compiled once; what each must give is computed by the TOSA reference model.
Damaged streams belong to it, too: each must end in the error that it ends in today. Then one constant, comparison or
operator on a line that the corpus executes is changed at a time, in a process of its own. A mutant dies if an output
differs, another error is raised, or a stream takes more than ten times as long. Who survives needs a reason in
survivors.json, which is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.machinery
import json
import os
import pickle
import random
import re
import resource
import signal
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tosaic.errors import TosaicError
from tosaic.targets import ACCELERATORS
from tosaic.tools import reference, vela

HERE = Path(__file__).resolve().parent
NPU = HERE.parent / "src" / "tosaic" / "npu"
GRAPHS = HERE.parent / "tests" / "npu"
REASONS = HERE / "survivors.json"
RESULT = HERE / "results" / "mutants.md"
#: The words of errors, and what the simulation of an operation may cost: a choice, of which a little more is as good.
LEFT_OUT = ("errors.py", "work.py")
#: The same for constants and checks in other files: sizes of pieces, caches and requests.
LIMIT = re.compile(r"_?(MAX_|PIECE|UNFOLDED|CACHE_BYTES|DECODE_SECONDS|DEFAULT_LIMITS)|limits?$|_limit$")
SEED, COUNT, ENOUGH = 2026, 100, 95
MAIN = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
#: What depends on the number of MACs, for the accelerators beside the main ones.
SENSITIVE = ("conv_3x3_padded", "conv_large_kernel", "conv_sparse_3x3", "depthwise_strided", "conv_int16", "table_int8")
#: Other places of memory, containers and weight formats.
MODES = (
    ("ethos-u55-128", "Sram_Only", ()),
    ("ethos-u65-512", "Dedicated_Sram_256KB", ()),
    ("ethos-u85-256", "Shared_Sram", ("--optimise=Size",)),
    ("ethos-u85-512", "Dedicated_Sram_384KB", ("--separate-io-regions", "--cop-format=COP2")),
    ("ethos-u85-1024", "Sram_Only", ("--disable-fwd", "--disable-chaining")),
)
EXTRA_MEMORY = 2 << 30


@dataclass(frozen=True)
class Item:
    """A stream with its inputs, and what must come of it: outputs, or an error."""

    name: str
    compiled: vela.Compiled
    inputs: tuple[Any, ...]
    outputs: tuple[bytes, ...]
    error: str = ""
    #: processor time of the simulator as it is
    seconds: float = 0.0


def make_corpus() -> list[Item]:
    """Streams that work, with the reference model's outputs."""
    sys.path.insert(0, str(GRAPHS))
    import graphs

    def wanted() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
        for target, accelerator in ACCELERATORS.items():
            for name in graphs.names("u85" if accelerator.family == "u85" else "u55"):
                if target in MAIN or name in SENSITIVE:
                    yield name, target, "", ()
        for target, mode, flags in MODES:
            for name in ("two_convs", "matmul_batch", "conv_with_table"):
                yield name, target, mode, flags

    items: list[Item] = []
    known: dict[str, tuple[bytes, list[Any], list[Any]]] = {}
    for name, target, mode, flags in wanted():
        if name not in known:
            case = graphs.make(name)
            inputs = [case.inputs(seed) for seed in range(2)]
            outputs = [tuple(a.tobytes() for a in reference.run(case.tosa, one)) for one in inputs]
            known[name] = case.tosa, inputs, outputs
        tosa, inputs, outputs = known[name]
        options = vela.default_options(ACCELERATORS[target])
        options = replace(options, memory_mode=mode or options.memory_mode, extra_flags=flags)
        compiled = vela.compile(tosa, options)
        for given, made in zip(inputs, outputs, strict=True):
            items.append(Item(f"{name} {target} {mode}".strip(), compiled, tuple(given), made))
    return items


def damage(items: Sequence[Item]) -> list[Item]:
    """Streams with one thing changed, of which it is not known yet what they end in."""
    rng = random.Random(SEED)
    damaged: list[Item] = []
    for item in items[::2]:
        target, mode = item.name.split()[1], item.name.split()[2:]
        if target not in MAIN or mode:
            continue
        spoiled = [spoil(item.compiled, rng) for spoil in SPOILS]
        if item.name.split()[0] in WHOLLY:
            spoiled += [*spoil_each(item.compiled, rng), *spoil_each(item.compiled, rng)]
        names = (f"{item.name} damaged {number}" for number in range(len(spoiled)))
        damaged += [replace(item, name=name, compiled=made) for name, made in zip(names, spoiled, strict=True)]
    return damaged


def spoil_command(compiled: vela.Compiled, rng: random.Random) -> vela.Compiled:
    data = bytearray(compiled.cmd_data)
    at = 32 + 4 * rng.randrange((len(data) - 32) // 4)
    kind = rng.randrange(5)
    if kind == 0:
        data[at + rng.randrange(4)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        struct.pack_into("<H", data, at + 2, rng.choice((0, 1, 2, 3, 0x7FFF, 0x8000, 0xFFFF)))
    elif kind == 2:
        struct.pack_into("<I", data, at, rng.choice((0, 0x00FFFFFF, 0x7FFFFFFF, 0xFFFFFFFF)))
    elif kind == 3:
        # The payload of a command a little larger or smaller.
        places = [i for i in range(32, len(data) - 4, 4) if data[i + 1] & 0xC0 == 0x40]
        at = 4 + rng.choice(places) if places else at
        changed = struct.unpack_from("<I", data, at)[0] + rng.choice((-16, -1, 1, 16, 1 << 16, 1 << 24))
        struct.pack_into("<I", data, at, changed & 0xFFFFFFFF)
    else:
        del data[at:]
    return replace(compiled, cmd_data=bytes(data))


def spoil_weights(compiled: vela.Compiled, rng: random.Random) -> vela.Compiled:
    data = bytearray(compiled.weight_data)
    if not data:
        return compiled
    if rng.randrange(2):
        return replace(compiled, weight_data=bytes(data[: rng.randrange(len(data))]))
    for _ in range(4):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return replace(compiled, weight_data=bytes(data))


def spoil_sizes(compiled: vela.Compiled, rng: random.Random) -> vela.Compiled:
    """Less scratch memory than the stream needs, far too much of it, or inputs of another shape."""
    kind = rng.randrange(3)
    if kind < 2:
        return replace(compiled, scratch_size=(rng.randrange(compiled.scratch_size), 1 << 31)[kind])
    first, *others = compiled.inputs
    wrong = replace(first, shape=(*first.shape[:-1], first.shape[-1] + 1))
    return replace(compiled, inputs=(wrong, *others))


def spoil_container(compiled: vela.Compiled, rng: random.Random) -> vela.Compiled:
    """A container that ends early, that counts wrong, or whose last command lacks its payload."""
    data = bytearray(compiled.cmd_data)
    kind = rng.randrange(4)
    if kind == 0:
        del data[4 * rng.randrange(1, 10) :]
    elif kind == 1:
        data[rng.randrange(32)] ^= 1 << rng.randrange(8)
    elif kind == 2:
        struct.pack_into("<I", data, len(data) - 4, 0x4000)
    else:
        del data[-rng.randrange(1, 9) :]
    return replace(compiled, cmd_data=bytes(data))


def spoil_waits(compiled: vela.Compiled, rng: random.Random) -> vela.Compiled:
    """Without some of its waits, which become commands that only count, or waiting for less."""
    data = bytearray(compiled.cmd_data)
    for at in _find_commands(data, (0x11, 0x12)):
        chosen = rng.randrange(4)
        if chosen:
            word = 0x13 if chosen == 1 else struct.unpack_from("<H", data, at)[0] | chosen - 1 << 16
            struct.pack_into("<I", data, at, word)
    return replace(compiled, cmd_data=bytes(data))


def spoil_lengths(compiled: vela.Compiled, rng: random.Random) -> vela.Compiled:
    """Fewer bytes of weights or scales than the operation needs."""
    data = bytearray(compiled.cmd_data)
    places = _find_commands(data, (0x4021, 0x4023, 0x4091, 0x4093))
    if places:
        at = 4 + rng.choice(places)
        length = struct.unpack_from("<I", data, at)[0]
        struct.pack_into("<I", data, at, rng.choice((length // 2, max(0, length - 16), max(0, length - 1), 16)))
    return replace(compiled, cmd_data=bytes(data))


def _find_commands(data: bytes, opcodes: Sequence[int]) -> list[int]:
    """The places of these commands in a container of the first format."""
    places: list[int] = []
    at = 32
    while at < len(data):
        opcode = struct.unpack_from("<H", data, at)[0]
        if opcode in opcodes or not opcodes:
            places.append(at)
        at += 8 if opcode >> 14 else 4
    return places


SPOILS = (*[spoil_command] * 6, spoil_weights, spoil_weights, spoil_sizes, spoil_container, spoil_waits, spoil_lengths)
#: Streams of which every command is spoiled in turn.
WHOLLY = ("conv_3x3_padded", "depthwise_strided", "add_quantised", "tables_of_several_operators", "matmul", "max_pool")


def spoil_each(compiled: vela.Compiled, rng: random.Random) -> Iterator[vela.Compiled]:
    """One bit of the parameter or payload of each command in turn."""
    for at in _find_commands(compiled.cmd_data, ()):
        data = bytearray(compiled.cmd_data)
        low, high = (2, 8) if data[at + 1] >> 6 else (2, 4)
        data[at + rng.randrange(low, high)] ^= 1 << rng.randrange(8)
        yield replace(compiled, cmd_data=bytes(data))


def run(item: Item) -> tuple[tuple[bytes, ...], str]:
    """The outputs of a stream, or the error that it ends in."""
    from tosaic import npu

    compiled = item.compiled
    try:
        outputs = npu.run(
            compiled.cmd_data,
            compiled.weight_data,
            compiled.scratch_size,
            item.inputs,
            compiled.inputs,
            compiled.outputs,
            fast_scratch_size=compiled.fast_scratch_size,
            check_uninitialised=True,
            check_waits=True,
        )
    except TosaicError as error:
        return (), f"{type(error).__name__}: {error}"
    return tuple(array.tobytes() for array in outputs), ""


def measure(items: Sequence[Item]) -> list[Item]:
    """The corpus with the times of the simulator as it is; damaged streams keep the error that they end in.

    What a damaged stream computes, if it computes something, nobody vouches for: such streams are left out.
    """
    kept: list[Item] = []
    for item in items:
        begin = time.process_time()
        outputs, error = run(item)
        seconds = time.process_time() - begin
        if "damaged" in item.name:
            if error:
                kept.append(replace(item, seconds=seconds, outputs=(), error=error))
        elif (outputs, error) != (item.outputs, ""):
            raise SystemExit(f"{item.name}: the simulator is wrong before anything is changed ({error})")
        else:
            kept.append(replace(item, seconds=seconds))
    return kept


def find_lines(items: Sequence[Item]) -> set[tuple[str, int]]:
    """The lines of the simulator that the corpus executes, those of its import included."""
    lines: set[tuple[str, int]] = set()
    folder = f"{NPU}{os.sep}"

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(folder):
            return None
        lines.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        for item in items:
            run(item)
    finally:
        sys.settrace(None)
    return lines


@dataclass(frozen=True)
class Mutant:
    """A change of one node: its place in the walk over the module's tree, and what becomes of it."""

    file: str
    line: int
    index: int
    variant: str
    text: str


COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}  # fmt: skip


def list_mutants(file: str, lines: set[tuple[str, int]]) -> list[Mutant]:
    """All changes of one module on executed lines."""
    source = (NPU / file).read_text()
    tree = ast.parse(source)
    texts = source.splitlines()
    quiet = {id(n) for top in ast.walk(tree) if _is_quiet(top) for n in ast.walk(top)}
    quiet |= {id(n) for top in ast.walk(tree) for part in _quiet_parts(top) for n in ast.walk(part)}
    # A negative number is one constant.
    quiet |= {id(n.operand) for n in ast.walk(tree) if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub)}
    mutants: list[Mutant] = []
    for index, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0)
        if id(node) in quiet or (file, line) not in lines:
            continue
        mutants += [Mutant(file, line, index, variant, texts[line - 1].strip()) for variant in _variants(node)]
    return mutants


def _is_quiet(node: ast.AST) -> bool:
    """Words of errors, what is only for the reader, and limits of our own."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Assert():
            return True
        case ast.ClassDef(bases=[ast.Name(id="Enum" | "IntEnum")]) | ast.ClassDef(name="Limits"):
            return True
        case ast.Assign() | ast.Compare():
            names = (n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute))
            return any(LIMIT.match(n.id if isinstance(n, ast.Name) else n.attr) for n in names)
        case _:
            return False


def _quiet_parts(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.FunctionDef():
            yield from (a.annotation for a in (*node.args.args, *node.args.kwonlyargs) if a.annotation)
            yield from node.decorator_list
            if node.returns:
                yield node.returns
        case ast.ClassDef():
            yield from node.decorator_list
        case ast.AnnAssign():
            yield node.annotation
        case ast.Assign(value=ast.BinOp(op=ast.BitOr(), left=ast.Name())):
            # A union of types.
            yield node
        case _:
            pass


def _variants(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=bool() as value):
            yield f"{value} -> {not value}"
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            yield f"{-value} -> {1 - value}"
        case ast.Constant(value=int() as value):
            yield f"{value} -> {value + 1}"
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield f"{type(op).__name__} -> {COMPARISONS[type(op)].__name__}"
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield f"{type(op).__name__} -> {OPERATORS[type(op)].__name__}"
        case ast.BoolOp(op=op):
            yield "And -> Or" if isinstance(op, ast.And) else "Or -> And"
        case ast.UnaryOp(op=ast.Not()):
            yield "Not -> nothing"
        case ast.UnaryOp(op=ast.USub()):
            yield "USub -> nothing"
        case _:
            pass


def change(mutant: Mutant) -> ast.Module:
    """The module with the mutant's change."""
    tree = ast.parse((NPU / mutant.file).read_text())
    target = list(ast.walk(tree))[mutant.index]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return _change(node, mutant.variant) if node is target else self.generic_visit(node)

    return ast.fix_missing_locations(Replace().visit(tree))


def _change(node: Any, variant: str) -> ast.AST:
    changed = copy.deepcopy(node)
    match changed:
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            changed = ast.Constant(ast.literal_eval(variant.rpartition(" -> ")[2]))
        case ast.Compare(ops=[op]):
            changed.ops = [COMPARISONS[type(op)]()]
        case ast.BinOp() | ast.AugAssign():
            changed.op = OPERATORS[type(changed.op)]()
        case ast.BoolOp():
            changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        case _:
            changed = changed.operand
    return changed


class Loader(importlib.machinery.SourceFileLoader):
    """Loads one module of the simulator from a changed tree."""

    tree: ast.Module | None = None
    path_changed = ""

    def get_code(self, fullname: str) -> Any:
        if self.tree is not None and self.path == self.path_changed:
            return compile(self.tree, self.path, "exec")
        return super().get_code(fullname)


def try_mutant(mutant: Mutant, items: Sequence[Item]) -> str:
    """In a process of its own: how the mutant died, or nothing."""
    Loader.tree, Loader.path_changed = change(mutant), str(NPU / mutant.file)
    sys.meta_path.insert(0, _Finder())
    for item in items:
        # A mutant may loop for ever or ask for any amount of memory.
        signal.setitimer(signal.ITIMER_PROF, max(1.0, 10 * item.seconds))
        signal.alarm(60)
        try:
            outputs, error = run(item)
        except Exception as exception:
            return f"{type(exception).__name__} in {item.name}"
        if (outputs, error) != (item.outputs, item.error):
            return f"{error.partition(':')[0] or 'other outputs'} in {item.name}"
    return ""


class _Finder:
    """Finds the modules of the simulator, to be loaded by `Loader`."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith("tosaic.npu"):
            return None
        parts = fullname.split(".")[2:]
        file = NPU.joinpath(*parts[:-1], f"{parts[-1]}.py") if parts else NPU / "__init__.py"
        from importlib.util import spec_from_file_location

        search = [str(NPU)] if not parts else None
        return spec_from_file_location(
            fullname, file, loader=Loader(fullname, str(file)), submodule_search_locations=search
        )


def fork(function: Any) -> str:
    """The text that a function gives in a child of this process, or how the child ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + EXTRA_MEMORY, taken + EXTRA_MEMORY))
        text = "an exception outside a stream"
        try:
            text = function()
        except BaseException as error:
            text = f"{type(error).__name__} at import"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


def prepare(folder: Path) -> tuple[list[Item], set[tuple[str, int]]]:
    """The corpus and the executed lines; all in children, so that this process never imports the simulator itself."""
    kept = folder / "corpus.pickle"

    def work() -> str:
        sound = make_corpus()
        items = measure([*sound, *damage(sound)])
        kept.write_bytes(pickle.dumps((items, set[tuple[str, int]]())))
        return "done"

    def find() -> str:
        # Before the simulator is imported, so that lines that only the import executes are seen, too.
        items, _ = pickle.loads(kept.read_bytes())
        kept.write_bytes(pickle.dumps((items, find_lines(items))))
        return "done"

    for step in (work, find):
        ended = fork(step)
        if ended != "done":
            raise SystemExit(f"the corpus could not be made: {ended}")
    items, lines = pickle.loads(kept.read_bytes())
    random.Random(SEED).shuffle(items)
    return items, lines


def draw(lines: set[tuple[str, int]], count: int, seed: int) -> list[Mutant]:
    """Mutants of executed lines, always the same for the same source; at most one per node."""
    files = sorted(path.name for path in NPU.glob("*.py") if path.name not in LEFT_OUT)
    mutants = [mutant for file in files for mutant in list_mutants(file, lines)]
    random.Random(seed).shuffle(mutants)
    chosen: dict[tuple[str, int], Mutant] = {}
    for mutant in mutants:
        if len(chosen) < count:
            chosen.setdefault((mutant.file, mutant.index), mutant)
    print(f"{count} of {len(mutants)} mutants on {len(lines)} executed lines")
    return sorted(chosen.values(), key=lambda m: (m.file, m.line, m.index))


def write_result(results: Sequence[tuple[Mutant, str]], seconds: float) -> int:
    """The table of survivors with their reasons; 0 if enough died and no survivor is without one."""
    reasons = {(r["file"], r["text"], r["change"]): r["reason"] for r in json.loads(REASONS.read_text())}
    survivors = [mutant for mutant, end in results if not end]
    died = len(results) - len(survivors)
    lines = [
        "# Mutants of the simulator",
        "",
        f"{died} of {len(results)} died. `make mutate` makes this table; the reasons are in `bench/survivors.json`.",
        "",
        "| where | line | change | why it changes nothing |",
        "|---|---|---|---|",
    ]
    missing = 0
    for m in survivors:
        reason = reasons.get((m.file, m.text, m.variant), "")
        missing += not reason
        text = m.text.replace("|", "\\|")
        lines.append(f"| {m.file}:{m.line} | `{text}` | {m.variant} | {reason or '**not explained**'} |")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    print(f"{died} of {len(results)} died in {seconds:.0f} s; {missing} survivors without a reason; see {RESULT}")
    return 0 if died >= ENOUGH * len(results) / COUNT and not missing else 1


def main(arguments: Sequence[str] | None = None) -> int:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED, help="for another draw than the one that counts")
    given = parser.parse_args(arguments)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tosaic-mutate-") as name:
        items, lines = prepare(Path(name))
    print(f"{len(items)} streams, {sum(i.seconds for i in items):.1f} s of processor time per run")
    results: list[tuple[Mutant, str]] = []
    for mutant in draw(lines, given.count, given.seed):
        end = fork(lambda mutant=mutant: try_mutant(mutant, items))
        results.append((mutant, end))
        print(f"{mutant.file}:{mutant.line}: {mutant.variant}: {end or 'SURVIVED: ' + mutant.text}", flush=True)
    return write_result(results, time.monotonic() - begin)


if __name__ == "__main__":
    sys.exit(main())
