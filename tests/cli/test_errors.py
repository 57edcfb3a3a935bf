"""Every way in which a command can be refused: exit code, words, and nothing lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.cli import Command
from tosaic.api import build as api
from tosaic.api import model_file
from tosaic.cli.guard import explain
from tosaic.core.errors import Invalid

MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

model = Net(){mode}
inputs = (torch.linspace(-1, 1, 6).reshape(2, 3),)
"""


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    path = tmp_path / "relu.py"
    path.write_text(MODEL.format(mode=".eval()"))
    return path


def _refuse(done: Any, *words: str, code: int = 2) -> None:
    assert done.code == code, done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_file(tosaic: Command, relu: Path) -> None:
    _refuse(tosaic("compile", relu.with_name("rely.py")), f"did you mean the file `{relu}`?")
    _refuse(tosaic("verify", relu), "not a .pte file", "fix: pass the .pte that `tosaic compile` has written")


def test_a_folder(tosaic: Command, tmp_path: Path) -> None:
    for name in (".", "..", tmp_path / "sub"):
        (tmp_path / "sub").mkdir(exist_ok=True)
        _refuse(tosaic("compile", name), f"cannot compile `{name}`: it is a folder")
    _refuse(tosaic("inspect", tmp_path), "why: it is a folder", "fix: pass a file in it")


def test_a_board_is_no_target(tosaic: Command, relu: Path) -> None:
    _refuse(tosaic("compile", relu, "-t", "corstone-300"), "fix: pass the NPU of a chip or a board: `ethos-u55-32`")


def test_train_mode(tosaic: Command, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(MODEL.format(mode=""))
    _refuse(tosaic("compile", path), "train mode", "fix: call model.eval()")


def test_errors_in_forward_name_the_line(tosaic: Command, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL.format(mode=".eval()").replace("torch.relu(x)", "x @ x"))
    _refuse(
        tosaic("compile", path), "cannot export the model", f"where: {path}:6", "fix: make model(*example_inputs) work"
    )
    path.write_text(MODEL.format(mode=".eval()").replace("torch.relu(x)", "x if x.sum() > 0 else -x"))
    done = tosaic("compile", path)
    _refuse(done, "data-dependent control flow", f"where: {path}:6", "torch.where")
    assert "def forward" not in done.stderr
    path.write_text(MODEL.format(mode=".eval()").replace("torch.relu(x)", "x[x > 0]"))
    _refuse(tosaic("compile", path), "dynamic shapes", f"where: {path}:6", "`index` (aten.index.Tensor)")


def test_dynamic_shapes(tosaic: Command, tmp_path: Path, relu: Path) -> None:
    module, inputs = model_file.load(str(relu))
    assert inputs is not None
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=8)}}
    program = torch.export.export(module, inputs, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "dynamic.pt2")
    _refuse(tosaic("compile", tmp_path / "dynamic.pt2"), "dynamic shapes", "fix: export without dynamic_shapes")
    with pytest.raises(Invalid, match="dynamic shapes") as caught:
        api.compile(program)
    assert "dimension 0 of input `x` is dynamic" in caught.value.why


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (torch.tensor([[0.0, 1.0, float("nan")], [1.0, 2.0, 3.0]]), ("NaN or infinity", "fix: remove NaN")),
        (torch.tensor([[0.0, 1.0, float("inf")], [1.0, 2.0, 3.0]]), ("NaN or infinity",)),
        (torch.full((2, 3), 0.25), ("is 0.25 everywhere", "fix: calibrate with real samples")),
        (torch.rand(3, 3), ("shape [3, 3]", "the model takes [2, 3]")),
        (torch.ones(2, 3, dtype=torch.int32), ("is int32", "the model takes float32", ".to(torch.float32)")),
        ((torch.rand(2, 3), torch.rand(2, 3)), ("has 2 inputs", "the model takes 1")),
        ({"x": "text"}, ("is of type `str`, not a tensor",)),
        ([], ("the calibration data is empty",)),
    ],
    ids=["nan", "infinity", "constant", "shape", "dtype", "count", "text", "none"],
)
def test_calibration(tosaic: Command, tmp_path: Path, relu: Path, sample: Any, words: tuple[str, ...]) -> None:
    torch.save(sample, tmp_path / "data.pt")
    _refuse(tosaic("compile", relu, "--calibration", tmp_path / "data.pt"), *words)


