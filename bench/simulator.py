"""How fast the simulated NPU is: MobileNetV2 on it and on the TOSA reference model, in CPU seconds of one run.

The weights are decoded anew in every run. Starts of processes and imports are left out; what the reference model needs
to read its files is its own time, and what is needed to take the command stream apart is the simulator's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from clock import Memory

from tosaic import npu
from tosaic.engines import reference
from tosaic.formats import tosa_writer as flatbuffer
from tosaic.npu import weights

RESULTS = Path(__file__).resolve().parent / "results"
MODEL = "mobilenet_v2"
TARGETS = ("ethos-u55-128", "ethos-u85-256")
REPEATS = 5
MOST_RATIO, MOST_BYTES = 0.5, 500_000_000
HEAD = ("target", "simulator", "reference model", "ratio", "goal", "peak memory", "goal")


def compile_model(target: str, folder: Path) -> None:
    """The blob and the .tosa of the model's only delegate, and numbers over the full range of its input."""
    import tosaic
    from tosaic import zoo

    model, inputs = zoo.load(MODEL)
    (delegate,) = tosaic.compile(model, inputs, target=target).delegates
    (folder / "blob").write_bytes(delegate.blob)
    (folder / "tosa").write_bytes(delegate.tosa)
    (value,) = flatbuffer.read(delegate.tosa).inputs
    np.save(folder / "x.npy", np.random.default_rng(0).integers(-128, 128, value.shape).astype(np.int8))


def measure(folder: Path) -> dict[str, Any]:
    """In a child: the least of some runs in turn, and the memory of the first."""
    blob, tosa, x = (folder / "blob").read_bytes(), (folder / "tosa").read_bytes(), np.load(folder / "x.npy")
    decoder = weights.decoder()
    decoder.start()
    peak = 0
    ours: list[float] = []
    theirs: list[float] = []
    memory = Memory()
    for _ in range(REPEATS):
        begin = time.process_time() + decoder.cpu_seconds
        (got,) = npu.run_blob(blob, [x], cache=npu.WeightCache())
        ours.append(time.process_time() + decoder.cpu_seconds - begin)
        peak = peak or memory.cut()
        begin = _count_children()
        (want,) = reference.run(tosa, [x])
        theirs.append(_count_children() - begin)
        if got.tobytes() != want.tobytes():
            raise SystemExit("the simulator and the reference model do not agree")
    return {"simulator": min(ours), "reference": min(theirs), "peak_bytes": peak}


def _count_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_child(step: str, target: str, folder: Path) -> str:
    from run import ChildFailed, last_words, make_environment

    arguments = [sys.executable, __file__, step, target, str(folder)]
    done = subprocess.run(arguments, env=make_environment(), capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise ChildFailed(last_words(done.stderr))
    return done.stdout


def make_line(row: dict[str, Any]) -> tuple[str, ...]:
    seconds = (f"{row[side]:.2f} s" for side in ("simulator", "reference"))
    goals = f"<= {MOST_RATIO}", f"< {MOST_BYTES / 1e6:.0f} MB"
    return row["target"], *seconds, f"{row['ratio']:.2f}", goals[0], f"{row['peak_bytes'] / 1e6:.0f} MB", goals[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", nargs="?", choices=("compile", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("target", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.step == "compile":
        compile_model(given.target, given.folder)
        return 0
    if given.step == "measure":
        print(json.dumps(measure(given.folder)))
        return 0
    rows: list[dict[str, Any]] = []
    for target in TARGETS:
        with tempfile.TemporaryDirectory(prefix="tosaic-simulator-") as name:
            run_child("compile", target, Path(name))
            found = json.loads(run_child("measure", target, Path(name)))
        rows.append({"model": MODEL, "target": target, **found, "ratio": found["simulator"] / found["reference"]})
    lines = [HEAD, ("---",) * len(HEAD), *(make_line(row) for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    text = f"# {MODEL} on the simulated NPU\n\n{' '.join(__doc__.split())} The least of {REPEATS}.\n\n{table}\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "simulator.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "simulator.md").write_text(text)
    print(table)
    return 0 if all(row["ratio"] <= MOST_RATIO and row["peak_bytes"] < MOST_BYTES for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
