"""CPU seconds of the stages of a compile, in this checkout and in another one, side by side in one run.

    python bench/stages.py [--models mobilenet_v2 encoder_layer encoder8] [--samples 1] [--repeats 3] [--against FOLDER]
    python bench/stages.py --models lstm20 lstm500 gru20 gru500 --until end [--target TOSA-1.0+INT]

The sides take turns, each in a process of its own: the first compile of a model warms up, and the least seconds of the
others count. `--until` names the first stage that is left out; `end` compiles everything, and `vela` is then what Vela
takes in its own process, beside the seconds of the stage `compile`: none for a TOSA target.
`encoder8` has eight layers, `lstm500` is an LSTM of 500 steps with 64 hidden numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

MODELS = ("mobilenet_v2", "encoder_layer", "encoder8")
TARGET = "ethos-u55-128"
Sample = tuple[torch.Tensor, ...]
Seconds = dict[str, float]


class Enough(BaseException):
    """Ends a compile."""


def load(name: str, count: int) -> tuple[torch.nn.Module, list[Sample]]:
    """A model of the zoo, or one of those that are named after their size, with samples."""
    kind, size = re.fullmatch(r"(encoder|lstm|gru|)(\d*).*", name).groups()
    torch.manual_seed(0)
    if kind and size:
        if kind == "encoder":
            layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            model: torch.nn.Module = torch.nn.TransformerEncoder(layer, int(size))
            steps = 32
        else:
            model, steps = getattr(torch.nn, kind.upper())(64, 64, batch_first=True), int(size)
        return model.eval(), [(torch.randn(1, steps, 64),) for _ in range(count)]
    from tosaic import zoo

    model, _ = zoo.load(name)
    return model, [x if isinstance(x, tuple) else (x,) for x in zoo.inputs(name, count, 1)]


def measure(model: torch.nn.Module, samples: list[Sample], target: str, until: str) -> Seconds:
    """The CPU seconds of each stage of one compile."""
    import tosaic
    from tosaic.tools import vela

    marks: list[tuple[str, float]] = []

    def mark(stage: str) -> None:
        if ":" not in stage:
            marks.append((stage, time.process_time()))
            if stage == until:
                raise Enough

    vela.CACHE.clear()
    before = vela.worker().cpu_seconds if until == "end" else 0.0
    try:
        tosaic.compile(model, samples[0], target, calibration=samples, progress=mark)
        marks.append(("end", time.process_time()))
    except Enough:
        pass
    found = {name: end - start for (name, start), (_, end) in itertools.pairwise(marks)}
    if until == "end":
        found["vela"] = vela.worker().cpu_seconds - before
    return found


def measure_all(models: list[str], count: int, repeats: int, target: str, until: str) -> dict[str, list[Seconds]]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, list[Seconds]] = {}
    for name in models:
        model, samples = load(name, count)
        found[name] = [measure(model, samples, target, until) for _ in range(repeats + 1)][1:]
    return found


def run_side(folder: Path, options: argparse.Namespace) -> dict[str, list[Seconds]]:
    """Measure the checkout in a folder, in a process of its own."""
    arguments = [sys.executable, __file__, "--side", "--repeats", "1", "--samples", str(options.samples)]
    arguments += ["--target", options.target, "--until", options.until, "--models", *options.models]
    done = subprocess.run(
        arguments, env=os.environ | {"PYTHONPATH": str(folder / "src")}, stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def report(folders: list[Path], options: argparse.Namespace) -> None:
    sides: list[dict[str, list[Seconds]]] = [{} for _ in folders]
    for _ in range(options.repeats):
        for side, folder in zip(sides, folders, strict=True):
            for name, found in run_side(folder, options).items():
                side.setdefault(name, []).extend(found)
    for name in options.models:
        best = [{stage: min(s[stage] for s in side[name]) for stage in side[name][0]} for side in sides]
        for stage in dict.fromkeys(stage for one in best for stage in one):
            seconds = [one.get(stage) for one in best]
            row = "".join("         -" if s is None else f"{s:10.3f}" for s in seconds)
            both = len(seconds) == 2 and None not in seconds
            print(f"{name:16} {stage:10} {row}" + (f"   ratio {seconds[0] / seconds[1]:5.2f}" if both else ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--until", default="compile")
    parser.add_argument("--against", type=Path, help="another checkout; a ratio is ours over its")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure_all(options.models, options.samples, options.repeats, options.target, options.until)))
        return 0
    own = Path(__file__).resolve().parent.parent
    report([own] if options.against is None else [own, options.against.resolve()], options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
