"""From what the children measured to the figures that are shown: minima, sums, ratios, goals. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

SCHEMA = "tosaic-bench/1"

#: Who compiled: ours through either door, or the peer, which has one.
Column: TypeAlias = Literal["door", "front", "peer"]
COLUMNS: Mapping[Column, str] = {"door": "ours, ExecuTorch API", "front": "ours, high-level API", "peer": "peer"}
OURS: tuple[Column, ...] = ("door", "front")
Values: TypeAlias = dict[str, float | None]
#: Models that stand for no real one.
ONE_OPERATOR = ("add", "softmax")


@dataclass(frozen=True)
class Figure:
    """One line of the table. `kind` says how a number is written; figures without ratio are only shown."""

    key: str
    title: str
    kind: Literal["seconds", "bytes", "count", "decibels"]
    ratio: bool = True


FIGURES = (
    Figure("export", "torch.export", "seconds"),
    Figure("quantize", "quantize: prepare, calibrate, convert", "seconds"),
    Figure("re_export", "export of the quantized module", "seconds"),
    Figure("lower", "to_edge_transform_and_lower", "seconds"),
    Figure("own", "of that the backend's own part", "seconds"),
    Figure("vela", "of that Vela", "seconds"),
    Figure("exir", "of that exir's core", "seconds"),
    Figure("to_executorch", "to_executorch", "seconds"),
    Figure("quantized_to_pte", "quantized program to .pte", "seconds"),
    Figure("module_to_pte", "nn.Module to .pte", "seconds"),
    Figure("peak_memory", "peak memory, Vela's process included", "bytes"),
    Figure("pte_bytes", ".pte", "bytes"),
    Figure("delegates", "delegates", "count", ratio=False),
    Figure("cpu_compute", "CPU operators without quantize and dequantize", "count", ratio=False),
    Figure("cpu_border", "CPU quantize and dequantize", "count", ratio=False),
    Figure("planned_bytes", "planned buffers outside the NPU", "bytes"),
    Figure("cycles", "NPU cycles, by Vela", "count"),
    Figure("cycles_commands", "NPU cycles, from the commands", "count"),
    Figure("codes_cycles", 'with io="int8", layout="nhwc": cycles, by Vela', "count"),
    Figure("codes_cycles_commands", 'with io="int8", layout="nhwc": from the commands', "count"),
    Figure("codes_cpu_ops", 'with io="int8", layout="nhwc": CPU operators', "count", ratio=False),
    Figure("sram_bytes", "SRAM", "bytes"),
    Figure("command_bytes", "command stream", "bytes"),
    Figure("weight_bytes", "encoded weights", "bytes"),
    Figure("sqnr", "SQNR against float, mean", "decibels"),
    Figure("sqnr_torch", "SQNR of torch's quantized graph", "decibels"),
)
APART = (
    Figure("interpreter", "interpreter start", "seconds"),
    Figure("imports", "imports, start of Vela's process included", "seconds"),
    Figure("warm_up", "a tiny model first, late imports", "seconds"),
)


@dataclass(frozen=True)
class Goal:
    """A limit that a figure of ours must keep: as a ratio to the peer's, by itself, or as a difference from it."""

    figure: str
    column: Column
    kind: Literal["ratio", "value", "difference"]
    limit: float
    #: of which model; empty: of all
    model: str = ""
    #: how much more than the peer's is good in any case
    slack: float = 0.0

    def describe(self) -> str:
        match self.kind:
            case "ratio":
                return f"at most {self.limit:g} of the peer's{f' or {self.slack:g} more' if self.slack else ''}"
            case "value":
                return f"at most {self.limit:g}"
            case "difference":
                return f"at least the peer's {self.limit:+g}"

    def measure(self, ours: float, peer: float | None) -> float | None:
        if self.kind == "value":
            return ours
        if peer is None:
            return None
        return ours - peer if self.kind == "difference" else divide(ours, peer)

    def is_met(self, measured: float, ours: float, peer: float | None) -> bool:
        if self.kind == "difference":
            return measured >= self.limit
        return measured <= self.limit or (bool(self.slack) and peer is not None and ours <= peer + self.slack)


