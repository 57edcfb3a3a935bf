"""The report as text: cells for the terminal, and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from figures import APART, COLUMNS, FIGURES, Figure, compare, group

TITLES = ("CPU seconds and figures", *COLUMNS.values(), "ExecuTorch API / peer", "high-level API / peer")
TITLE_OF = {figure.key: figure.title for figure in FIGURES}


def write_number(kind: str, value: float | None) -> str:
    if value is None:
        return "-"
    match kind:
        case "seconds" | "decibels":
            return f"{value:.2f}"
        case _:
            return f"{value:,.0f}"


def write_ratio(figure: Figure, ratio: float | None) -> str:
    if ratio is None or not figure.ratio:
        return ""
    return f"{ratio:+.2f} dB" if figure.kind == "decibels" else f"{ratio:.3f}"


def make_lines(columns: Mapping[Any, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The cells of one (model, target), a line per figure, then what is left out of all sums."""
    lines: list[tuple[str, ...]] = []
    for part, figures in (("figures", FIGURES), ("apart", APART)):
        for figure in figures:
            found = {c: columns[c][part].get(figure.key) for c in COLUMNS}
            if all(v is None for v in found.values()):
                continue
            peer = found["peer"]
            ratios = [write_ratio(figure, compare(figure, found[c], peer)) for c in ("door", "front")]
            title = figure.title if part == "figures" else f"apart: {figure.title}"
            lines.append((title, *(write_number(figure.kind, v) for v in found.values()), *ratios))
    return lines


