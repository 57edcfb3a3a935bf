"""MobileNetV2 for VGF, in float and in int8, side by side with the peer: CPU seconds from nn.Module to .pte.

Every compile runs in a process of its own, the sides in turn. Both files then run on Vulkan, where that is usable, and
are judged against the float model.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import verdicts
from clock import Clock
from run import TOOLS, ChildFailed, describe_machine, last_words, make_environment
from table import write_table

HERE = Path(__file__).resolve().parent
SCHEMA = "tosaic-bench-vgf/1"
MODEL = "mobilenet_v2"
PRECISIONS = ("float", "int8")
SIDES = {"front": "ours, high-level API", "door": "ours, ExecuTorch API", "peer": "peer"}
#: The most that the high-level API may take of the peer's CPU seconds.
GOAL = 0.15
CALIBRATION, EVALUATION = 8, 4
TIMEOUT = 3600.0
TITLES = ("precision", "figure", *SIDES.values(), "ExecuTorch API / peer", "high-level API / peer")
FIGURES = {
    "seconds": ("nn.Module to .pte, CPU seconds", "{:.2f}"),
    "converter": ("of that the model converter", "{:.2f}"),
    "pte_bytes": (".pte, bytes", "{:,}"),
    "delegates": ("delegates", "{}"),
    "cpu_ops": ("CPU operators", "{}"),
    "sqnr": ("SQNR against float on Vulkan, dB", "{:.1f}"),
}


def converter_seconds() -> float:
    """CPU seconds of the children that have ended: on both sides the model converter is the only one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def open_front() -> Callable[..., bytes]:
    import tosaic

    def compile_model(model: Any, inputs: Any, samples: Any) -> bytes:
        return tosaic.compile(model, inputs, "vgf", quantized=samples is not None, calibration=samples).pte

    return compile_model


def open_door(package: str) -> Callable[..., bytes]:
    """ExecuTorch's own way, with the classes of either side: only the names of the packages differ."""
    importlib.import_module("executorch.kernels.quantized")
    import torch
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    vgf, quantizers = (importlib.import_module(f"{package}.{name}") for name in ("vgf", "quantizer"))

    def compile_model(model: Any, inputs: Any, samples: Any) -> bytes:
        spec = vgf.VgfCompileSpec()
        program = torch.export.export(model, inputs)
        if samples is not None:
            quantizer = quantizers.VgfQuantizer(spec)
            quantizer.set_global(quantizers.get_symmetric_quantization_config())
            with torch.no_grad():
                prepared = prepare_pt2e(program.module(check_guards=False), quantizer)
                for sample in samples:
                    prepared(*sample)
                program = torch.export.export(convert_pt2e(prepared), inputs)
        config = EdgeCompileConfig(_check_ir_validity=False)
        edge = to_edge_transform_and_lower(program, partitioner=[vgf.VgfPartitioner(spec)], compile_config=config)
        return bytes(edge.to_executorch().buffer)

    return compile_model


def compile_here(side: str, precision: str, pte: Path) -> dict[str, float]:
    """In the child: one compile, and what it took."""
    packages = {"door": "tosaic", "peer": "executorch.backends.arm"}
    compile_model = open_front() if side == "front" else open_door(packages[side])
    from side import CALIBRATION_SEED, Tiny, tiny_inputs

    from tosaic import zoo

    samples = zoo.inputs(MODEL, CALIBRATION, CALIBRATION_SEED) if precision == "int8" else None
    compile_model(Tiny().eval(), tiny_inputs(), [tiny_inputs()] if samples else None)
    model, inputs = zoo.load(MODEL)
    clock = Clock(converter_seconds)
    gc.collect()
    before = converter_seconds()
    with clock.stage("seconds"):
        data = compile_model(model, inputs, samples)
    pte.write_bytes(data)
    return {**clock.seconds, "converter": converter_seconds() - before}


