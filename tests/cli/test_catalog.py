"""`tosaic ops`, `tosaic targets`, `tosaic doctor`, and the command itself."""

import importlib.metadata
import shutil

import pytest
from rich.console import Console

import tosaic as package
from support.cli import Command
from tosaic import doctor
from tosaic.core.targets import ACCELERATORS
from tosaic.ops import registry
from tosaic.report.header import sanitize
from tosaic.report.operators import FAMILIES
from tosaic.report.terminal import Page
from tosaic.tools import vela


def test_version_and_help(tosaic: Command) -> None:
    assert tosaic("--version").stdout == f"tosaic {package.__version__}\n"
    text = tosaic("--help").stdout
    assert all(name in text for name in ("compile", "inspect", "ops", "targets", "doctor", "2 bad input"))
    assert tosaic().code != 0
    help_text = " ".join(tosaic("compile", "--help").stdout.split())
    assert "A .py file is imported, which runs its code" in help_text
    for option in (
        "--target",
        "--calibration",
        "--io <float|int8|uint8|int16>",
        "--precision <int8|a16w8|a8w4>",
        "--precision-for",
        "--layout <nchw|nhwc>",
        "--memory-mode",
        "--system-config",
        "--no-delegate",
        "--no-quantize",
        "--intermediates",
        "--no-sidecar",
        "--header",
        "--json",
        "--output",
        "--debug",
    ):
        assert option in help_text, option


def test_ops_lists_every_record(tosaic: Command) -> None:
    done = tosaic("ops")
    assert done.code == 0
    assert all(name in done.stdout for name in registry().records)
    found = tosaic("ops", "ethos-u55-128", "--json").json
    assert (found["schema"], found["target"]) == ("tosaic-ops/2", "ethos-u55-128")
    rows = {row["name"]: row for row in found["ops"]}
    assert set(rows) == set(registry().records)
    assert rows["conv2d"]["quant"] == "weight" and rows["softmax"]["quant"] == "decompose"
    assert rows["avg_pool2d"]["quant"] == "depends" and "aten.add.Tensor" in rows["add"]["overloads"]


def test_ops_shows_the_constraints_of_a_target(tosaic: Command) -> None:
    found = tosaic("ops", "--json").json
    everywhere = found["ops"]
    assert [one["targets"] for one in found["constraints"]] == [["u55", "u65", "u85", "vgf", "tosa"], ["u55", "u65"]]
    for name in ("ethos-u55-128", "ethos-u85-256"):
        family = ACCELERATORS[name].family
        for row, full in zip(tosaic("ops", name, "--json").json["ops"], everywhere, strict=True):
            assert row["constraints"] == [one for one in full["constraints"] if family in one["targets"]]
    assert tosaic("ops", "u77").code == 2


@pytest.mark.parametrize(
    "name",
    ["conv2d", "aten.conv2d.default", "torch.nn.functional.conv2d", "torch.ops.aten.conv2d.padding", "nn.Conv2d"],
)
def test_ops_shows_one_operator_by_any_of_its_names(tosaic: Command, name: str) -> None:
    done = tosaic("ops", name)
    assert done.code == 0
    assert done.stdout.startswith("conv2d (conv)\n")
    assert all(f"\n{family} " in done.stdout for family in FAMILIES)
    assert "1. a stride above 3" in done.stdout and "fix: use strides of at most 3" in done.stdout


def test_ops_of_one_operator_counts_what_the_tests_execute(tosaic: Command) -> None:
    for name in ("where", "softmax", "gelu", "pow"):
        record = registry().records[name]
        found = tosaic("ops", name, "--json").json
        assert (found["schema"], found["name"]) == ("tosaic-operator/1", name)
        assert found["overloads"] == list(record.overloads)
        samples = [sample for sample in record.samples() if "INT" in sample.flavors]
        for family in ("u55", "u85"):
            target = {"u55": "ethos-u55-128", "u85": "ethos-u85-256"}[family]
            row = found["targets"][family]
            assert (row["samples"], row["executed"]) == (
                len(samples),
                sum(sample.targets(ACCELERATORS[target]) for sample in samples),
            )
            listed = [found["constraints"][number] for number in row["constraints"]]
            assert listed == [one for one in found["constraints"] if family in one["targets"]]
    assert tosaic("ops", "softmax", "--json").json["targets"]["u55"]["how"] == "decomposed"
    assert tosaic("ops", "gelu", "--json").json["targets"]["u55"]["how"] == "a lookup table"
    assert tosaic("ops", "gelu", "--json").json["targets"]["TOSA FP"]["how"] == "lowered"


