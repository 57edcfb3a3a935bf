"""Random TOSA graphs, made of what lowerings emit, to find what Vela miscompiles.

A graph of the campaigns in torch takes seconds; one of these takes a tenth of one, so that many more are tried.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from support.fuzzer.tosa_steps import ALL, CHOICE_ENDS, CHOICES, ENDS, STEPS, Draw
from support.graphs.cases import I8, Case
from support.npu_bench import Bench
from tosaic.core.errors import TosaicError
from tosaic.core.targets import find
from tosaic.engines import reference
from tosaic.ir.build import Builder
from tosaic.ir.graph import Type, Value
from tosaic.ir.text import to_text
from tosaic.npu import Fault
from tosaic.npu.errors import Hazard
from tosaic.passes import run_passes
from tosaic.passes.dce import remove_dead_ops

TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
#: findings that no graph avoids
KNOWN = {"wait": "Vela 5.2 leaves out a wait between a DMA and an operation that does not read its result"}
#: the largest tensor, in elements, and that of a graph of large images
LARGEST, LARGE = 2000, 120_000


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a lowering: its name in STEPS, the values that it may read, and the seed of its numbers."""

    name: str
    reads: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Inputs, steps, and which values are returned; value i is input i, or the result of step i - len(inputs)."""

    inputs: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    mode: str = ""
    flags: tuple[str, ...] = ()


#: memory modes beside the default one
MODES = {"u55": ("Sram_Only",), "u65": ("Dedicated_Sram",), "u85": ("Shared_Sram", "Dedicated_Sram_384KB")}


def generate(seed: int, family: str) -> Plan:
    """A plan of two to fourteen steps."""
    rng = np.random.default_rng(seed)
    named = {**STEPS, **ENDS, **(dict(CHOICES) | dict(CHOICE_ENDS) if family == "u85" else {})}
    names = list(named)
    weights = np.array([named[name][1] for name in names])
    large = rng.random() < 0.03
    shapes = [_draw_image(rng) if large else _draw_input(rng) for _ in range(int(rng.integers(1, 4)))]
    ends: set[int] = set()
    steps: list[Step] = []
    for _ in range(int(rng.integers(2, 15))):
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        values = [i for i in range(len(shapes) + len(steps)) if i not in ends]
        # Often the newest value, so that chains are long enough.
        first = values[-1] if rng.random() < 0.5 else int(rng.choice(values))
        steps.append(Step(name, (first, int(rng.choice(values))), int(rng.integers(1 << 30))))
        if name in ENDS or name in CHOICE_ENDS:
            ends.add(len(shapes) + len(steps) - 1)
    read = {i for step in steps for i in step.reads}
    last = [i for i in range(len(shapes), len(shapes) + len(steps)) if i not in read]
    extra = [i for i in range(len(shapes), len(shapes) + len(steps)) if i in read and rng.random() < 0.15]
    mode = str(rng.choice(MODES[family])) if rng.random() < 0.15 else ""
    flags = ("--optimise=Size",) if rng.random() < 0.15 else ()
    return Plan(tuple(shapes), tuple(steps), tuple(last + extra), mode, flags)


def _draw_image(rng: np.random.Generator) -> tuple[int, ...]:
    """An image that Vela computes in stripes."""
    height, width = (int(n) for n in rng.integers(24, 90, 2))
    return (1, height, width, int(rng.choice([1, 3, 8, 16])))


def _draw_input(rng: np.random.Generator) -> tuple[int, ...]:
    rank = int(rng.choice([1, 2, 3, 4, 4, 4, 5]))
    sizes = [1, 2, 3, 4, 5, 6, 8, 16, 17] if rank < 4 else [1, 1, 2, 3, 4, 5, 6, 8]
    return tuple(int(n) for n in rng.choice(sizes, rank))


def build(plan: Plan) -> Case | None:
    """The graph of a plan; None if a tensor becomes too large."""
    b = Builder()
    values = [b.input(Type(I8, shape)) for shape in plan.inputs]
    most = LARGE if any(v.type.size > LARGEST for v in values) else LARGEST
    if any(v.type.size > most for v in values):
        return None
    points: dict[Value, int] = {}
    for step in plan.steps:
        values.append(ALL[step.name][0](Draw(b, step.seed, points), *(values[i] for i in step.reads)))
        if values[-1].type.size > most:
            return None
    # An input that nothing reads is never one of a delegate's, nor is one that is returned as it is.
    graph = remove_dead_ops(b.finish([v for v in dict.fromkeys(values[i] for i in plan.outputs) if v.op is not None]))
    used = {v for op in graph.ops for v in op.inputs}
    graph = replace(graph, inputs=tuple(v for v in graph.inputs if v in used))
    return Case(graph)


def check(plan: Plan, target: str) -> str:
    """What is wrong with the commands of a plan, empty if nothing is; graphs that are refused are right."""
    case = build(plan)
    if case is None:
        return ""
    separated = Case(run_passes(case.graph, find(target)))
    inputs = case.inputs()
    try:
        wanted = reference.run(case.tosa, inputs)
    except reference.Undefined:
        return ""
    try:
        compiled = Bench.compile(separated.tosa, target, plan.mode, plan.flags)
    except TosaicError as error:
        return f"refused: {error.what} {error.why}"
    try:
        got = Bench.run(compiled, inputs, check_uninitialized=True, check_waits=True)
    except Hazard as error:
        return f"wait: {error}"
    except (Fault, TosaicError) as error:
        return f"fault: {error}"
    if len(got) != len(wanted):
        return f"lost: {len(wanted) - len(got)} outputs"
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        if ours.tobytes() != theirs.tobytes():
            return f"wrong: output {index}"
    return ""


def try_check(plan: Plan, target: str) -> str:
    """The same, where an exception of ours is one more finding."""
    try:
        return check(plan, target)
    except Exception as error:
        return f"exception: {type(error).__name__} {error}"


def shrink(plan: Plan, target: str, seconds: float = 60.0) -> Plan:
    """A smaller plan with a finding of the same kind, as far as the CPU seconds allow."""
    kind, end = find_kind(try_check(plan, target)), time.process_time() + seconds
    changed = True
    while changed:
        changed = False
        for candidate in _list_smaller(plan):
            if time.process_time() > end:
                return plan
            if find_kind(try_check(candidate, target)) == kind:
                plan, changed = candidate, True
                break
    return plan


def find_kind(finding: str) -> str:
    return finding.partition(":")[0]


def examine(seed: int, seconds: float) -> dict[str, Any]:
    """Check the graph of a seed, and shrink it if it is wrong: the record of one graph in a campaign."""
    start, target = time.process_time(), TARGETS[seed % len(TARGETS)]
    plan = generate(seed, find(target).family)
    finding = try_check(plan, target)
    kind, refused, failures = find_kind(finding), list[str](), list[dict[str, str]]()
    if kind == "refused":
        refused.append(finding)
    elif finding:
        known = KNOWN.get(kind, "")
        small = plan if known else shrink(plan, target, seconds)
        case = build(small)
        program = "" if case is None else f"{target} {small.mode} {' '.join(small.flags)}\n{to_text(case.graph)}"
        failures.append(
            {
                "kind": f"{target}: {kind}",
                "known": known,
                "detail": finding,
                "target": target,
                "steps": str(len(small.steps)),
                "program": program,
            }
        )
    counts = {"nodes": len(plan.steps), "compared": 1, "delegates": 1, "differing": 0}
    spent = time.process_time() - start
    result = {"seed": seed, "target": target, "failures": failures, "refused": refused, "seconds": spent}
    return {**result, **counts, "discarded": "", "records": [], "finished": time.time()}


def _list_smaller(plan: Plan) -> list[Plan]:
    """Plans with one output less, or without one step: its readers read what it read."""
    found = [
        replace(plan, outputs=plan.outputs[:i] + plan.outputs[i + 1 :])
        for i in range(len(plan.outputs))
        if len(plan.outputs) > 1
    ]
    first = len(plan.inputs)
    for i, gone in reversed(list(enumerate(plan.steps))):
        at = first + i
        for place in dict.fromkeys(gone.reads):
            move = {old: place if old == at else old - (old > at) for old in range(first + len(plan.steps))}
            steps = [replace(s, reads=tuple(move[r] for r in s.reads)) for s in plan.steps if s is not gone]
            outputs = tuple(dict.fromkeys(move[o] for o in plan.outputs if move[o] >= first))
            if outputs:
                found.append(replace(plan, steps=tuple(steps), outputs=outputs))
    return found