def run_child(side: str, precision: str, pte: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="tosaic-bench-") as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        arguments = [sys.executable, str(HERE / "vgf.py"), "--child", side, precision, str(pte), str(out)]
        # The peer looks for the model converter on the path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        with log.open("wb") as file:
            done = subprocess.run(
                arguments,
                cwd=folder,
                env=make_environment() | {"PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT,
                check=False,
            )
        if done.returncode:
            raise ChildFailed(f"{side}, {precision}: {last_words(log.read_text('utf-8', 'replace'))}")
        return json.loads(out.read_text())


def judge(pte: bytes) -> dict[str, float | None]:
    """What is in a file, and how close its numbers on Vulkan are to the float model's."""
    import torch
    from evaluate import describe_file
    from side import EVALUATION_SEED

    from tosaic import zoo
    from tosaic.engines import vulkan

    file = describe_file(pte)
    found: dict[str, float | None] = {
        "pte_bytes": len(pte),
        "delegates": file["delegates"],
        "cpu_ops": sum(file["cpu_ops"].values()),
        "sqnr": None,
    }
    if vulkan.probe().ok:
        model, _ = zoo.load(MODEL)
        ratios: list[float] = []
        for inputs in zoo.inputs(MODEL, EVALUATION, EVALUATION_SEED):
            with torch.no_grad():
                want = model(*inputs).double().numpy()
            (got,) = vulkan.run(pte, [x.numpy() for x in inputs])
            ratios.append(float(10 * np.log10(np.square(want).sum() / np.square(got - want).sum())))
        found["sqnr"] = float(np.mean(ratios))
    return found


def measure(repeats: int) -> dict[str, dict[str, dict[str, float | None]]]:
    """precision -> side -> figures; the least seconds of the repeats count."""
    rows: dict[str, dict[str, dict[str, float | None]]] = {}
    with tempfile.TemporaryDirectory(prefix="tosaic-bench-") as folder:
        for precision in PRECISIONS:
            taken: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
            for _ in range(repeats):
                for side in SIDES:
                    taken[side].append(run_child(side, precision, Path(folder) / f"{side}.pte"))
            rows[precision] = {
                side: {
                    **min(runs, key=lambda run: run["seconds"]),
                    **judge((Path(folder) / f"{side}.pte").read_bytes()),
                }
                for side, runs in taken.items()
            }
    return rows


def make_lines(rows: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> list[tuple[str, ...]]:
    """The cells of the table, with ratios of seconds."""
    lines: list[tuple[str, ...]] = []
    for precision, sides in rows.items():
        for key, (title, form) in FIGURES.items():
            values = [sides[side][key] for side in SIDES]
            cells = ["-" if value is None else form.format(value) for value in values]
            front, door, peer = values
            ratios = ["", ""]
            if key == "seconds" and front is not None and door is not None and peer:
                ratios = [f"{door / peer:.3f}", f"{front / peer:.3f}"]
            lines.append((precision, title, *cells, *ratios))
    return lines


def write_markdown(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    tools = ", ".join(f"{name} {version}" for name, version in report["tools"].items())
    parts = [
        "# VGF: comparison with executorch.backends.arm",
        f"MobileNetV2 (random weights), written by `bench/vgf.py`. {machine['cpu']}, {machine['cores']} cores, Python "
        f"{machine['python']}. {tools}.",
        write_table(TITLES, make_lines(report["rows"])),
        "CPU seconds with the model converter's, one thread; every compile in a separate process, the sides in turn, "
        f"the least of {report['repeats']}. Interpreter, imports and a tiny model that brings in late imports are left "
        f"out on all sides. int8 is calibrated with the same {CALIBRATION} inputs; both files run on Vulkan with "
        f"{EVALUATION} others.",
    ]
    return "\n\n".join(parts) + "\n"


def check_goals(rows: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> list[dict[str, Any]]:
    """The seconds of the high-level API, over the peer's."""
    goals: list[dict[str, Any]] = []
    for precision, sides in rows.items():
        front, _, peer = (sides[side]["seconds"] for side in SIDES)
        ratio = front / peer if front is not None and peer else None
        met = None if ratio is None else ratio <= GOAL
        goals.append({"precision": precision, "goal": f"at most {GOAL} of the peer's", "measured": ratio, "met": met})
    return goals


def write_pages(report: Mapping[str, Any], out: Path) -> None:
    (out / "vgf.md").write_text(write_markdown(report))
    verdicts.save("vgf", check_goals(report["rows"]), out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2, help="compiles per side")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bench", help="folder for table and JSON")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        side, precision, pte, out = given.child
        Path(out).write_text(json.dumps(compile_here(side, precision, Path(pte))))
        return
    report = {
        "schema": SCHEMA,
        "model": MODEL,
        "repeats": given.repeats,
        "machine": describe_machine(),
        "tools": {name: importlib.metadata.version(name) for name in (*TOOLS, "ai-ml-sdk-model-converter")},
        "rows": measure(given.repeats),
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "vgf.json").write_text(json.dumps(report, indent=1) + "\n")
    write_pages(report, given.out)
    sys.stdout.write(write_markdown(report))


if __name__ == "__main__":
    main()