def test_ops_names_the_parts_of_a_decomposition(tosaic: Command) -> None:
    assert tosaic("ops", "topk", "--json").json["decomposition"] == [
        *("aten.argmax.default", "aten.argmin.default", "aten.amax.default", "aten.amin.default")
    ]
    assert tosaic("ops", "relu", "--json").json["decomposition"] == []


@pytest.mark.parametrize("name", ["con2d", "aten.sofmax.int", "torch.nn.functional.conv2"])
def test_ops_of_an_unknown_name_lists_close_ones(tosaic: Command, name: str) -> None:
    done = tosaic("ops", name)
    assert done.code == 2
    assert f"unknown operator or target `{name}`" in done.stderr
    assert "did you mean" in done.stderr and ("conv2d" in done.stderr or "softmax" in done.stderr)


def test_targets_lists_all(tosaic: Command) -> None:
    done = tosaic("targets")
    assert done.code == 0
    assert all(name in done.stdout for name in ACCELERATORS)
    assert "TOSA-1.0+INT, TOSA-1.0+FP" in done.stdout
    found = tosaic("targets", "--json").json
    assert found["schema"] == "tosaic-targets/1"
    assert set(ACCELERATORS) <= {target["name"] for target in found["accelerators"]}
    assert found["families"]["u55"]["memory_modes"] == ["Sram_Only", "Shared_Sram"]
    assert "Dedicated_Sram_384KB" in found["families"]["u65"]["memory_modes"]
    for family, choices in found["families"].items():
        assert all(name.startswith(f"Ethos_{family.upper()}_") for name in choices["system_configs"])


@pytest.mark.parametrize("command", [["targets"], ["ops"]], ids=lambda c: c[0])
def test_no_column_is_cut(tosaic: Command, command: list[str]) -> None:
    wide, narrow = (tosaic(*command, env={"COLUMNS": width}).stdout for width in ("300", "44"))
    assert max(map(len, narrow.splitlines())) <= 44
    joined = "".join(narrow.split())
    # Where a table turns into lists the order is another one, but every word is there.
    assert all("".join(word) in joined for word in wide.split())


def test_a_table_with_a_narrow_last_column_stays_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page(Console(width=40))
    page.rows(("offset", "bytes"), [("0x000298" + " " * 12, "OffChipFlash 400 + 0; Sram 0 + 400")])
    head, first, *_ = lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["offset", "bytes"] and first.startswith("0x000298") and max(map(len, lines)) <= 40


def test_color_only_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    Page().line("words", "bold")
    assert capsys.readouterr().out == "\x1b[1mwords\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    Page().line("words", "bold")
    assert capsys.readouterr().out == "words\n"


def test_doctor_finds_this_machine_well(tosaic: Command) -> None:
    found = tosaic("doctor", "--json")
    assert found.code == 0, found.stdout
    assert (found.json["schema"], found.json["ok"]) == ("tosaic-doctor/1", True)
    checks = {check["name"]: check for check in found.json["checks"]}
    assert checks["torch"]["found"] == importlib.metadata.version("torch")
    assert checks["Vela"]["found"].startswith("runs") and checks["Ethos-U compile"]["found"].startswith("works")
    assert checks["TOSA reference model"]["found"] == "runs: 1 + 1 = 2"


def test_doctor_says_what_is_missing(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torchao":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0" if name == "executorch" else "9.9"

    def fail(*_: object) -> None:
        raise OSError("no child process")

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(vela, "compile", fail)
    monkeypatch.setattr("tosaic.doctor._run_compile", fail)
    done = tosaic("doctor")
    assert done.code == 3
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "missing torchao not installed" in lines and "missing executorch 1.0, but" in " ".join(lines)
    assert any(line.startswith("fix: pip install 'torchao") for line in lines)
    assert "optional C++ compiler none" in lines
    assert "missing Vela OSError: no child process" in lines
    assert "missing Ethos-U compile OSError: no child process" in lines


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.13.0+cpu", "<2.14,>=2.13", True),
        ("2.14.0", "<2.14,>=2.13", False),
        ("2.12.9", ">=2.13", False),
        ("2026.8.0", ">=2026.8,<2026.9", True),
        ("1.0", "", True),
    ],
)
def test_version_ranges(version: str, wanted: str, fits: bool) -> None:
    assert doctor.fits(version, wanted) == fits


@pytest.mark.parametrize(
    ("model", "name"), [("mobilenet_v2", "MOBILENET_V2"), ("2 nets-ü", "MODEL_2_NETS"), ("*/", "MODEL"), ("", "MODEL")]
)
def test_names_for_c(model: str, name: str) -> None:
    assert sanitize(model) == name
