"""Models by name and by file; an exported file must not be able to run code."""

import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tosaic import model_archive, model_file
from tosaic.errors import Invalid

NET = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1.0

"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Net().eval(), (torch.randn(4, 3),)), path)
    return path


def _write(path: Path, text: str) -> str:
    path.write_text(NET + text)
    return str(path)


def test_zoo_names() -> None:
    module, inputs = model_file.load("add")
    assert isinstance(module, torch.nn.Module) and inputs is not None and len(inputs) == 1
    with pytest.raises(Invalid, match="no model named `adder`") as caught:
        model_file.load("adder")
    assert "`add`" in caught.value.fix


@pytest.mark.parametrize(
    "text",
    [
        "model = Net().eval()\ninputs = (torch.ones(2),)",
        "model = Net().eval()\nexample_inputs = [torch.ones(2)]",
        "model = Net().eval()\ninputs = torch.ones(2)",
        "ModelUnderTest = Net().eval()\nModelInputs = (torch.ones(2),)",
        "def model():\n    return Net().eval()\ndef inputs():\n    return (torch.ones(2),)",
        "class model(Net):\n    pass\ninputs = (torch.ones(2),)",
    ],
    ids=["plain", "list", "tensor", "executorch", "functions", "class"],
)
def test_python_files(tmp_path: Path, text: str) -> None:
    module, inputs = model_file.load(_write(tmp_path / "net.py", text))
    assert inputs is not None
    assert [tuple(x.shape) for x in inputs] == [(2,)]
    assert module(*inputs).tolist() == [2.0, 2.0]


def test_a_python_file_may_import_its_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tosaic_test_neighbour.py").write_text(NET)
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nfrom tosaic_test_neighbour import Net\nmodel, inputs = Net().eval(), (torch.ones(2),)\n"
    )
    assert type(model_file.load(str(path))[0]).__name__ == "Net"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("inputs = (torch.ones(2),)", "defines none of `model`"),
        ("model = Net()", "defines none of `inputs`"),
        ("model = 3\ninputs = ()", "the model in"),
        ("model = Net()\ninputs = {'x': 1}", "are of type `dict`"),
        ("raise ValueError('no data')", "raises ValueError while it is imported"),
        ("raise SystemExit(0)", "raises SystemExit while it is imported"),
        ("def model(:", "raises SyntaxError"),
        ("def model():\n    return torch.ones(2) @ torch.ones(3)\n", "raises RuntimeError while `model()` is called"),
    ],
)
def test_refused_python_files(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        model_file.load(_write(tmp_path / "bad.py", text))
    assert words in str(caught.value)
    if "raises" in words:
        line = 9 if "called" in words else 8
        assert caught.value.where == f"{tmp_path / 'bad.py'}:{line}"


def test_the_line_of_a_file_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "bad.py", "raise ValueError('no data')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid) as caught:
        model_file.load("bad.py")
    assert caught.value.where == "bad.py:8"


def test_a_file_without_its_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "net.py", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match="no model named `net`") as caught:
        model_file.load("net")
    assert "`net.py`" in caught.value.fix


@pytest.mark.parametrize("name", ["nothing.py", "nothing.pt2", "a/model.onnx", "weights.pth", "program.pte"])
def test_names_that_are_no_model(name: str) -> None:
    with pytest.raises(Invalid):
        model_file.load(name)


def test_exported_programs(exported: Path) -> None:
    program, inputs = model_file.load(str(exported))
    assert inputs is None
    assert program.module()(torch.ones(4, 3)).shape == (4, 2)
    assert model_archive.FORCE not in os.environ


def _repack(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with other contents."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def _edit(key: str, value: Any) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        content = json.loads(files["net/models/model.json"])
        content[key] = value
        files["net/models/model.json"] = json.dumps(content).encode()

    return change


def _call(target: str) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        content = json.loads(files["net/models/model.json"])
        content["graph_module"]["graph"]["nodes"][0]["target"] = target
        files["net/models/model.json"] = json.dumps(content).encode()

    return change


class _Danger:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_edit("guards_code", ["__import__('os').system('true')"]), "dynamic shapes"),
        (_edit("extra", {"expr_str": "__import__('os')"}), "dynamic shapes"),
        (_call("torch.os.system"), "calls `torch.os.system`"),
        (lambda files: files.update({"net/data/constants/opaque_obj_0": b"x"}), "run on loading"),
        (lambda files: files.update({"net/data/aotinductor/model/x.so": b"x"}), "run on loading"),
        (lambda files: files.update({"NET/MODELS/MODEL.JSON": b"{}"}), "same name"),
        (lambda files: files.pop("net/models/model.json"), "no part `models/*.json`"),
        (lambda files: files.update({"net/models/model.json": b"{"}), "no exported program"),
        (lambda files: files.update({"net/models/model.json": b"[" * 100_000}), "no exported program"),
        (lambda files: files.update({"net/models/model.json": b"{}"}), "no exported program"),
    ],
    ids=["guard", "expression", "target", "object", "native", "case", "missing", "json", "deep", "empty"],
)
def test_archives_that_are_refused(exported: Path, change: Callable[[dict[str, bytes]], None], words: str) -> None:
    with pytest.raises(Invalid) as caught:
        model_file.load(str(_repack(exported, change)))
    assert words in str(caught.value)


def test_pickles_in_an_archive_are_not_run(exported: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    data = pickle.dumps({"x": _Danger(mark)})

    def change(files: dict[str, bytes]) -> None:
        files["net/data/sample_inputs/model.pt"] = data

    with pytest.raises(Invalid, match="is no exported program"):
        model_file.load(str(_repack(exported, change)))
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"], ids=["empty", "text", "zip"])
def test_files_that_are_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pt2"
    path.write_bytes(content)
    with pytest.raises(Invalid, match="is no exported program"):
        model_file.load(str(path))
