"""The shell of the commands: help, completion, options from a file, colors, progress, and early refusals."""

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from support.cli import Command
from tosaic.cli.colors import say
from tosaic.cli.group import ENTRIES
from tosaic.cli.progress import Progress

_PROBE = """
import sys
sys.argv[1:] = {arguments!r}
try:
    from tosaic.cli import main
    main()
except SystemExit as stop:
    print([int(stop.code or 0), sorted({heavy!r} & set(sys.modules))], file=sys.stderr)
"""


def _probe(folder: Path, *arguments: str, heavy: set[str]) -> tuple[int, list[str], str]:
    """Run a command in a process of its own: its exit code, the modules it imported, and what it says."""
    code = _PROBE.format(arguments=list(arguments), heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, cwd=folder
    )
    *said, last = done.stderr.splitlines()
    exit_code, found = ast.literal_eval(last)
    return exit_code, found, done.stdout + "\n".join(said)


#: What a help text does not need: each of the first takes longer than all of it, the others half of its time together.
_HEAVY = {
    "numpy",
    "torch",
    "pydantic",
    "rich",
    "tempfile",
    "secrets",
    "random",
    "configparser",
    "importlib.metadata",
    "json",
}


@pytest.mark.parametrize("name", ENTRIES)
def test_help_has_examples_and_imports_little(tmp_path: Path, name: str) -> None:
    code, found, text = _probe(tmp_path, name, "--help", heavy=_HEAVY)
    assert (code, found) == (0, [])
    assert all(line in text for line in ENTRIES[name].examples)
    assert not re.search(r"<(str|path|int|list)[>\[]", text) and "{" not in text.partition("Arguments:")[0]


def test_python_m_tosaic() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tosaic", "-V"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("tosaic ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(tosaic: Command, shell: str) -> None:
    done = tosaic("completion", shell)
    assert done.code == 0 and "_TOSAIC_COMPLETE" in done.stdout


def test_completion_knows_commands_and_options() -> None:
    for words, expected in (("tosaic com", "compile"), ("tosaic compile --fail", "--fail-on-fallback")):
        variables = {
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
            "_TOSAIC_COMPLETE": "complete_bash",
        }
        done = subprocess.run(
            [sys.executable, "-m", "tosaic"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **variables},
            check=False,
        )
        assert expected in done.stdout.split()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "-o", "/proc/x/y.pte"), "cannot write `/proc/x/y.pte`"),
        (("add", "--calibration", "gone.npz"), "there is no calibration data at `gone.npz`"),
        (("add", "--memory-mode", "Turbo"), "no memory mode `Turbo`"),
        (("add", "--system-config", "Ethos_U85_SYS_DRAM_Mid"), "is not for `ethos-u55-128`"),
        (("add", "--config-ini", "gone.ini"), "cannot read the Vela configuration file `gone.ini`"),
        (("add", "--vela-option=--nothing"), "Vela has no flag `--nothing`"),
        (("gone.onnx",), "there is no file `gone.onnx`"),
        (("nothing_like_it",), "unknown model `nothing_like_it`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options_are_refused_before_torch_is_imported(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    code, found, text = _probe(tmp_path, "compile", *arguments, heavy={"torch", "executorch"})
    assert (code, found) == (2, [])
    assert words in text


FOREIGN = {
    "model.onnx": (b"\x08\x07\x12\x07pytorch", "an ONNX model"),
    "model.tflite": (b"\x1c\0\0\0TFL3" + bytes(16), "a TensorFlow Lite model"),
    "script.pt": (b"PK\x03\x04" + bytes(26) + b"net/code/__torch__.py", "a TorchScript file"),
    "weights.pt": (b"PK\x03\x04" + bytes(26) + b"net/data.pkl", "a file of torch.save"),
    "whole.pt": (b"PK\x03\x04" + bytes(26) + b"net/data.pkl_backward_hooksq", "a model pickled by torch.save"),
    "old_whole.pth": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19._backward_hooksq", "a model pickled by torch.save"),
    "old.pth": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a file of torch.save"),
    "net.safetensors": (b"\x02" + bytes(7) + b"{}", "a safetensors file"),
    "net.etrecord": (b"PK\x03\x04" + bytes(26) + b"ETRECORD_V0", "an ETRecord"),
    "net.bin": (b"\x1c\0\0\0BP07" + bytes(16), "a bundled program of ExecuTorch"),
}


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_and_models_of_torch_save_are_told_apart(tosaic: Command, tmp_path: Path, legacy: bool) -> None:
    model = torch.nn.Linear(4, 2)
    for name, saved, title in (("a.pt", model, "a model pickled"), ("b.pt", model.state_dict(), "weights without")):
        torch.save(saved, tmp_path / name, _use_new_zipfile_serialization=not legacy)
        done = tosaic("compile", tmp_path / name)
        assert done.code == 2 and title in done.stderr and "torch.load('" in done.stderr, done.stderr


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_tools_are_recognized(tosaic: Command, tmp_path: Path, name: str) -> None:
    data, title = FOREIGN[name]
    path = tmp_path / name
    path.write_bytes(data)
    for command in ("compile", "inspect", "run"):
        done = tosaic(command, path)
        assert done.code == 2 and title in done.stderr and "fix: " in done.stderr, done.stderr


def test_an_exported_program_is_not_a_damaged_sidecar(tosaic: Command, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(b"PK\x03\x04" + bytes(26) + b"net/models/model.json")
    done = tosaic("inspect", path)
    assert f"`{path}` is a program of torch.export" in done.stderr
    assert f"fix: compile it first: `tosaic compile {path}`" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory_mod = 1", ("`memory_mod` in", "did you mean `memory-mode`?")),
        ("per-tensor = 1", ("`per-tensor` in", "it takes true or false")),
        ("float = [1]", ("`float` in", "a text or a list of them")),
        ("target = true", ("`target` in", "a text or a number")),
        ("= 1", ("is not a TOML file",)),
        ('target = "ethos-u99"', ("unknown target `ethos-u99`",)),
        ('memory-mode = "Turbo"', ("no memory mode `Turbo`",)),
    ],
)
def test_options_from_a_file(tosaic: Command, tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "options.toml"
    path.write_text(text)
    done = tosaic("compile", "add", "--config", path)
    assert done.code == 2
    # The text of an error may be wrapped.
    said = " ".join(done.stderr.split())
    assert all(word in said for word in words), done.stderr


def test_the_command_line_has_priority_over_the_file(tosaic: Command, tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_text('target = "ethos-u99"')
    done = tosaic("compile", "add", "--config", path, "-t", "ethos-u98")
    assert "unknown target `ethos-u98`" in done.stderr


def test_colors_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    say("PASS: bit-exact")
    assert capsys.readouterr().out == "PASS: bit-exact\n"
    monkeypatch.setattr("typer.echo", lambda text, err: sys.stdout.write(text))
    say("a line\nerror: no")
    assert capsys.readouterr().out == "a line\n\x1b[31m\x1b[1merror:\x1b[0m no"
    monkeypatch.setenv("NO_COLOR", "1")
    say("error: no")
    assert capsys.readouterr().out == "error: no"


def test_progress_in_a_pipe_is_one_line_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for text in ("load: importing PyTorch", "quantize", "quantize: sample 1/2"):
        progress(text)
    progress.finish()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["load", "quantize"]
    assert all(line.endswith(" s") for line in lines)


def test_progress_on_a_terminal_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress()
    progress("quantize: sample 7/16")
    time.sleep(0.6)
    progress.finish()
    assert "sample 7/16" in capsys.readouterr().err
