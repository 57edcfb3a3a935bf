"""One graph from seed to verdict, and the summary of many."""

from __future__ import annotations

import re
import resource
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fuzzer.check import Failure, check, is_quantized, target_of
from fuzzer.generate import generate
from fuzzer.graph import Graph, write
from fuzzer.shrink import shrink
from fuzzer.templates import names

#: failures that have a fix under way: (pattern of kind and detail, reason)
KNOWN: list[tuple[str, str]] = []

#: kinds that this process has shrunk already: one program for each is enough
_shrunk: set[str] = set()


def find_known(failure: Failure, program: str) -> str:
    """The reason why a failure is expected for now."""
    text = f"{failure.kind}\n{failure.detail}\n{program}"
    return next((reason for pattern, reason in KNOWN if re.search(pattern, text, re.DOTALL)), "")


def _cpu() -> float:
    own, children = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


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
        "    print(got.dtype, got.shape, abs(got - want.numpy()).max() if got.dtype != bool else (got != want.numpy()).sum())",
    ]


def examine(profile: str, seed: int, seconds: float) -> dict[str, Any]:
    """Check the graph of a seed; the first failure of each kind is shrunk."""
    start = _cpu()
    target, quantized = target_of(profile, seed), is_quantized(profile, seed)
    graph = generate(seed)
    outcome = check(graph, target, quantized)
    spent = _cpu() - start
    failures: list[dict[str, str]] = []
    for failure in outcome.failures:
        small, shown = graph, failure
        known = find_known(failure, write(graph))
        if failure.kind not in _shrunk and not known and seconds > 0:
            _shrunk.add(failure.kind)
            small = shrink_failure(graph, failure.kind, target, quantized, seconds)
            again = [f for f in check(small, target, quantized).failures if f.kind == failure.kind]
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
        "differing": outcome.differing,
        "seconds": spent,
        "finished": time.time(),
    }


def shrink_failure(graph: Graph, kind: str, target: str, quantized: bool, seconds: float) -> Graph:
    """The smallest graph with a failure of the same kind."""
    return shrink(graph, lambda g: any(f.kind == kind for f in check(g, target, quantized).failures), seconds)


def summarize(results: Sequence[dict[str, Any]], wall: float) -> tuple[str, dict[str, Any]]:
    """The campaign as text and as data."""
    found = [(r["seed"], f) for r in results for f in r["failures"]]
    kinds: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for seed, failure in found:
        kinds.setdefault(failure["kind"], []).append((seed, failure))
    covered = {name for r in results for name in r["records"]}
    data = {
        "graphs": len(results),
        "nodes": sum(r["nodes"] for r in results),
        "compared": sum(r["compared"] for r in results),
        "delegates": sum(r["delegates"] for r in results),
        "programs whose delegates differ between the APIs": sum(r["differing"] for r in results),
        "records covered": len(covered),
        "records not covered": sorted(set(names()) - covered),
        "discarded": Counter(r["discarded"] for r in results if r["discarded"]),
        "refused": Counter(why for r in results for why in r["refused"]),
        "CPU seconds": round(sum(r["seconds"] for r in results), 1),
        "wall seconds": round(wall, 1),
        "failures": sum(1 for _, f in found if not f["known"]),
        "known": Counter(f["known"] for _, f in found if f["known"]),
        "programs": {},
    }
    lines = [
        f"{key}: {value}" for key, value in data.items() if key not in ("discarded", "refused", "known", "programs")
    ]
    for key in ("discarded", "refused", "known"):
        lines += [f"{key} {count}x {why}" for why, count in sorted(data[key].items(), key=lambda p: -p[1])]
    for kind, cases in sorted(kinds.items()):
        unknown = [c for c in cases if not c[1]["known"]]
        if not unknown:
            continue
        seed, failure = min(unknown, key=lambda c: int(c[1]["steps"]))
        data["programs"][kind] = failure["program"]
        seeds = [s for s, _ in unknown]
        lines += [
            "",
            f"=== {kind}",
            f"seeds {seeds}, target {failure['target']}",
            failure["detail"],
            failure["program"],
        ]
    return "\n".join(lines), data