def make_notes(columns: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    """Sentences that belong under the table of one (model, target)."""
    notes: list[str] = []
    for column, name in COLUMNS.items():
        row = columns[column]
        if row["error"]:
            notes.append(f"{name}: failed ({row['error']})")
        elif row["figures"]["cpu_compute"]:
            inside = ", ".join(f"`{op}` x{count}" for op, count in row["cpu_ops"].items())
            notes.append(f"{name}: on the CPU {inside}")
        if row["same_commands"] is False:
            notes.append(f"{name}: its blob holds other commands than our Vela makes of its TOSA")
    same = columns["door"]["tosa_sha256"] == columns["front"]["tosa_sha256"]
    notes.append("ours: both APIs produce the same .tosa" if same else "ours: the APIs produce different .tosa files")
    return notes


def make_goal_lines(goals: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The cells of the goals: model, target, figure, door, goal, measured, verdict."""
    verdicts = {True: "met", False: "missed", None: "not measured"}
    return [
        (
            g["model"],
            g["target"],
            TITLE_OF[g["figure"]],
            COLUMNS[g["column"]].removeprefix("ours, "),
            g["goal"],
            "-" if g["measured"] is None else f"{g['measured']:.3f}",
            verdicts[g["met"]],
        )
        for g in goals
    ]


GOAL_TITLES = ("model", "target", "figure", "API", "goal", "measured", "verdict")
#: What the means are called where nobody has read about the stages yet.
_MEANS = {
    "module_to_pte": "CPU seconds, model to .pte",
    "quantized_to_pte": "CPU seconds, quantized model to .pte",
    "peak_memory": "memory of the compile",
    "pte_bytes": "size of the .pte",
    "cycles": "NPU cycles, by Vela",
    "cycles_commands": "NPU cycles, from the commands",
}


def make_mean_lines(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells of the geometric means of the high-level API over the peer, with a column per target."""
    means = {(m["figure"], m["target"]): m for m in report["means"] if m["column"] == "front"}
    targets = _list_targets(report)
    return [
        (title, *(_write_mean(means.get((figure, target))) for target in targets))
        for figure, title in _MEANS.items()
        if any((figure, target) in means for target in targets)
    ]


def _list_targets(report: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(target for _, target in group(report["rows"])))


def _write_mean(mean: Mapping[str, Any] | None) -> str:
    return "-" if mean is None else f"{mean['mean']:.2f} ({len(mean['models'])} models)"


#: The columns of the overview: a figure, and what it is called there.
_OVERVIEW = {
    "module_to_pte": "CPU seconds",
    "cycles": "cycles, by Vela",
    "cycles_commands": "cycles, commands",
    "pte_bytes": ".pte, bytes",
    "delegates": "delegates",
    "cpu_compute": "CPU operators",
    "sqnr": "SQNR, dB",
}
OVERVIEW_TITLES = ("model", *_OVERVIEW.values())


def make_overview_lines(report: Mapping[str, Any], target: str) -> list[tuple[str, ...]]:
    """The cells of one target, a line per model: ours with the high-level API / the peer's."""
    kinds = {figure.key: figure.kind for figure in FIGURES}
    lines: list[tuple[str, ...]] = []
    for (model, at), columns in group(report["rows"]).items():
        if at == target:
            ours, peer = columns["front"]["figures"], columns["peer"]["figures"]
            cells = (
                f"{write_number(kinds[key], ours[key])} / {write_number(kinds[key], peer[key])}" for key in _OVERVIEW
            )
            lines.append((model, *cells))
    return lines


WORSE_TITLES = ("model", "target", "figure", "ours", "peer", "ratio")
#: Where more of a figure is worse, and by how much it is more than noise or rounding.
_WORSE = {"module_to_pte": 1.0, "peak_memory": 1.0, "pte_bytes": 1.005, "cycles": 1.0, "cycles_commands": 1.0}


def make_worse_lines(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells of all figures in which the high-level API is worse than the peer."""
    lines: list[tuple[str, ...]] = []
    for (model, target), columns in group(report["rows"]).items():
        ours, peer = columns["front"]["figures"], columns["peer"]["figures"]
        for figure in FIGURES:
            ratio = compare(figure, ours[figure.key], peer[figure.key])
            if ratio is None:
                continue
            if ratio > _WORSE.get(figure.key, ratio) or (figure.key == "sqnr" and ratio < 0):
                numbers = (write_number(figure.kind, side[figure.key]) for side in (ours, peer))
                lines.append((model, target, figure.title, *numbers, write_ratio(figure, ratio)))
    return lines


def write_markdown(report: Mapping[str, Any]) -> str:
    """The page for readers: what was compared, the means, a line per model, and where ours is worse."""
    machine = report["machine"]
    tools = ", ".join(f"{name} {version}" for name, version in report["tools"].items())
    models = {model for model, _ in group(report["rows"])}
    parts = [
        "# Comparison with executorch.backends.arm",
        f"{len(models)} models, compiled by Tosaic and by ExecuTorch's own Arm backend, `executorch.backends.arm` (the "
        "peer), on the same machine, with the same calibration data and the same Vela. Weights are random except those "
        "of efficientnet_lite0; [accuracy on real data](accuracy.md) is a page of its own.",
        "## At a glance",
        "Tosaic over the peer, geometric means; below 1 is better. Cycles are compared where both run the whole model "
        "on the NPU.",
        write_table(("", *_list_targets(report)), make_mean_lines(report)),
        "![NPU cycles of each model, Tosaic over the peer](cycles.svg)",
        "![CPU seconds from the quantized model to the .pte, Tosaic over the peer](compile.svg)",
    ]
    for target in _list_targets(report):
        parts += [
            f"## {target}",
            "Tosaic (high-level API) / the peer. Cycles are estimates, and say little where"
            " the peer has CPU operators. SQNR is the signal over the error against the float model: more is better.",
            write_table(OVERVIEW_TITLES, make_overview_lines(report, target)),
        ]
    worse = make_worse_lines(report)
    parts += ["## Where Tosaic is worse", write_table(WORSE_TITLES, worse) if worse else "In none of these figures."]
    parts += ["## How it was measured", "\n".join(f"* {line}" for line in _describe(report["conditions"]))]
    parts += [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] >> 20:,} MiB, {machine['system']}, "
        f"Python {machine['python']}. {tools}.",
        "[Every figure of every model](models.md) has the stages of the compile, both APIs of Tosaic, and notes. "
        "`bench/run.py` measured it (`make bench`); `docs/bench/results.json` has every single repeat, and "
        "`bench/results/goals.json` what was promised for each figure.",
    ]
    return "\n\n".join(parts) + "\n"


def write_models(report: Mapping[str, Any]) -> str:
    """The page with all figures of every model and target."""
    parts = [
        "# Every figure of every model",
        "The summary and the method are on the [first page](README.md).",
    ]
    for (model, target), columns in group(report["rows"]).items():
        parts += [f"## {model}, {target}", write_table(TITLES, make_lines(columns))]
        parts.append("\n".join(f"* {note}" for note in make_notes(columns)))
    return "\n\n".join(parts) + "\n"


def write_table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [titles, ["---"] * len(titles), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _describe(conditions: Mapping[str, Any]) -> list[str]:
    return [
        "CPU seconds, children included, one thread. Every compile runs in a separate process, the sides in turn; "
        f"the least of {conditions['repeats']} per stage counts. Interpreter start, imports and a tiny model that "
        "brings in late imports come before the clock starts and are shown apart.",
        f"Both sides calibrate with the same {conditions['calibration']} inputs and are judged on "
        f"{conditions['evaluation']} others: signal over error in decibels against the float model, mean over inputs. "
        "The TOSA reference model computes the delegates, torch everything outside them. Decibels are compared as a "
        "difference.",
        "Cycles from the commands come from `tosaic.npu.perf`, which reads a command stream and the system's "
        "configuration, whichever compiler wrote it.",
        "Cycles, SRAM, commands and weights are those that our Vela makes of each side's TOSA with the same options: "
        "Vela's estimate, not a measurement. Where the commands are not those in the .pte, a note says so. Several "
        "delegates: cycles are added, of SRAM the largest counts.",
        "The backend's own part is what its `ops_to_not_decompose`, `partition` and `preprocess` take, Vela left out; "
        "with the high-level API all but Vela and the last step, which passes a small graph to exir (shown as exir's).",
        "Quantized program to .pte is to_edge_transform_and_lower and to_executorch with the ExecuTorch API, for "
        "which the quantized module must be exported again before; the high-level API takes it as it is. nn.Module to "
        ".pte is the sum of all stages; for the high-level API the single call `tosaic.compile(model)` if it is more.",
        "Peak memory is the largest resident set while compiling, that of the process and of the Vela process added "
        "up, libraries that both have mapped once: the largest sum of three, before Vela runs, while it runs and after "
        "it. The model is built before that.",
    ]
