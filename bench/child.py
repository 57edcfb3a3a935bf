"""One compile in a process of its own: imports a side, lets it measure, writes what it found as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path

import models

from tosaic.core.targets import ACCELERATORS


def main() -> None:
    interpreter = time.process_time()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", required=True, choices=("ours", "peer"))
    parser.add_argument("--door", required=True, choices=("executorch", "front"))
    parser.add_argument("--model", required=True, choices=models.names())
    parser.add_argument("--target", required=True, choices=list(ACCELERATORS))
    parser.add_argument("--calibration", type=int, required=True)
    parser.add_argument("--evaluation", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    # exir finds a backend by its class name: never both sides in one process.
    side = importlib.import_module(f"side_{given.side}")
    # A tool that a side keeps running is started by its import.
    imports = side.CLOCK.now() - interpreter
    job = side.Job(given.model, ACCELERATORS[given.target], given.door, given.calibration, given.evaluation)
    found = side.measure(job)
    found["apart"] |= {"interpreter": interpreter, "imports": imports}
    given.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
