"""The summary of a campaign; it imports no torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tosaic.ops import registry

#: parts of reasons for which a whole program may be refused: masks of -inf that no operator quantizes, or all of zeros;
#: resizes on the CPU whose size contradicts their factors; operators on the CPU that ExecuTorch's runtime cannot run
EXPECTED = (
    "found the result to be undefined",
    "the model cannot be calibrated",
    "contains NaN or infinity",
    "ranges measured on a constant do not fit",
    "reads the memory of a tensor that is a part of another one",
    "the arguments of the kernel are not valid (size # times #.# is less than #)",
    "ExecuTorch's runtime cannot run the program (it",
)


def describe_lost(profile: str, seed: int, why: str) -> dict[str, Any]:
    """What a graph that ended its process leaves: a failure with its seed."""
    program = f"python tests/run_fuzzer.py --profile {profile} --seed {seed} --count 1 --jobs 1"
    failure = {"kind": why, "known": "", "detail": f"graph {seed}", "target": profile, "steps": "0", "program": program}
    counts = dict.fromkeys(("nodes", "compared", "delegates", "separated", "differing", "seconds"), 0)
    return {"seed": seed, "failures": [failure], "discarded": "", "refused": [], "records": [], **counts}


def _group_refusals(results: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """The seeds of the programs that were refused, by reason; names and numbers in a reason do not count."""
    found: dict[str, list[int]] = {}
    for result in results:
        for why in result["refused"]:
            reason = re.sub(r"\d+", "#", re.sub(r"`[^`]*`", "`...`", why))
            label = "expected" if any(part in reason for part in EXPECTED) else "TO BE LOOKED AT"
            found.setdefault(f"[{label}] {reason}", []).append(result["seed"])
    return found


def summarize(results: Sequence[dict[str, Any]], wall: float) -> tuple[str, dict[str, Any]]:
    """The campaign as text and as data."""
    found = [(r["seed"], f) for r in results for f in r["failures"]]
    kinds: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for seed, failure in found:
        kinds.setdefault(failure["kind"], []).append((seed, failure))
    covered = {name for r in results for name in r["records"]}
    data: dict[str, Any] = {
        "graphs": len(results),
        "nodes": sum(r["nodes"] for r in results),
        "compared": sum(r["compared"] for r in results),
        "delegates": sum(r["delegates"] for r in results),
        "delegates that Vela miscompiled at first": sum(r["separated"] for r in results),
        "programs whose delegates differ between the APIs": sum(r["differing"] for r in results),
        "records covered": len(covered),
        "records not covered": sorted({n for n, r in registry().records.items() if r.samples()} - covered),
        "discarded": Counter(r["discarded"] for r in results if r["discarded"]),
        "refused": _group_refusals(results),
        "CPU seconds": round(sum(r["seconds"] for r in results), 1),
        "wall seconds": round(wall, 1),
        "failures": sum(1 for _, f in found if not f["known"]),
        "known": Counter(f["known"] for _, f in found if f["known"]),
        "programs": {},
    }
    refused = sorted(data["refused"].items(), key=lambda p: -len(p[1]))
    lines = [
        f"{key}: {value}" for key, value in data.items() if key not in ("discarded", "refused", "known", "programs")
    ]
    lines += [f"refused {len(seeds)}x {why} (seeds {', '.join(map(str, seeds[:5]))})" for why, seeds in refused]
    for key in ("discarded", "known"):
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
