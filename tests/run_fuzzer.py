"""A campaign of random graphs: `python tests/run_fuzzer.py --profile int8 --count 100 --seed 0 --jobs 2`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TOSAIC_STRICT", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


#: seconds in which a graph must be checked, by the clock
LIMIT = 180.0


def _load() -> None:
    """Import torch and the compiler before the clock runs."""
    from support.fuzzer import campaign, speed

    assert campaign
    speed.prepare()


def _one(task: tuple[str, int, float], more: Callable[[float], None]) -> dict[str, Any]:
    """Generate, check and, if need be, shrink one graph, in a warm process."""
    from support.fuzzer import campaign, speed

    speed.collect()
    # Shrinking is limited in CPU time, and other programs may run here as well.
    return campaign.examine(*task, before_shrinking=lambda: more(LIMIT + 4 * task[2]))


def _announce(profile: str, result: dict[str, Any], before: list[dict[str, Any]]) -> None:
    """Print the first failure of each kind with its program as soon as it is found."""
    seen = {f["kind"] for r in before for f in r["failures"]}
    for failure in result["failures"]:
        if failure["kind"] not in seen:
            print(f"--- {profile} {result['seed']}: {failure['kind']}", flush=True)
            print(failure["known"] or failure["program"], flush=True)
    if len(before) % 10 == 9:
        print(f"{len(before) + 1} graphs", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=("int8", "fp", "vgf", "tosa"), default="int8")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shrink", type=float, default=90.0, help="seconds for the shrinking of each new failure")
    parser.add_argument("--out", type=Path, help="write the summary as JSON here, too")
    options = parser.parse_args()
    from support.fuzzer.pool import Lost, run_all
    from support.fuzzer.summary import describe_lost, summarize

    tasks = [(options.profile, seed, options.shrink) for seed in range(options.seed, options.seed + options.count)]
    start = time.monotonic()
    results: list[dict[str, Any]] = []
    try:
        for task, found in run_all(_one, _load, tasks, options.jobs, LIMIT):
            result = describe_lost(options.profile, task[1], found.why) if isinstance(found, Lost) else found
            _announce(options.profile, result, results)
            results.append(result)
    except KeyboardInterrupt:
        # A second one would cost the summary.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("interrupted: the summary is of what was done so far")
    text, data = summarize(results, time.monotonic() - start)
    print(text)
    if options.out is not None:
        options.out.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 1 if data["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
