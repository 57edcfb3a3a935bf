"""`make accuracy`: what int8 costs on real data, Tosaic side by side with the peer.

Each side compiles in a process of its own, with the same calibration data. Its .pte then runs here as it is, every
delegate on the simulated NPU and the rest by torch; a number of runs is compared with the TOSA reference model, bit for
bit. Everything is paired with the float model on the same inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verdicts
from data import Missing
from evaluate import describe_file, run_tosa
from models import describe_weights
from rich.console import Console
from run import TARGETS, TOOLS, ChildFailed, describe_machine, last_words, make_environment
from studies import STUDIES, Array, Inputs, Study

from tosaic.core.targets import ACCELERATORS
from tosaic.engines.interpreter import Method, Npu
from tosaic.formats import pte
from tosaic.formats.blob import BACKEND
from tosaic.formats.tensors import TensorType

HERE = Path(__file__).resolve().parent
SCHEMA = "tosaic-accuracy/1"
SIDES = ("ours", "peer")
CHILD_TIMEOUT = 3600.0
#: Goals: same class on so many of the 20 photographs, points of accuracy lost, decibels below the peer.
SAME_PHOTOS, POINTS, DECIBELS = 19, 1.0, 0.1


def make_here(study: Study, side: str, target: str, folder: Path) -> None:
    """In the child: compile, and keep each delegate's .tosa under the hash of its blob."""
    from side import Job, go_through_door

    module = importlib.import_module(f"side_{side}")
    samples = study.calibration()
    job = Job(study.name, ACCELERATORS[target], "executorch", len(samples), 0)
    lowered = go_through_door(module.SIDE, job, study.load(), samples[0], samples)
    (folder / "model.pte").write_bytes(lowered.pte)
    for blob, tosa in module.MADE.items():
        (folder / f"{hashlib.sha256(blob).hexdigest()}.tosa").write_bytes(tosa)


def make(study: Study, side: str, target: str, folder: Path) -> None:
    """The files of one side, made by a child: exir finds a backend by its class name."""
    arguments = [sys.executable, str(HERE / "accuracy.py"), "--make", study.name, side, target, str(folder)]
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=make_environment(),
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise ChildFailed(last_words(done.stderr))


