"""MobileNetV2 by the other road, Keras -> TFLite -> Vela: what its NPU cycles are, for the same Vela and options.

TensorFlow lives in an environment of its own in the cache folder and only writes the .tflite; Vela is ours. The weights
are random: cycles hardly depend on them.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import verdicts
from data import Missing
from run import TARGETS, last_words

from tosaic.core.paths import find_cache_folder
from tosaic.core.targets import ACCELERATORS, Target
from tosaic.npu.perf import estimate
from tosaic.tools.vela_options import BUNDLED_INI, VelaOptions

HERE = Path(__file__).resolve().parent
TENSORFLOW = "tensorflow-cpu==2.21.0"
TIMEOUT = 3600.0
MODEL = "mobilenet_v2"
#: Ours with the same borders may be so much above it.
MOST = 1.01
#: Keras ends in a softmax; torchvision's MobileNetV2, which the other rows are about, does not.
ENDINGS = ("logits", "softmax")
#: Run by the Python that has TensorFlow: the ending and where to write to.
MAKE = """
    import sys
    import keras, numpy as np, tensorflow as tf

    ending, path = sys.argv[1:]
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2(
        input_shape=(224, 224, 3), weights=None, classifier_activation=None if ending == "logits" else ending
    )
    random = np.random.default_rng(0)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [random.standard_normal((1, 224, 224, 3)).astype(np.float32)] for _ in range(4)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    open(path, "wb").write(converter.convert())
"""


def run(arguments: Sequence[str | Path], what: str) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [str(a) for a in arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode:
        raise Missing(f"{what} failed (exit code {done.returncode}): {last_words(done.stderr or done.stdout)}")


def find_tensorflow() -> Path:
    """The Python of the environment that has TensorFlow; made by the first call."""
    folder = find_cache_folder() / TENSORFLOW.replace("==", "-")
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        run([sys.executable, "-m", "venv", "--clear", folder], "making an environment")
        run([python, "-m", "pip", "install", "-q", "--no-compile", TENSORFLOW], f"installing {TENSORFLOW}")
        done.touch()
    return python


def measure(tflite: Path, target: Target) -> dict[str, Any]:
    """What Vela makes of a .tflite: its own estimate, and ours from the commands."""
    options = VelaOptions(target.name, target.system_config, target.memory_mode)
    with tempfile.TemporaryDirectory(prefix="tosaic-tflite-") as folder:
        run(
            [
                *(sys.executable, "-m", "ethosu.vela", tflite, "--output-dir", folder, "--output-format=raw"),
                *("--accelerator-config", target.name, "--config", BUNDLED_INI),
                *("--system-config", target.system_config, "--memory-mode", target.memory_mode),
            ],
            "Vela",
        )
        (summary,) = Path(folder).glob("*_summary_*.csv")
        (row,) = csv.DictReader(summary.read_text().splitlines())
        (raw,) = Path(folder).glob("*.npz")
        commands = np.load(raw, allow_pickle=False)["cmd_data"].tobytes()
    return {
        "cycles": int(float(row["cycles_total"])),
        "cycles_commands": estimate(commands, options).cycles,
        "sram_bytes": int(float(row["sram_memory_used"]) * 1024),
        "macs": int(float(row["nn_macs"])),
    }


def compare(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> list[dict[str, Any]]:
    """Beside each row that ends as torchvision's model does: ours with int8 and channels last on its borders."""
    figures = {
        row["target"]: row["figures"]
        for row in results["rows"]
        if row["model"] == MODEL and row["column"] == "front" and not row["error"]
    }
    found: list[dict[str, Any]] = []
    for row in rows:
        ours = figures.get(row["target"])
        if row["ending"] == "logits" and ours:
            for name in ("cycles", "cycles_commands"):
                ratio = ours[f"codes_{name}"] / row[name]
                found.append({"target": row["target"], "figure": name, "ratio": ratio, "met": ratio <= MOST})
    return found


def write_markdown(rows: Sequence[dict[str, Any]], ratios: Sequence[dict[str, Any]]) -> str:
    def write(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *lines))

    measured = [
        [row["target"], row["ending"], f"{row['cycles']:,}", f"{row['cycles_commands']:,}", f"{row['sram_bytes']:,}"]
        for row in rows
    ]
    titles = {"cycles": "Vela's estimate", "cycles_commands": "from the commands"}
    compared = [[r["target"], titles[r["figure"]], f"{r['ratio']:.3f}"] for r in ratios]
    parts = [
        "# MobileNetV2 by the other road: Keras, TFLite, Vela",
        f"Written by `bench/tflite.py`: Keras' MobileNetV2 at 224x224, made int8 by {TENSORFLOW} with int8 inputs and "
        "outputs, compiled by the same Vela with the same options. Keras ends in a softmax; torchvision's model does "
        "not, so it is compared with the one without.",
        write(["target", "ending", "cycles, Vela", "cycles, commands", "SRAM, bytes"], measured),
        'Tosaic with `io="int8", layout="nhwc"` ([every figure](models.md)) over TFLite; below 1 is better:',
        write(["target", "cycles", "ratio"], compared),
    ]
    return "\n\n".join(parts) + "\n"


def write_pages(report: dict[str, Any], out: Path) -> None:
    (out / "tflite.md").write_text(write_markdown(report["rows"], report["ratios"]))
    verdicts.save("tflite", [{"goal": f"at most {MOST:g} of TFLite's", **ratio} for ratio in report["ratios"]], out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS), help="accelerators with commas between")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bench", help="where results.json is")
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    try:
        python = find_tensorflow()
        with tempfile.TemporaryDirectory(prefix="tosaic-tflite-") as folder:
            for ending in ENDINGS:
                path = Path(folder) / f"{ending}.tflite"
                run([python, "-c", textwrap.dedent(MAKE), ending, path], "TensorFlow")
                for target in given.targets.split(","):
                    rows.append({"ending": ending, "target": target, **measure(path, ACCELERATORS[target])})
    except Missing as error:
        print(f"TFLite -> Vela was not measured: {error}", file=sys.stderr)
        return 0
    results = given.out / "results.json"
    ratios = compare(rows, json.loads(results.read_text())) if results.exists() else []
    tools = {"tensorflow": TENSORFLOW, "ethos-u-vela": importlib.metadata.version("ethos-u-vela")}
    report = {"schema": "tosaic-tflite/1", "model": MODEL, "tools": tools, "rows": rows, "ratios": ratios}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "tflite.json").write_text(json.dumps(report, indent=1) + "\n")
    write_pages(report, given.out)
    print(write_markdown(rows, ratios))
    return 0 if all(r["met"] for r in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
