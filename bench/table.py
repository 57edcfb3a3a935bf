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


def make_goal_lines(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
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
        for g in report["goals"]
    ]


GOAL_TITLES = ("model", "target", "figure", "API", "goal", "measured", "verdict")


def make_mean_lines(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells of the geometric means, where more than one model went in."""
    return [
        (
            m["target"],
            TITLE_OF[m["figure"]],
            COLUMNS[m["column"]].removeprefix("ours, "),
            f"{m['mean']:.3f}",
            "" if m["limit"] is None else f"{m['limit']:g}, {'met' if m['met'] else 'missed'}",
            ", ".join(m["models"]),
        )
        for m in report["means"]
        if len(m["models"]) > 1
    ]


MEAN_TITLES = ("target", "figure", "API", "geometric mean", "goal", "models")


def write_markdown(report: Mapping[str, Any]) -> str:
    """The whole report as a Markdown page."""
    c, machine = report["conditions"], report["machine"]
    tools = ", ".join(f"{name} {version}" for name, version in report["tools"].items())
    parts = [
        "# Comparison with executorch.backends.arm",
        "Written by `bench/run.py`; `results.json` has the same figures and every single repeat. The peer is "
        "`executorch.backends.arm` as released with ExecuTorch.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] >> 20:,} MiB, {machine['system']}, "
        f"Python {machine['python']}. {tools}.",
        "![cycles](cycles.svg)\n\n![compile time](compile.svg)",
        "## Goals",
        write_table(GOAL_TITLES, make_goal_lines(report)),
    ]
    means = make_mean_lines(report)
    if means:
        parts += ["## Means of ours / peer's", write_table(MEAN_TITLES, means)]
    for (model, target), columns in group(report["rows"]).items():
        parts += [f"## {model}, {target}", write_table(TITLES, make_lines(columns))]
        parts.append("\n".join(f"* {note}" for note in make_notes(columns)))
    parts += ["## How it was measured", "\n".join(f"* {line}" for line in _describe(c))]
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
