"""`make bench`: Tosaic side by side with the peer, each compile in a process of its own."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
import models
import plot
import table
import verdicts
from figures import Column
from rich.console import Console
from rich.table import Table

from tosaic.core.targets import ACCELERATORS

HERE = Path(__file__).resolve().parent
#: What `make bench` measures; `--models` takes any of `models.NAMES`.
MODELS = (
    "mobilenet_v2",
    "mobilenet_v3_small",
    "resnet18",
    "efficientnet_lite0",
    "resnet8",
    "ds_cnn",
    "mobilenet_v1",
    "deep_autoencoder",
    "unet",
    "espcn",
    "encoder_layer",
    "vit",
)
QUICK = ("ds_cnn", "resnet8", "encoder_layer")
TARGETS = ("ethos-u55-128", "ethos-u85-256")
CHILDREN: dict[Column, tuple[str, str]] = {
    "door": ("ours", "executorch"),
    "front": ("ours", "front"),
    "peer": ("peer", "executorch"),
}
#: file -> figure, column, title
PLOTS: dict[str, tuple[str, Column, str]] = {
    "cycles": ("cycles", "front", "NPU cycles, ours / peer's"),
    "compile": ("quantized_to_pte", "front", "CPU seconds from quantized program to .pte, ours / peer's"),
}
TOOLS = ("tosaic", "torch", "torchao", "executorch", "ethos-u-vela", "tosa-tools", "numpy")
CHILD_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Options:
    models: tuple[str, ...]
    targets: tuple[str, ...]
    repeats: int
    calibration: int
    evaluation: int
    out: Path
    add: bool


class ChildFailed(Exception):
    """A side ended with an error; its last words."""


def read_options(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="names with commas between, or `all`")
    parser.add_argument("--targets", default=",".join(TARGETS), help="accelerators with commas between")
    parser.add_argument("--repeats", type=int, help="compiles per side, the least seconds count (2)")
    parser.add_argument("--quick", action="store_true", help="three small models, one repeat, few evaluation inputs")
    parser.add_argument("--add", action="store_true", help="keep the rows of other models that results.json has")
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "docs" / "bench", help="folder for table, plots and JSON"
    )
    given = parser.parse_args(arguments)
    usual = QUICK if given.quick else MODELS
    chosen = models.names() if given.models == "all" else given.models.split(",") if given.models else usual
    targets = given.targets.split(",")
    for name, known in ((n, k) for names, k in ((chosen, models.names()), (targets, [*ACCELERATORS])) for n in names):
        if name not in known:
            parser.error(f"`{name}` is not one of {', '.join(known)}")
    repeats = given.repeats or (1 if given.quick else 2)
    return Options(tuple(chosen), tuple(targets), repeats, 8, 2 if given.quick else 16, given.out, given.add)


def run_child(model: str, target: str, column: Column, options: Options, last: bool) -> dict[str, Any]:
    """What one compile in a process of its own has measured. Only the last of the repeats evaluates its result."""
    side, door = CHILDREN[column]
    with tempfile.TemporaryDirectory(prefix="tosaic-bench-") as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        arguments = [sys.executable, str(HERE / "child.py"), f"--side={side}", f"--door={door}", f"--model={model}"]
        arguments += [f"--target={target}", f"--calibration={options.calibration}", f"--out={out}"]
        arguments += [f"--evaluation={options.evaluation if last else 0}"]
        with log.open("wb") as file:
            done = subprocess.run(
                arguments,
                cwd=folder,
                env=make_environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=CHILD_TIMEOUT,
                check=False,
            )
        if done.returncode:
            raise ChildFailed(f"exit code {done.returncode}: {last_words(log.read_text('utf-8', 'replace'))}")
        return json.loads(out.read_text())


def make_environment() -> dict[str, str]:
    """One thread and one hash seed for both sides; tosaic is that of this checkout."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONHASHSEED": "0", "PYTHONPATH": str(HERE.parent / "src")}