GOALS = (
    Goal("lower", "door", "ratio", 0.45, "mobilenet_v2"),
    Goal("own", "door", "value", 1.5, "mobilenet_v2"),
    Goal("quantized_to_pte", "front", "ratio", 0.12, "mobilenet_v2"),
    Goal("module_to_pte", "front", "ratio", 0.50, "mobilenet_v2"),
    Goal("module_to_pte", "door", "ratio", 0.50, "mobilenet_v2"),
    Goal("quantized_to_pte", "front", "ratio", 0.20),
    Goal("quantized_to_pte", "door", "ratio", 0.50),
    Goal("delegates", "front", "value", 1),
    Goal("cpu_compute", "front", "value", 0),
    Goal("cycles", "front", "ratio", 1.01),
    Goal("cycles_commands", "front", "ratio", 1.01),
    *(Goal("pte_bytes", column, "ratio", 1.02, slack=4096) for column in OURS),
    *(Goal("peak_memory", column, "ratio", 1.0) for column in OURS),
    *(Goal("sqnr", column, "difference", -0.5) for column in OURS),
)
#: The geometric mean of the cycles that a target may have.
MEAN_GOALS = {"ethos-u55-128": 0.93, "ethos-u85-256": 0.88}


def divide(ours: float | None, peer: float | None) -> float | None:
    """Ours over the peer's; None where one of them is missing or zero."""
    return ours / peer if ours is not None and peer else None