def test_calibration_files(tosaic: Command, tmp_path: Path, relu: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    _refuse(tosaic("compile", relu, "--calibration", tmp_path / "objects.npy"), "cannot be read as calibration data")
    _refuse(tosaic("compile", relu, "--calibration", tmp_path / "nothing.npz"), "there is no calibration data at")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("(torch.ones(2), torch.ones(2))", ("torch.export cannot export the model", "positional argument")),
        ("(1.5,)", ("example input 0 is of type `float`", "fix: pass tensors, or dicts and lists of tensors")),
        ("7", ("the inputs in", "are of type `int`")),
    ],
    ids=["count", "number", "kind"],
)
def test_inputs_of_a_model_file(tosaic: Command, tmp_path: Path, inputs: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL.format(mode=".eval()") + f"\ninputs = {inputs}\n")
    _refuse(tosaic("compile", path), *words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((torch.ones(2, 3), torch.ones(2, 3)), "has 2 inputs, the model takes 1"),
        ((torch.ones(3, 2),), "has shape [3, 2], the model takes [2, 3]"),
        ((torch.ones(2, 3, dtype=torch.int8),), "is int8, the model takes float32"),
    ],
    ids=["count", "shape", "dtype"],
)
def test_inputs_of_an_exported_program(relu: Path, given: tuple[torch.Tensor, ...], words: str) -> None:
    module, inputs = model_file.load(str(relu))
    assert inputs is not None
    with pytest.raises(Invalid) as caught:
        api.compile(torch.export.export(module, inputs), given, "TOSA-1.0+INT")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-t", "ethos-u55-129"], ["unknown target `ethos-u55-129`", "did you mean `ethos-u55-128`"]),
        (["-t", "TOSA-0.80+BI"], ["0.80 is no longer supported", "TOSA-1.0+INT"]),
        (["--memory-mode", "Turbo"], ["no memory mode `Turbo`", "`Shared_Sram`", "`Sram_Only`"]),
        (["--memory-mode", "Dedicated_Sram"], ["cannot be used on `ethos-u55-128`", "fix: use `Shared_Sram`"]),
        (["--system-config", "Mine"], ["no system configuration `Mine`", "`Ethos_U55_High_End_Embedded`"]),
        (["-t", "TOSA-1.0+INT", "--memory-mode", "Sram_Only"], ["has no system configuration and no memory mode"]),
        (["-o", "x.tosa"], ["produces a .pte", "fix: use a file name ending in .pte"]),
        (["-o", "x.tosaic"], ["why: a name ending in .tosaic is for a sidecar"]),
        (["-o", "x.bpte"], ["why: a name ending in .bpte is for a program with its test cases"]),
        (
            ["-o", "x.tflite"],
            [
                "cannot write a program to `x.tflite`",
                "is for a TensorFlow Lite model",
                "fix: use a file name ending in .pte",
            ],
        ),
        (
            ["--system-config", "Ethos_U85_SYS_DRAM_Mid"],
            ["`Ethos_U85_SYS_DRAM_Mid` is not for `ethos-u55-128`", "fix: use one of `Ethos_U55_"],
        ),
        (["-t", "TOSA-1.0+INT", "--optimize", "size"], ["`TOSA-1.0+INT` is not compiled by Vela"]),
        (["--vela-option=--optimize=Size"], ["Vela has no flag `--optimize`", "did you mean `--optimise`"]),
        (["--intermediates", __file__], ["is a file", "fix: pass a folder"]),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) and value[0].startswith("-") else "",
)
def test_options(tosaic: Command, arguments: list[str], words: list[str]) -> None:
    _refuse(tosaic("compile", "add", *arguments), *words)


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        (["compile"], "`tosaic compile` needs the argument MODEL", "`tosaic compile -h` shows"),
        (["compile", "add", "--io", "int4"], "`int4` is not a value of `--io`", "use one of `float`, `int8`"),
        (["doctor", "--fix", "ethos-u"], "`ethos-u` is not a value of `--fix`", "use one of `vgf`, `board`"),
        (["cook"], "unknown command `cook`", "`tosaic -h` lists"),
        (["compil", "add"], "unknown command `compil`", "did you mean `compile`?"),
        (["compile", "add", "--optimise"], "`tosaic compile` has no option `--optimise`", "did you mean `--optimize`?"),
        (["compile", "add", "--color"], "`tosaic compile` has no option `--color`", "`tosaic compile -h` shows"),
        (
            ["compile", "add", "-calibration", "x"],
            "`tosaic compile` has no option `-calibration`",
            "did you mean `--calib",
        ),
        (["compile", "add", "-io=int8"], "`tosaic compile` has no option `-io`", "did you mean `--io`?"),
        (["compile", "add", "-x"], "`tosaic compile` has no option `-x`", "`tosaic compile -h` shows"),
        (["--color"], "`tosaic` has no option `--color`", "`tosaic -h` shows"),
        (["compile", "add", "-t"], "option `-t` needs a value", "`tosaic compile -h` shows"),
        (["compile", "add", "--json=3"], "option `--json` does not take a value", "`tosaic compile -h` shows"),
        (["compile", "add", "b"], "`tosaic compile` cannot use the argument `b`", "`tosaic compile -h` shows"),
        (["run", "x.pte", "--values", "a"], "cannot use the value of `--values`", "`tosaic run -h` shows"),
        (["compile", "add", "--max-sram", "1Q"], "`1Q` is not a size", "use a number of bytes"),
        (["compile", "add", "--config", "gone.toml"], "there is no file `gone.toml`", "check the path"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_have_the_form_of_all_errors(tosaic: Command, arguments: list[str], what: str, fix: str) -> None:
    done = tosaic(*arguments)
    _refuse(done, f"error: {what}\n", f"\n  fix: {fix}")
    assert done.stderr.startswith("error: ")


def test_without_a_command_there_is_help(tosaic: Command) -> None:
    done = tosaic()
    assert done.code == 2 and "Commands:" in done.stderr and "error" not in done.stderr.split("Exit codes")[0]


def test_float_graph_for_an_npu(tosaic: Command, tmp_path: Path, relu: Path) -> None:
    done = tosaic("compile", relu, "--no-quantize", "-o", tmp_path / "x.pte")
    _refuse(
        done,
        "the model is float and ethos-u55-128 is an integer NPU",
        "leave out `--no-quantize`",
        "with `--no-delegate`",
    )
    assert not (tmp_path / "x.pte").exists()


def test_nothing_to_write_for_an_integer_tosa_target(tosaic: Command, tmp_path: Path, relu: Path) -> None:
    done = tosaic("compile", relu, "--no-quantize", "-t", "TOSA-1.0+INT", "-o", tmp_path / "x.tosa")
    _refuse(done, "nothing to write", "integer", "fix: `-o NAME.pte`")


def test_tool_timeout_and_the_old_file_stays(tosaic: Command, tmp_path: Path, relu: Path) -> None:
    output = tmp_path / "relu.pte"
    output.write_bytes(b"the last good one")
    # No other test has compiled this shape, so the answer is not in the cache.
    relu.write_text(relu.read_text().replace("reshape(2, 3)", "reshape(1, 6)"))
    done = tosaic("compile", relu, "-o", output, env={"TOSAIC_TOOL_TIMEOUT": "0.001"})
    _refuse(done, "did not answer within", "TOSAIC_TOOL_TIMEOUT", code=3)
    assert output.read_bytes() == b"the last good one"
    assert not list(tmp_path.glob(".*")) and not (tmp_path / "relu.tosaic").exists()


def test_unwritable_output(tosaic: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    done = tosaic("compile", "add", "-o", tmp_path / "good.pte", "--header", tmp_path / "file" / "x.h")
    _refuse(done, f"cannot write `{tmp_path}/file/x.h`", "is not a folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_unknown_exceptions_ask_for_debug(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, _: int | None) -> None:
        raise ValueError(f"no {name}\nsecond line")

    monkeypatch.setattr(model_file, "check", fail)
    done = tosaic("compile", "add")
    _refuse(done, "error: ValueError: no add", "`--debug`", code=3)
    assert "second line" not in done.stderr
    done = tosaic("compile", "add", "--debug")
    assert done.code == 3 and "Traceback (most recent call last)" in done.stderr


def test_debug_shows_where_a_refusal_comes_from(tosaic: Command) -> None:
    done = tosaic("compile", "nothing_like_it", "--debug")
    assert done.code == 2 and "Traceback" in done.stderr and "unknown model" in done.stderr


def test_interrupt(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str, _: int | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model_file, "check", interrupt)
    done = tosaic("compile", "add")
    assert (done.code, done.stderr) == (130, "interrupted\n")


def test_words_of_an_error() -> None:
    error = Invalid("what", where="there", why="because", fix="so")
    assert explain(error) == "error: what\n  where: there\n  why: because\n  fix: so"