def last_words(log: str) -> str:
    """The last line of a log, without the folders of this machine."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return re.sub(r"(?:/[^/\s'\"]+)+/", "", lines[-1])[:300] if lines else "no message"


def measure(options: Options, console: Console) -> Iterator[list[dict[str, Any]]]:
    """The rows of one model after the other; the sides take turns, so that a busy minute meets both."""
    for model in options.models:
        rows: list[dict[str, Any]] = []
        for target in options.targets:
            found: dict[Column, list[dict[str, Any]]] = {column: [] for column in CHILDREN}
            errors: dict[Column, str] = {}
            for index in range(options.repeats):
                for column in CHILDREN:
                    if column in errors:
                        continue
                    title = f"{model}, {target}, {figures.COLUMNS[column]}"
                    console.print(f"{title}: {index + 1} of {options.repeats}", style="dim")
                    try:
                        last = index == options.repeats - 1
                        found[column].append(run_child(model, target, column, options, last))
                    except ChildFailed as error:
                        errors[column] = str(error)
                        console.print(f"{title}: {error}", style="red")
            for column, repeats in found.items():
                failed = column in errors
                make = figures.make_failed_row if failed else figures.make_row
                rows.append(make(model, target, column, errors[column] if failed else repeats))
        yield rows


def read_rows(options: Options) -> list[dict[str, Any]]:
    """The rows of an earlier run that this one adds to."""
    file = options.out / "results.json"
    if not options.add or not file.exists():
        return []
    rows = json.loads(file.read_text())["rows"]
    return [row for row in rows if row["model"] not in options.models or row["target"] not in options.targets]


def describe_machine() -> dict[str, Any]:
    """What matters for a time, and nothing that names the machine."""
    cpu = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", cpu.read_text(), re.MULTILINE) if cpu.exists() else []
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def print_report(report: dict[str, Any], console: Console) -> None:
    for (model, target), columns in figures.group(report["rows"]).items():
        console.print(_make_table(f"{model}, {target}", table.TITLES, table.make_lines(columns), numbers=True))
        for note in table.make_notes(columns):
            console.print(f"  {note}")
    checked = figures.check_goals(report["rows"])
    console.print(_make_table("goals", table.GOAL_TITLES, table.make_goal_lines(checked)))


def _make_table(title: str, titles: Sequence[str], lines: Sequence[Sequence[str]], numbers: bool = False) -> Table:
    made = Table(title=title)
    for index, one in enumerate(titles):
        made.add_column(one, justify="right" if numbers and index else "left")
    for line in lines:
        made.add_row(*line)
    return made


def write(rows: list[dict[str, Any]], load_before: float, options: Options) -> dict[str, Any]:
    """Table, plots and JSON of all rows so far."""
    conditions = {
        "repeats": options.repeats,
        "calibration": options.calibration,
        "evaluation": options.evaluation,
        "threads": 1,
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
    }
    tools = {name: importlib.metadata.version(name) for name in TOOLS}
    report = figures.make_report(rows, describe_machine(), tools, conditions)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    write_pages(report, options.out)
    return report


def write_pages(report: dict[str, Any], out: Path) -> None:
    """Pages, plots and goals of what was measured."""
    (out / "README.md").write_text(table.write_markdown(report))
    (out / "models.md").write_text(table.write_models(report))
    for name, (figure, column, title) in PLOTS.items():
        (out / f"{name}.svg").write_text(plot.draw(report, figure, column, title))
    means = [mean for mean in report["means"] if mean["limit"] is not None]
    verdicts.save("compare", [*figures.check_goals(report["rows"]), *means], out)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    load_before, rows = os.getloadavg()[0], read_rows(options)
    # Written after every model: it takes long, and whoever stops it keeps what there is.
    for found in measure(options, Console(stderr=True)):
        rows += found
        report = write(rows, load_before, options)
    print_report(report, Console(width=None if sys.stdout.isatty() else 160))


if __name__ == "__main__":
    main()
