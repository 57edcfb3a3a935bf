"""One graph from seed to verdict."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.fuzzer import tosa
from support.fuzzer.check import ALL, MOST, Failure, check, is_quantized, parts_for, target_of
from support.fuzzer.generate import generate
from support.fuzzer.graph import Graph, write
from support.fuzzer.shrink import shrink

#: failures that have a fix under way: (pattern of kind and detail, reason)
KNOWN: list[tuple[str, str]] = []

#: kinds that this process has shrunk already: one program for each is enough
_shrunk: set[str] = set()


def find_known(failure: Failure, program: str) -> str:
    """The reason why a failure is expected for now."""
    text = f"{failure.kind}\n{failure.detail}\n{program}"
    return next((reason for pattern, reason in KNOWN if re.search(pattern, text, re.DOTALL)), "")


def _cpu() -> float:
    """CPU seconds of this process and its children, also of those that still run."""
    own, ended = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + sum(map(_cpu_of, _list_children()))


def _list_children() -> list[str]:
    return [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def _cpu_of(pid: str) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # utime, stime and the same of its own children that have ended
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def ending(failure: Failure, target: str, quantized: bool) -> list[str]:
    """What the minimal program does with its model: it compiles and runs it with both APIs."""
    return [
        "",
        "import os",
        "",
        'os.environ["TOSAIC_STRICT"] = "1"',
        "import tosaic",
        "",
        *(f"# {line}" for line in f"{failure.kind}\n{failure.detail}".splitlines()[:12]),
        f'program = tosaic.compile(model, inputs, "{target}", calibration=[inputs])'
        if quantized
        else f'program = tosaic.compile(model, inputs, "{target}", quantized=False)',
        "print(program, program.verify(rounds=1), sep='\\n')" if not target.startswith("TOSA") else "print(program)",
        "for got, want in zip(program.run(*inputs), model(*inputs), strict=True):",
        "    print(got.dtype, got.shape, abs(got.astype(float) - want.double().numpy()).max())",
    ]


def examine(
    profile: str, seed: int, seconds: float, before_shrinking: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Check the graph of a seed; the first failure of each kind is shrunk."""
    if profile == "tosa":
        return tosa.examine(seed, seconds)
    start = _cpu()
    target, quantized = target_of(profile, seed), is_quantized(profile, seed)
    graph = generate(seed)
    # That `compile` takes the module itself costs a second quantization: one graph in five shows it.
    outcome = check(graph, target, quantized, MOST if seed % 5 else ALL)
    spent = _cpu() - start
    failures: list[dict[str, str]] = []
    for failure in outcome.failures:
        small, shown = graph, failure
        known = find_known(failure, write(graph))
        if failure.kind not in _shrunk and not known and seconds > 0:
            _shrunk.add(failure.kind)
            before_shrinking()
            small = shrink_failure(graph, failure.kind, target, quantized, seconds)
            again = [
                f for f in check(small, target, quantized, parts_for(failure.kind)).failures if f.kind == failure.kind
            ]
            shown = again[0] if again else failure
            known = find_known(shown, write(small))
        failures.append(
            {
                "kind": failure.kind,
                "known": known,
                "detail": shown.detail,
                "target": target,
                "steps": str(len(small.steps)),
                "program": write(small, ending(shown, target, quantized)),
            }
        )
    return {
        "seed": seed,
        "target": target,
        "failures": failures,
        "discarded": outcome.discarded,
        "refused": outcome.refused,
        "records": sorted(outcome.records),
        "nodes": outcome.nodes,
        "compared": outcome.compared,
        "delegates": outcome.delegates,
        "separated": outcome.separated,
        "differing": outcome.differing,
        "seconds": spent,
        "finished": time.time(),
    }


def shrink_failure(graph: Graph, kind: str, target: str, quantized: bool, seconds: float) -> Graph:
    """The smallest graph with a failure of the same kind."""
    parts = parts_for(kind)

    def fails(smaller: Graph) -> bool:
        return any(f.kind == kind for f in check(smaller, target, quantized, parts).failures)

    return shrink(graph, fails, seconds)
