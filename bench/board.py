"""What a board costs: MobileNetV2 on the virtual board and on the simulated NPU alone, in CPU seconds of one run.

The build of the firmware and all imports are left out; the weights are decoded anew in every run. The share of the
simulator is the time that the virtual board spends in it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tosaic
from tosaic import zoo
from tosaic.board.build import build
from tosaic.board.description import suit_board
from tosaic.board.options import BoardOptions
from tosaic.engines import engine
from tosaic.engines.engine import RunResult
from tosaic.npu import weights

RESULTS = Path(__file__).resolve().parent / "results"
MODEL = "mobilenet_v2"
TARGETS = ("ethos-u55-128", "ethos-u85-256")
REPEATS = 5
MOST_RATIO = 2.0
HEAD = ("target", "virtual board", "of which simulator", "engine npu", "ratio", "goal")


def measure(target: str) -> dict[str, Any]:
    """The least of some runs in turn."""
    model, inputs = zoo.load(MODEL)
    pte = tosaic.compile(model, inputs, target=target).pte
    elf = build(pte, suit_board(target)).elf
    x = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)
    decoder = weights.decoder()
    boards: list[tuple[float, float]] = []
    alone: list[float] = []
    decoder.start()
    for _ in range(REPEATS):
        decoded = decoder.cpu_seconds
        seconds, board = _time(lambda: engine.run(pte, [x], engine="board", board=BoardOptions(elf=elf)))
        assert board.execution is not None
        boards.append((seconds, board.execution.npu_seconds + decoder.cpu_seconds - decoded))
        seconds, simulator = _time(lambda: engine.run(pte, [x], engine="npu"))
        alone.append(seconds)
        assert board.outputs[0].tobytes() == simulator.outputs[0].tobytes()
    best, share = min(boards)
    return {"target": target, "board": best, "simulator": share, "npu": min(alone), "ratio": best / min(alone)}


def _time(job: Callable[[], RunResult]) -> tuple[float, RunResult]:
    decoder = weights.decoder()
    begin = time.process_time() + decoder.cpu_seconds
    result = job()
    return time.process_time() + decoder.cpu_seconds - begin, result


def show(rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for row in rows:
        figures = (f"{row['board']:.2f} s", f"{row['simulator']:.2f} s", f"{row['npu']:.2f} s", f"{row['ratio']:.2f}")
        lines.append(f"| {row['target']} | {' | '.join(figures)} | at most {MOST_RATIO} |")
    return "\n".join(lines)


def main() -> int:
    rows = [measure(target) for target in TARGETS]
    about = " ".join((__doc__ or "").split())
    text = f"# {MODEL} on the virtual board\n\n{about} The least of {REPEATS}.\n\n{show(rows)}\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "board.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "board.md").write_text(text)
    print(show(rows))
    return 0 if all(row["ratio"] <= MOST_RATIO for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
