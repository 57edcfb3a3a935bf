"""A campaign of random graphs: `python tests/fuzz/run.py --profile int8 --count 100 --seed 0 --jobs 2`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TOSAIC_STRICT", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _one(task: tuple[str, int, float]) -> dict[str, Any]:
    """Generate, check and, if need be, shrink one graph, in a warm process."""
    from fuzzer import speed
    from fuzzer.campaign import examine

    speed.prepare()
    speed.collect()
    return examine(*task)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, and take it once only: the summary is still to be written."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    parser.add_argument("--profile", choices=("int8", "fp", "vgf"), default="int8")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shrink", type=float, default=90.0, help="seconds for the shrinking of each new failure")
    parser.add_argument("--out", type=Path, help="write the summary as JSON here, too")
    options = parser.parse_args()
    from fuzzer.summary import summarize

    tasks = [(options.profile, seed, options.shrink) for seed in range(options.seed, options.seed + options.count)]
    start = time.monotonic()
    results: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(options.jobs, _ignore_interrupts) as pool:
        try:
            for result in pool.imap_unordered(_one, tasks):
                _announce(options.profile, result, results)
                results.append(result)
        except KeyboardInterrupt:
            _ignore_interrupts()
            pool.terminate()
            print("interrupted: the summary is of what was done so far")
    text, data = summarize(results, time.monotonic() - start)
    print(text)
    if options.out is not None:
        options.out.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 1 if data["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