class Checked:
    """The simulated NPU, with its first runs compared with the TOSA reference model."""

    def __init__(self, folder: Path, runs: int) -> None:
        self.folder, self.left, self.npu = folder, runs, Npu()
        self.runs = self.elements = self.wrong = 0

    def __call__(
        self, blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        found = self.npu(blob, specs, inputs, outputs)
        if self.runs < self.left:
            tosa = (self.folder / f"{hashlib.sha256(blob).hexdigest()}.tosa").read_bytes()
            wanted = run_tosa(tosa, [torch.from_numpy(array) for array in inputs])
            self.runs += 1
            for a, b in zip(found, wanted, strict=True):
                self.elements += a.size
                self.wrong += int(np.count_nonzero(a.reshape(-1) != b.numpy().reshape(-1)))
        return found


def run_float(study: Study) -> tuple[list[Array], str]:
    """The scores of the float model, and which weights it has."""
    model = study.load()

    def run(inputs: Inputs) -> list[Array]:
        with torch.no_grad():
            found = model(*inputs)
        return [y.numpy() for y in (found if isinstance(found, tuple) else (found,))]

    return list(study.evaluate(run)), describe_weights(model)


def run_file(study: Study, folder: Path) -> tuple[list[Array], dict[str, Any]]:
    """The scores of a compiled file on the simulated NPU, and what is in the file."""
    content = (folder / "model.pte").read_bytes()
    checked = Checked(folder, study.checked)
    method = Method(pte.read(content), executors={BACKEND: checked})
    scores = list(study.evaluate(lambda inputs: method.run([x.numpy() for x in inputs])))
    file = describe_file(content)
    return scores, {
        "delegates": file["delegates"],
        "cpu_compute": file["cpu_compute"],
        "checked_runs": checked.runs,
        "checked_elements": checked.elements,
        "checked_wrong": checked.wrong,
    }


def compare(study: Study, exact: Sequence[Array], found: Sequence[Array]) -> dict[str, Any]:
    """Paired figures: decisions that stayed, what that did to accuracy, and decibels of signal over error per item."""
    wanted, got = (np.concatenate([study.decide(scores) for scores in side]) for side in (exact, found))
    decibels = [_measure_db(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(exact, found, strict=True)]
    finite = [value for value in decibels if value is not None]
    figures: dict[str, Any] = {
        "decisions": int(wanted.size),
        "same": int(np.count_nonzero(wanted == got)),
        "sqnr_mean_db": float(np.mean(finite)) if finite else None,
        "sqnr_lowest_db": min(finite, default=None),
        "largest_error": max(float(np.abs(a - b).max()) for a, b in zip(exact, found, strict=True)),
    }
    if study.labels is not None:
        labels = study.labels()
        figures |= {
            "right": int(np.count_nonzero(got == labels)),
            "right_float": int(np.count_nonzero(wanted == labels)),
            "lost": int(np.count_nonzero((wanted == labels) & (got != labels))),
            "won": int(np.count_nonzero((wanted != labels) & (got == labels))),
        }
    return figures


def _measure_db(exact: Array, found: Array) -> float | None:
    noise = float(((exact - found) ** 2).sum())
    return 10 * float(np.log10(float((exact**2).sum()) / noise)) if noise else None


def measure(study: Study, targets: Sequence[str], console: Console) -> dict[str, Any]:
    """All rows of a study; what fails is a row with an error."""
    console.print(f"{study.name}: float", style="dim")
    exact, weights = run_float(study)
    rows: list[dict[str, Any]] = []
    for target in targets:
        for side in SIDES if study.peer else SIDES[:1]:
            console.print(f"{study.name}: {target}, {side}", style="dim")
            row: dict[str, Any] = {"target": target, "side": side, "error": None}
            with tempfile.TemporaryDirectory(prefix="tosaic-accuracy-") as folder:
                try:
                    make(study, side, target, Path(folder))
                    found, file = run_file(study, Path(folder))
                    row |= {"file": file, "figures": compare(study, exact, found)}
                except ChildFailed as error:
                    row["error"] = str(error)
                    console.print(f"{study.name}: {target}, {side}: {error}", style="red")
            rows.append(row)
    return {
        "study": study.name,
        "model": study.model,
        "weights_sha256": weights,
        "measured_on": study.measured_on,
        "calibrated_on": study.calibrated_on,
        "remark": study.remark,
        "rows": rows,
        "goals": judge(study.name, rows),
    }


def judge(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was promised, for every row of ours."""
    peers = {row["target"]: row.get("figures") for row in rows if row["side"] == "peer"}
    goals: list[dict[str, Any]] = []
    for row in rows:
        if row["side"] != "ours" or row["error"]:
            continue
        figures, target, peer = row["figures"], row["target"], peers.get(row["target"])

        def add(goal: str, measured: float, met: bool, target: str = target) -> None:
            goals.append({"target": target, "goal": goal, "measured": measured, "met": met})

        add(
            "checked runs bit for bit as the TOSA reference model, wrong",
            row["file"]["checked_wrong"],
            not row["file"]["checked_wrong"],
        )
        if name == "efficientnet_labeled":
            add(f"same class on at least {SAME_PHOTOS} of 20", figures["same"], figures["same"] >= SAME_PHOTOS)
        if name == "resnet8_cifar10":
            points = 100 * (figures["right"] - figures["right_float"]) / figures["decisions"]
            add(f"points of accuracy, at least -{POINTS:g}", points, points >= -POINTS)
        if peer:
            difference = figures["sqnr_mean_db"] - peer["sqnr_mean_db"]
            add(f"mean SQNR against the peer's, dB, at least -{DECIBELS:g}", difference, difference >= -DECIBELS)
    return goals


def write_study(study: dict[str, Any]) -> str:
    """One study as Markdown."""
    rows = study["rows"]
    titles = ["", *(f"{row['side']}, {row['target']}" for row in rows)]
    lines = [[title, *(_write_cell(row, write) for row in rows)] for title, write in _LINES.items()]
    lines = [line for line in lines if any(cell != "-" for cell in line[1:])]
    parts = [
        f"## {study['model']}",
        f"Measured on {study['measured_on']}. Calibrated on {study['calibrated_on']}. "
        f"Weights `{study['weights_sha256']}`.",
        *([study["remark"]] if study.get("remark") else []),
        _write_table(titles, lines),
    ]
    return "\n\n".join(parts)


def _write_cell(row: dict[str, Any], write: Any) -> str:
    if row["error"]:
        return "failed"
    try:
        return write(row["file"] | row["figures"])
    except KeyError:  # without labels there is no accuracy
        return "-"


_LINES = {
    "same decision as float": lambda f: (
        f"{f['same']:,} of {f['decisions']:,} ({100 * f['same'] / f['decisions']:.2f} %)"
    ),
    "right, float": lambda f: f"{f['right_float']:,} ({100 * f['right_float'] / f['decisions']:.2f} %)",
    "right, int8": lambda f: f"{f['right']:,} ({100 * f['right'] / f['decisions']:.2f} %)",
    "right before, wrong in int8": lambda f: f"{f['lost']:,}",
    "wrong before, right in int8": lambda f: f"{f['won']:,}",
    "SQNR of the scores, mean": lambda f: f"{f['sqnr_mean_db']:.2f} dB",
    "SQNR of the scores, lowest": lambda f: f"{f['sqnr_lowest_db']:.2f} dB",
    "largest error of a score": lambda f: f"{f['largest_error']:.3g}",
    "delegates; CPU operators inside": lambda f: f"{f['delegates']}; {f['cpu_compute']}",
    "numbers checked with the reference model": lambda f: f"{f['checked_elements']:,} in {f['checked_runs']} runs",
    "of these wrong": lambda f: f"{f['checked_wrong']:,}",
}


def _write_table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *lines))


def write_markdown(report: dict[str, Any]) -> str:
    tools = ", ".join(f"{name} {version}" for name, version in report["tools"].items())
    parts = [
        "# Accuracy of int8 on real data",
        "Written by `bench/accuracy.py`; `accuracy.json` beside it has the same figures. The peer is "
        "`executorch.backends.arm`, as it comes with ExecuTorch.",
        "Both sides calibrate with the same data, and nothing that calibrates is judged. Every int8 figure is that of "
        "the .pte: all items run on the simulated NPU, and the first runs are compared with the TOSA reference model, "
        "bit for bit. Float is torch on the same inputs, and all counts are paired. SQNR is taken over the scores of "
        "one item, in decibels.",
        f"{tools}.",
        *(write_study(study) for study in report["studies"]),
    ]
    return "\n\n".join(parts) + "\n"


def write_pages(report: dict[str, Any], out: Path) -> None:
    (out / "accuracy.md").write_text(write_markdown(report))
    found = [{"study": study["study"], **goal} for study in report["studies"] for goal in study["goals"]]
    verdicts.save("accuracy", found, out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--make", nargs=4, metavar=("STUDY", "SIDE", "TARGET", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--studies", default=",".join(STUDIES), help="names with commas between")
    parser.add_argument("--targets", default=",".join(TARGETS), help="accelerators with commas between")
    parser.add_argument("--add", action="store_true", help="keep the other studies that accuracy.json has")
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "docs" / "bench", help="folder for the table and JSON"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.make:
        name, side, target, folder = given.make
        make_here(STUDIES[name], side, target, Path(folder))
        return 0
    names = given.studies.split(",")
    if unknown := [name for name in names if name not in STUDIES]:
        parser.error(f"no study is named {', '.join(unknown)}; there are {', '.join(STUDIES)}")
    console = Console(stderr=True)
    file = given.out / "accuracy.json"
    earlier = json.loads(file.read_text())["studies"] if given.add and file.exists() else []
    found = {study["study"]: study for study in earlier}
    for name in names:
        try:
            found[name] = measure(STUDIES[name], given.targets.split(","), console)
        except Missing as error:
            console.print(f"{name} is left out: {error}", style="red")
    studies = [found[name] for name in STUDIES if name in found]
    report = {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "tools": {name: importlib.metadata.version(name) for name in TOOLS},
        "studies": studies,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    write_pages(report, given.out)
    print(write_markdown(report))
    return 0 if all(goal["met"] for study in studies for goal in study["goals"]) else 1


if __name__ == "__main__":
    sys.exit(main())
