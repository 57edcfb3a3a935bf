"""`tosaic diff`: bytes, memory, cycles, layers and operators of two programs."""

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from support.cli import Command, Outcome
from support.hostile import plain
from tosaic.report.difference import Change


def test_the_figures_are_those_of_the_reports(
    tosaic: Command, floats: tuple[Path, Outcome], codes: tuple[Path, Outcome]
) -> None:
    found = tosaic("diff", floats[0], codes[0], "--json").json
    report = codes[1].json
    totals = {change["name"]: change for change in found["totals"]}
    assert found["schema"] == "tosaic-diff/1" and not found["same"]
    assert totals["bytes"]["before"] == floats[0].stat().st_size
    assert totals["bytes"]["after"] == codes[0].stat().st_size == report["pte_bytes"]
    assert totals["SRAM"]["after"] == sum(report["memory_uses"]["SRAM"].values())
    assert totals["flash"]["after"] == sum(report["memory_uses"]["flash"].values())
    assert totals["NPU cycles"]["after"] == sum(d["estimate"]["cycles"] for d in report["delegates"])
    assert totals["CPU operators"]["after"] == sum(report["cpu_ops"].values())
    operators = {change["name"]: change["after"] for change in found["tosa_operators"]}
    wanted: dict[str, int] = {}
    for delegate in report["delegates"]:
        for name, number in delegate["tosa_ops"].items():
            wanted[name] = wanted.get(name, 0) + number
    assert {name: n for name, n in operators.items() if n} == {n: c for n, c in wanted.items() if "CONST" not in n}


def test_layers_share_the_cycles_of_the_program(tosaic: Command, codes: tuple[Path, Outcome]) -> None:
    found = tosaic("diff", codes[0], codes[0], "--json").json["after"]
    assert sum(found["layers"].values()) == found["cycles"]
    layers = tosaic("inspect", codes[0], "--layers", "--json").json["layers"]
    of_conv = sum(layer["cycles"] for layer in layers if layer["module"] == "conv")
    assert found["layers"]["conv"] == of_conv > 0


def test_equal_files(tosaic: Command, codes: tuple[Path, Outcome]) -> None:
    done = tosaic("diff", codes[0], codes[0], "--max-growth", 0)
    assert done.code == 0 and "the files are identical" in done.stdout and "layers" not in done.stdout
    assert "layers, in cycles" in tosaic("diff", codes[0], codes[0], "-v").stdout


def test_growth_is_a_failed_check(tosaic: Command, floats: tuple[Path, Outcome], codes: tuple[Path, Outcome]) -> None:
    done = tosaic("diff", codes[0], floats[0], "--max-growth", 0)
    assert done.code == 1 and "FAIL: " in done.stdout and "CPU operators" in done.stdout.partition("FAIL: ")[2]
    assert tosaic("diff", codes[0], floats[0], "--max-growth", 100_000).code == 0


def test_without_a_sidecar(
    tosaic: Command, floats: tuple[Path, Outcome], codes: tuple[Path, Outcome], tmp_path: Path
) -> None:
    shutil.copy(codes[0], tmp_path / "alone.pte")
    found = tosaic("diff", floats[0], tmp_path / "alone.pte")
    assert found.code == 0 and "layers, in cycles" not in found.stdout
    assert "there is no .tosaic file next to it" in " ".join(found.stdout.split())


def test_markdown_shows_names_as_text(tosaic: Command, codes: tuple[Path, Outcome], tmp_path: Path) -> None:
    """A name in a sidecar is data of whoever wrote it: it must not become markup of a comment."""
    path = tmp_path / "evil.pte"
    shutil.copy(codes[0], path)
    files = dict(_unzip(codes[0].with_suffix(".tosaic").read_bytes()))
    for name in [name for name in files if name.endswith("origins.json")]:
        origins = json.loads(files[name])
        for origin in origins:
            origin["module"] = "<img src=x>|[a](b)"
        files[name] = json.dumps(origins).encode()
    path.with_suffix(".tosaic").write_bytes(plain(files))
    shown = tosaic("diff", codes[0], path, "--markdown")
    assert shown.code == 0, shown.stderr
    assert "img src=x" in shown.stdout and "<img" not in shown.stdout and "|[a]" not in shown.stdout


def _unzip(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


LONG_CELL = f'<table name="perf">\n<![CDATA[\n"id"\n"{"x" * 140_000}"\n]]>\n</table>'


@pytest.mark.parametrize(
    "database", ["<debug></debug>", LONG_CELL, '<table name="queue">\n<![CDATA[\n]]>\n</table>', "\0"]
)
def test_a_damaged_debug_database(tosaic: Command, codes: tuple[Path, Outcome], tmp_path: Path, database: str) -> None:
    path = tmp_path / "damaged.pte"
    shutil.copy(codes[0], path)
    files = dict(_unzip(codes[0].with_suffix(".tosaic").read_bytes()))
    files |= {name: database.encode() for name in files if name.endswith("debug.xml")}
    path.with_suffix(".tosaic").write_bytes(plain(files))
    done = tosaic("diff", codes[0], path, "--json")
    assert done.code == 0, done.stderr
    found = done.json["after"]
    assert "conv" not in found["layers"] and sum(found["layers"].values()) == found["cycles"]


def test_other_files_are_refused(tosaic: Command, codes: tuple[Path, Outcome], tmp_path: Path) -> None:
    wrong = tmp_path / "x.pte"
    wrong.write_bytes(codes[0].read_bytes()[:100])
    for file in (wrong, codes[0].with_suffix(".tosaic"), tmp_path / "none.pte"):
        done = tosaic("diff", codes[0], file)
        assert done.code == 2 and done.stderr.startswith("error: "), done.stderr


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [(100, 150, "+50 (+50.0 %)"), (0, 5, "+5"), (None, 5, "new"), (5, None, "gone"), (7, 7, "same")],
)
def test_changes_in_words(before: float | None, after: float | None, text: str) -> None:
    assert Change("x", before, after).describe()[-1] == text
