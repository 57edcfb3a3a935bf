"""The results of a sweep: one line of JSON per job, and a table as an HTML page."""

from __future__ import annotations

import hashlib
import html
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard

from tosaic.report.choices import Choice, Options
from tosaic.report.terminal import Page

SCHEMA = "tosaic-sweep/1"
#: how a job ended
DONE, FAILED, CRASHED = "done", "failed", "crashed"
_COLUMNS = ("model", "target", "options", "status", "cycles", "ms", "SRAM", "DRAM", "flash", "CPU nodes", "verified")


@dataclass(frozen=True, slots=True)
class Job:
    """One compile of a sweep. `content` is the hash of what the model and the compilers are."""

    model: str
    options: Options
    content: str
    calibration: str = ""
    verify: bool = False

    @property
    def key(self) -> str:
        """The name of the job: equal jobs have equal keys, in all sweeps."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        """A file name, without suffix."""
        model = "".join(c if c.isalnum() or c in "-_" else "_" for c in self.model.rpartition("/")[2].partition(".")[0])
        return f"{model}_{self.options.target}_{self.key[:8]}"


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended, with the figures of its program."""

    job: Job
    status: str
    why: str = ""
    choice: Choice | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as a line of the file has it; it depends on the job alone."""
        figures = None if self.choice is None else asdict(self.choice)
        if figures is not None:
            # They are those of the job.
            del figures["options"]
        return {"schema": SCHEMA, "key": self.job.key, **asdict(self), "choice": figures}


def read_result(line: Mapping[str, Any], job: Job) -> Result | None:
    """Read the result of a job from an untrusted line; None if it is not one."""
    found, status, why = line.get("choice"), line.get("status"), line.get("why")
    if line.get("schema") != SCHEMA or status not in (DONE, FAILED, CRASHED) or not isinstance(why, str):
        return None
    if json.dumps(line.get("job"), sort_keys=True) != json.dumps(asdict(job), sort_keys=True):
        return None
    if status != DONE:
        return Result(job, status, why) if found is None else None
    kinds = {one.name: one.type for one in fields(Choice) if one.name != "options"}
    if not is_table(found) or set(found) != set(kinds):
        return None
    if not all(_has_type(value, str(kinds[name])) for name, value in found.items()):
        return None
    return Result(job, status, why, Choice(job.options, **found))


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Tell whether a value of JSON is an object."""
    return isinstance(value, dict)


def _has_type(value: object, kind: str) -> bool:
    """Tell whether a value of JSON has a type that is written `float | None`; an integer is a float too."""
    names = {word.strip() for word in kind.split("|")} | {"int" if "float" in kind else ""}
    return ("None" if value is None else type(value).__name__) in names


def write_page(results: Iterable[Result]) -> str:
    """Return the table of a sweep as one HTML page that needs nothing else; a click on a heading sorts."""
    rows = [_make_cells(result) for result in results]
    head = "".join(f'<th><button type="button">{html.escape(name)}</button></th>' for name in _COLUMNS)
    body = "\n".join(f"<tr>{''.join(_write_cell(cell) for cell in row)}</tr>" for row in rows)
    done = sum(row[3] == DONE for row in rows)
    return _PAGE.format(summary=f"{done:,} of {len(rows):,} jobs done", head=head, body=body)


def _make_cells(result: Result) -> Sequence[str | float | None]:
    options, found = result.job.options, result.choice
    status = result.status if result.status == DONE else f"{result.status}: {result.why}"
    start = (result.job.model, options.target, options.describe(), status)
    if found is None:
        return (*start, *[None] * (len(_COLUMNS) - len(start)))
    verified = "" if found.verified is None else "yes" if found.verified else "FAILED"
    milliseconds = round(found.seconds * 1e3, 3)
    sizes = found.sram, found.dram, found.flash, found.fallback
    return (*start, found.cycles, milliseconds, *sizes, verified)


def _write_cell(cell: str | float | None) -> str:
    if isinstance(cell, int | float):
        return f'<td class="number" data-value="{cell}">{cell:,}</td>'
    return f"<td>{html.escape(cell or '')}</td>"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Tosaic sweep</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3em .8em; border-bottom: 1px solid #8886; text-align: left; }}
th button {{ font: inherit; font-weight: 600; border: 0; background: none; color: inherit; cursor: pointer; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style>
</head>
<body>
<h1>Sweep</h1>
<p>{summary}. Cycles and times are estimates from the commands; sizes are in bytes.</p>
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
<script>
const body = document.querySelector("tbody");
document.querySelectorAll("th button").forEach((button, column) => {{
  let up = false;
  button.addEventListener("click", () => {{
    up = !up;
    const value = row => {{
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    }};
    const isNumber = value => typeof value === "number";
    const order = (a, b) => (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b)));
    const rows = [...body.rows].sort((a, b) => order(value(a), value(b)) * (up ? 1 : -1));
    body.append(...rows);
  }});
}});
</script>
</body>
</html>
"""


def show_sweep(page: Page, results: Sequence[Result], known: int, folder: str) -> None:
    """Print the results of a sweep, a row each."""
    rows: list[list[str]] = []
    for result in results:
        options = result.job.options
        name = Path(result.job.model).name
        found = result.choice
        figures = ["", "", ""] if found is None else [f"{n:,}" for n in (found.cycles, found.sram, found.flash)]
        rows.append([name, options.target, result.status, *figures, result.why or options.describe()])
    page.rows(("model", "target", "status", "cycles", "SRAM", "flash", "options"), rows)
    counts = Counter(result.status for result in results)
    states = ", ".join(f"{number:,} {status}" for status, number in counts.items())
    before = f", {known:,} of them before" if known else ""
    page.line(f"{states}{before}; `{folder}` has the table and the figures")
