"""Networks in each precision: accuracy, cycles and memory of int8, a16w8 and a8w4 next to float.

Each program is compiled here with the high-level API. All items run on the simulated NPU, some also in the TOSA
reference model, which must give the same bits, and all of them in torch's quantized graph, which is the measure of the
program.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verdicts
from accuracy import compare, run_float
from data import Missing
from rich.console import Console
from run import TARGETS, TOOLS, describe_machine
from sentences import make_sentence_study
from studies import STUDIES, Array, Inputs, Study, make_zoo_study, run_each
from table import write_table
from torch import nn

import tosaic
from tosaic.api.prepare import quantize
from tosaic.core.errors import TosaicError
from tosaic.driver.exported import export
from tosaic.quantization.precisions import PRECISIONS, Precision

HERE = Path(__file__).resolve().parent
SCHEMA = "tosaic-precisions/1"
#: Goals: decibels below torch's quantized graph, the part of float's decisions of a voice detector, and the part of the
#: bytes of int8 that 4-bit weights need.
DECIBELS, DECISIONS, BYTES = 0.5, 0.97, 0.62


class Recurrent(nn.Module):
    """An LSTM and a layer that reads its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


def load_recurrent() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Recurrent().eval()


def draw_sequences(count: int, seed: int) -> list[Inputs]:
    random = torch.Generator().manual_seed(seed)
    return [(torch.randn(1, 12, 16, generator=random),) for _ in range(count)]


NETS: Mapping[str, Study] = {
    study.name: study
    for study in (
        make_zoo_study("mobilenet_v2", "MobileNetV2, random weights", 8),
        STUDIES["efficientnet_labeled"],
        make_sentence_study(),
        STUDIES["silero_whole"],
        make_zoo_study("encoder_layer", "transformer encoder layer, random weights", 16),
        Study(
            "lstm",
            "LSTM of 32 units over 12 steps and a linear layer, random weights",
            "16 random sequences",
            "16 other sequences",
            load_recurrent,
            lambda: draw_sequences(16, 1),
            run_each(lambda: draw_sequences(16, 2)),
            lambda scores: scores[:0],
        ),
        make_zoo_study("unet", "the zoo's U-Net, random weights", 8),
    )
}


def run_torch(study: Study, precision: str) -> list[Array]:
    """The scores of torch's quantized graph."""
    samples = study.calibration()
    exported = export(study.load(), samples[0])
    module = quantize(exported, samples, Precision(precision).make_quantizer(exported.graph, "float"))

    def run(inputs: Inputs) -> list[Array]:
        with torch.no_grad():
            found = module(*inputs)
        return [y.numpy() for y in (found if isinstance(found, (tuple, list)) else (found,))]

    return list(study.evaluate(run))


def run_program(study: Study, precision: str, target: str, runs: int) -> tuple[list[Array], dict[str, Any]]:
    """The scores of a program on the simulated NPU, and what it needs."""
    samples = study.calibration()
    program = tosaic.compile(study.load(), samples[0], target, precision=precision, calibration=samples)
    session, checked = program.load(), {"runs": 0, "elements": 0, "wrong": 0}

    def run(inputs: Inputs) -> list[Array]:
        found = session.run(*inputs)
        if checked["runs"] < runs:
            wanted = program.run(*inputs, engine="tosa")
            checked["runs"] += 1
            checked["elements"] += sum(y.size for y in found)
            checked["wrong"] += sum(int(np.count_nonzero(a != b)) for a, b in zip(found, wanted, strict=True))
        return found

    scores = list(study.evaluate(run))
    sram = program.memory.list_uses(len(program.pte))["SRAM"]
    estimates = [delegate.artifact.estimate_cycles() for delegate in program.delegates]
    return scores, {
        "pte_bytes": len(program.pte),
        "sram_bytes": sum(size for what, size in sram.items() if what != "the program"),
        "cycles": sum(e.cycles for e in estimates if e is not None),
        "delegates": len(program.delegates),
        "cpu_nodes": [f"{r.op}: {r.why}" for r in program.reasons if not r.is_io],
        "checked": checked,
    }


def measure(study: Study, targets: Sequence[str], runs: int, console: Console) -> dict[str, Any]:
    """All rows of a network; what cannot be compiled is a row with an error."""
    exact, weights = run_float(study)
    model = study.load()
    rows: list[dict[str, Any]] = []
    for precision in PRECISIONS:
        console.print(f"{study.name}: {precision}, torch", style="dim")
        wanted = compare(study, exact, run_torch(study, precision))
        for target in targets:
            console.print(f"{study.name}: {precision}, {target}", style="dim")
            row: dict[str, Any] = {"precision": precision, "target": target, "torch": wanted, "error": None}
            try:
                found, program = run_program(study, precision, target, runs)
                row |= {"program": program, "figures": compare(study, exact, found)}
            except TosaicError as error:
                row["error"] = str(error)
                console.print(f"{study.name}: {precision}, {target}: {error}", style="red")
            rows.append(row)
    return {
        "net": study.name,
        "model": study.model,
        "weights_sha256": weights,
        "measured_on": study.measured_on,
        "calibrated_on": study.calibrated_on,
        "float_bytes": sum(p.numel() * p.element_size() for p in model.state_dict().values()),
        "rows": rows,
        "goals": judge(study.name, rows),
    }


