"""The peer's own .pte files, run unchanged: does the simulated NPU compute what the peer's TOSA says?

Each file is made by the peer in a process of its own, together with the .tosa of every delegate. Here the file is run
as it is; every delegate it calls is compared with the TOSA reference model, bit for bit, on what the program gives it
and on random numbers over the full range.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluate import run_tosa
from run import ChildFailed, last_words, make_environment

from tosaic import zoo
from tosaic.core.targets import ACCELERATORS
from tosaic.engines import engine
from tosaic.engines.interpreter import Method, Npu
from tosaic.formats import pte
from tosaic.formats.blob import BACKEND
from tosaic.formats.npy import Array
from tosaic.formats.tensors import TensorType

HERE = Path(__file__).resolve().parent
MODELS = ("add", "deep_autoencoder", "ds_cnn", "encoder_layer", "mobilenet_v2", "resnet8")
TARGETS = ("ethos-u55-128", "ethos-u85-256")
CALIBRATION = 2
#: Other inputs than those of the calibration.
SEED = 1000


def make_here(model: str, target: str, folder: Path) -> None:
    """In the child: compile with the peer, and keep each delegate's .tosa under the hash of its blob."""
    from side import Job, go_through_door
    from side_peer import MADE, SIDE

    job = Job(model, ACCELERATORS[target], "executorch", CALIBRATION, 0)
    lowered = go_through_door(SIDE, job, *job.load(), job.calibration_inputs())
    (folder / "model.pte").write_bytes(lowered.pte)
    for blob, tosa in MADE.items():
        (folder / f"{hashlib.sha256(blob).hexdigest()}.tosa").write_bytes(tosa)


def make(model: str, target: str, folder: Path) -> None:
    """The peer's files for a model, made by a child."""
    arguments = [sys.executable, str(HERE / "peer_pte.py"), "--make", model, target, str(folder)]
    done = subprocess.run(
        arguments, cwd=folder, env=make_environment(), capture_output=True, text=True, timeout=3600, check=False
    )
    if done.returncode:
        raise ChildFailed(last_words(done.stderr))


class Compare:
    """Runs a delegate on the NPU and on the reference model, and keeps how much was equal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.npu = folder, Npu()
        self.rows: list[dict[str, int]] = []

    def __call__(
        self, blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        tosa = (self.folder / f"{hashlib.sha256(blob).hexdigest()}.tosa").read_bytes()
        results = [self._compare(tosa, blob, specs, given, outputs) for given in (inputs, list(_draw(inputs)))]
        return results[0]

    def _compare(
        self,
        tosa: bytes,
        blob: bytes,
        specs: Sequence[tuple[str, bytes]],
        inputs: list[Array],
        outputs: list[TensorType],
    ) -> list[Array]:
        got = self.npu(blob, specs, inputs, outputs)
        want = run_tosa(tosa, tuple(torch.from_numpy(array) for array in inputs))
        pairs = [(a.reshape(-1), b.reshape(-1).numpy()) for a, b in zip(got, want, strict=True)]
        wrong = sum(int(np.count_nonzero(a != b)) for a, b in pairs)
        self.rows.append({"elements": sum(a.size for a, _ in pairs), "wrong": wrong})
        return got


def _draw(inputs: list[Array]) -> Iterator[Array]:
    """Numbers over the full range of each input's type; 16 bits of int32, whose sums would overflow."""
    rng = np.random.default_rng(SEED)
    for array in inputs:
        bits = min(8 * array.dtype.itemsize, 16)
        yield rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), array.shape).astype(array.dtype)


def check(model: str, target: str, folder: Path) -> dict[str, Any]:
    """Run a file of the peer's as it is, and compare its delegates."""
    data = (folder / "model.pte").read_bytes()
    compare = Compare(folder)
    method = Method(pte.read(data), executors={BACKEND: compare})
    given = [x.numpy() for x in zoo.inputs(model, 1, SEED)[0]]
    outputs = method.run(given)
    plain = engine.run(data, given)
    same = all(np.array_equal(a, b) for a, b in zip(outputs, plain.outputs, strict=True))
    return {
        "model": model,
        "target": target,
        "engine": plain.engine,
        "delegates": sum(d.id == BACKEND for d in method.plan.delegates),
        "runs": len(compare.rows),
        "elements": sum(row["elements"] for row in compare.rows),
        "wrong": sum(row["wrong"] for row in compare.rows),
        "ok": same and bool(compare.rows) and not any(row["wrong"] for row in compare.rows),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--make", nargs=3, metavar=("MODEL", "TARGET", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--models", default=",".join(MODELS), help="names of the zoo with commas between")
    parser.add_argument("--targets", default=",".join(TARGETS), help="accelerators with commas between")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "peer_pte.json")
    given = parser.parse_args(arguments)
    if given.make:
        make_here(given.make[0], given.make[1], Path(given.make[2]))
        return 0
    rows: list[dict[str, Any]] = []
    for model in given.models.split(","):
        for target in given.targets.split(","):
            with tempfile.TemporaryDirectory(prefix="tosaic-peer-") as name:
                make(model, target, Path(name))
                rows.append(check(model, target, Path(name)))
            print(
                "{model:<18}{target:<16}{delegates:>3} delegates {elements:>9} elements {wrong:>3} wrong".format(
                    **rows[-1]
                )
            )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
