"""TOSA from end to end: lower a model to TOSA, in float and in int8, and run the .tosa in the TOSA reference model.

    python examples/arm_tosa_e2e.py [MODEL ...]

MODEL is a built-in model of Tosaic (`tosaic compile --help`). The .tosa files are written to out/arm_tosa_e2e.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tosaic.testing import Tester
from tosaic.zoo import load

FOLDER = Path("out") / "arm_tosa_e2e"
MODELS = ("add", "softmax", "linear")


def run(name: str) -> None:
    model, inputs = load(name)
    for flavor in ("tosa_FP", "tosa_INT"):
        program = Tester(model, inputs).check(flavor, delegates=None)
        path = FOLDER / f"{name}_{flavor}.tosa"
        path.write_bytes(program.tosa())
        with torch.no_grad():
            wanted = model(*inputs)
        distance = abs(torch.from_numpy(program.run(*inputs)[0]) - wanted).max().item()
        print(f"{name:<14} {flavor:<9} {path.stat().st_size:>9,} bytes  at most {distance:.2g} from torch")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or MODELS:
        run(name)