def judge(name: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was promised, for every row."""
    sizes = {
        row["target"]: row["program"]["pte_bytes"] for row in rows if row["precision"] == "int8" and not row["error"]
    }
    goals: list[dict[str, Any]] = []
    for row in rows:
        if row["error"]:
            goals.append(
                {"target": row["target"], "goal": f"{row['precision']}: compiles", "measured": 0, "met": False}
            )
            continue
        program, figures, precision = row["program"], row["figures"], row["precision"]

        def add(goal: str, measured: float, met: bool, target: str = row["target"], precision: str = precision) -> None:
            goals.append({"target": target, "goal": f"{precision}: {goal}", "measured": measured, "met": met})

        add(
            "numbers that differ from the TOSA reference model",
            program["checked"]["wrong"],
            not program["checked"]["wrong"],
        )
        if precision != "a16w8":
            if name == "mobilenet_v2" and precision == "a8w4":
                part = program["pte_bytes"] / sizes[row["target"]]
                add(f"part of int8's bytes, at most {BYTES:g}", part, part <= BYTES)
            continue
        add("delegates", program["delegates"], program["delegates"] == 1)
        add("nodes on the CPU", len(program["cpu_nodes"]), not program["cpu_nodes"])
        difference = figures["sqnr_mean_db"] - row["torch"]["sqnr_mean_db"]
        add(f"mean SQNR against torch's graph, dB, at least -{DECIBELS:g}", difference, difference >= -DECIBELS)
        if name == "silero_whole":
            part = figures["same"] / figures["decisions"]
            add(f"part of float's decisions, at least {DECISIONS:g}", part, part >= DECISIONS)
    return goals


TITLES = (
    *("precision", "target", "SQNR vs. float", "torch's graph", "float's decisions", "right"),
    *("cycles", "SRAM, bytes", "flash, bytes", "delegates; nodes on the CPU"),
)


def write_net(net: Mapping[str, Any]) -> str:
    """One network as Markdown."""
    parts = [
        f"## {net['model']}",
        f"Measured on {net['measured_on']}. Calibrated on {net['calibrated_on']}. Weights `{net['weights_sha256']}`, "
        f"{net['float_bytes']:,} bytes in float.",
        write_table(TITLES, [_write_row(row) for row in net["rows"]]),
    ]
    return "\n\n".join(parts)


def _write_row(row: Mapping[str, Any]) -> list[str]:
    if row["error"]:
        return [row["precision"], row["target"], f"failed: {row['error']}", *[""] * (len(TITLES) - 3)]
    figures, program = row["figures"], row["program"]
    right = f"{figures['right']:,} (float {figures['right_float']:,})" if "right" in figures else ""
    same = f"{figures['same']:,} of {figures['decisions']:,}" if figures["decisions"] else ""
    return [
        *(row["precision"], row["target"], _write_db(figures), _write_db(row["torch"]), same, right),
        *(f"{program['cycles']:,}", f"{program['sram_bytes']:,}", f"{program['pte_bytes']:,}"),
        f"{program['delegates']}; {len(program['cpu_nodes'])}",
    ]


def _write_db(figures: Mapping[str, Any]) -> str:
    return f"{figures['sqnr_mean_db']:.1f} dB"


def write_markdown(report: Mapping[str, Any]) -> str:
    tools = ", ".join(f"{name} {version}" for name, version in report["tools"].items())
    checked = [row["program"]["checked"] for net in report["nets"] for row in net["rows"] if not row["error"]]
    elements, wrong = (sum(one[key] for one in checked) for key in ("elements", "wrong"))
    parts = [
        "# Networks in each precision",
        "Written by `bench/precisions.py`; `precisions.json` beside it has the same figures.",
        "All items run on the simulated NPU. SQNR is that of the scores against the float model, the mean over the "
        "items; next to it that of torch's quantized graph, which the NPU computes in integers. Cycles are estimated "
        "from the commands. SRAM holds activations and buffers, flash the whole .pte. "
        f"{elements:,} numbers were compared with the TOSA reference model, {wrong:,} differ.",
        f"{tools}.",
        *(write_net(net) for net in report["nets"]),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", default=",".join(NETS), help="names with commas between")
    parser.add_argument("--targets", default=",".join(TARGETS), help="accelerators with commas between")
    parser.add_argument("--checked", type=int, default=2, help="runs of each program in the TOSA reference model")
    parser.add_argument("--add", action="store_true", help="keep the other networks that precisions.json has")
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "docs" / "bench", help="folder for the table and JSON"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console(stderr=True)
    file = given.out / "precisions.json"
    earlier = json.loads(file.read_text())["nets"] if given.add and file.exists() else []
    found = {net["net"]: net for net in earlier}
    for name in given.nets.split(","):
        try:
            found[name] = measure(NETS[name], given.targets.split(","), given.checked, console)
        except Missing as error:
            console.print(f"{name} is left out: {error}", style="red")
    nets = [found[name] for name in NETS if name in found]
    report = {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "tools": {name: importlib.metadata.version(name) for name in TOOLS},
        "nets": nets,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    (given.out / "precisions.md").write_text(write_markdown(report))
    goals = [{"net": net["net"], **goal} for net in nets for goal in net["goals"]]
    verdicts.save("precisions", goals, given.out)
    print(write_markdown(report))
    return 0 if all(goal["met"] for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