def take_minima(repeats: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The least seconds of every stage: on a busy machine each stage only ever gets slower."""
    return {key: min(r[key] for r in repeats) for key in repeats[0]}


def make_row(model: str, target: str, column: Column, repeats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of one column from what its children wrote; the last of them has evaluated its result."""
    seconds = take_minima([r["seconds"] for r in repeats])
    return {
        "model": model,
        "target": target,
        "column": column,
        "error": None,
        "figures": _sum_seconds(seconds, column) | _read_result(repeats),
        "apart": take_minima([r["apart"] for r in repeats]),
        "cpu_ops": repeats[-1]["result"]["cpu_ops"],
        "tosa_sha256": repeats[-1]["result"]["npu"]["tosa"],
        "same_commands": repeats[-1]["result"]["npu"]["same_commands"],
        "repeats": [{"seconds": r["seconds"], "memory": r["memory"]} for r in repeats],
    }


def make_failed_row(model: str, target: str, column: Column, error: str) -> dict[str, Any]:
    """The row of a column whose child ended with an error."""
    empty: dict[str, Any] = {"cpu_ops": {}, "tosa_sha256": [], "same_commands": None, "repeats": []}
    figures = {f.key: None for f in FIGURES}
    return {"model": model, "target": target, "column": column, "error": error, "figures": figures, "apart": {}} | empty


def _sum_seconds(seconds: Mapping[str, float], column: Column) -> Values:
    front = column == "front"
    stages = ("front",) if front else ("lower", "to_executorch")
    finish = sum(seconds[name] for name in stages)
    # In one call ours also runs samples through the float model, for the file beside the .pte: that counts too.
    whole = sum(seconds.get(name, 0.0) for name in ("export", "quantize", "re_export")) + finish
    whole = max(whole, seconds.get("one_call", 0.0))
    rest = seconds["pack"] if front else seconds["lower"] - seconds["own"] - seconds["vela"]
    shown: Values = {name: seconds.get(name) for name in ("export", "quantize", "re_export", "lower", "to_executorch")}
    shown |= {"own": seconds["own"], "vela": seconds["vela"], "exir": rest}
    return shown | {"quantized_to_pte": finish, "module_to_pte": whole}


def _read_result(repeats: Sequence[Mapping[str, Any]]) -> Values:
    result = repeats[-1]["result"]
    npu = result["npu"]
    return {
        "peak_memory": min(r["memory"] for r in repeats),
        **{name: result[name] for name in ("pte_bytes", "delegates", "cpu_compute", "planned_bytes")},
        "cpu_border": sum(result["cpu_ops"].values()) - result["cpu_compute"],
        **{name: npu[name] for name in ("cycles", "cycles_commands", "sram_bytes", "command_bytes", "weight_bytes")},
        **{f"codes_{name}": result.get("codes", {}).get(name) for name in ("cycles", "cycles_commands", "cpu_ops")},
        "sqnr": result["sqnr"]["mean_db"],
        "sqnr_torch": result["sqnr_torch"]["mean_db"] if "sqnr_torch" in result else None,
    }


def group(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[Column, Mapping[str, Any]]]:
    """Rows by (model, target), then by column."""
    grouped: dict[tuple[str, str], dict[Column, Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["model"], row["target"]), {})[row["column"]] = row
    return grouped


def compute_ratios(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ours over the peer's for every figure; decibels are a difference. None where a side has no such figure."""
    ratios: list[dict[str, Any]] = []
    for (model, target), columns in group(rows).items():
        peer = columns["peer"]["figures"]
        for column in OURS:
            ours = columns[column]["figures"]
            found = {f.key: compare(f, ours[f.key], peer[f.key]) for f in FIGURES if f.ratio}
            ratios.append({"model": model, "target": target, "column": column, "ratios": found})
    return ratios


def compare(figure: Figure, ours: float | None, peer: float | None) -> float | None:
    if figure.kind == "decibels":
        return None if ours is None or peer is None else ours - peer
    return divide(ours, peer)


def check_goals(rows: Iterable[Mapping[str, Any]], goals: Sequence[Goal] = GOALS) -> list[dict[str, Any]]:
    """Every goal with what was measured. `met` is None where a side has no figure."""
    checked: list[dict[str, Any]] = []
    for (model, target), columns in group(rows).items():
        for goal in goals:
            if goal.model and goal.model != model:
                continue
            if not goal.model and model in ONE_OPERATOR and goal.figure != "sqnr":
                continue
            if goal.figure.startswith("cycles") and columns["peer"]["figures"]["cpu_compute"]:
                # Its NPU has less to do.
                continue
            ours, peer = (columns[c]["figures"][goal.figure] for c in (goal.column, "peer"))
            failed = columns[goal.column]["error"] or columns["peer"]["error"]
            if ours is None and peer is None and not failed:
                # Nothing to measure on either side, such as the error of a result that is exact.
                continue
            measured = None if ours is None else goal.measure(ours, peer)
            checked.append(
                {
                    "model": model,
                    "target": target,
                    "figure": goal.figure,
                    "column": goal.column,
                    "kind": goal.kind,
                    "limit": goal.limit,
                    "goal": goal.describe(),
                    "measured": measured,
                    "met": None if measured is None or ours is None else goal.is_met(measured, ours, peer),
                }
            )
    return checked


MEANS = ("lower", "quantized_to_pte", "module_to_pte", "peak_memory", "pte_bytes", "cycles", "cycles_commands")


def compute_means(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means over the models of a target.

    Programs of one operator stay out; for cycles also models of which a side computes a part on the CPU: its NPU has
    less to do there.
    """
    means: list[dict[str, Any]] = []
    grouped = group(rows)
    for target in dict.fromkeys(row["target"] for row in rows):
        for column in OURS:
            for key in MEANS:
                found: dict[str, float] = {}
                for (model, at), columns in grouped.items():
                    ours, peer = (columns[c]["figures"] for c in (column, "peer"))
                    ratio = divide(ours[key], peer[key])
                    whole = not key.startswith("cycles") or not (ours["cpu_compute"] or peer["cpu_compute"])
                    if at == target and model not in ONE_OPERATOR and ratio is not None and whole:
                        found[model] = ratio
                if found:
                    mean = math.exp(sum(math.log(r) for r in found.values()) / len(found))
                    goal = MEAN_GOALS.get(target) if key.startswith("cycles") else None
                    means.append(
                        {
                            "target": target,
                            "column": column,
                            "figure": key,
                            "mean": mean,
                            "models": list(found),
                            "limit": goal,
                            "met": None if goal is None else mean <= goal,
                        }
                    )
    return means


def make_report(
    rows: Sequence[Mapping[str, Any]],
    machine: Mapping[str, Any],
    tools: Mapping[str, str],
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything of one run, as it is written to results.json."""
    return {
        "schema": SCHEMA,
        "machine": dict(machine),
        "tools": dict(tools),
        "conditions": dict(conditions),
        "rows": list(rows),
        "ratios": compute_ratios(rows),
        "means": compute_means(rows),
    }
