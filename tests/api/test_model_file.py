"""Models by name and by file; an exported file must not be able to run code."""

import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support import hostile
from support.cli import run_command
from tosaic.api import model_file
from tosaic.core.errors import Invalid

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
    with pytest.raises(Invalid, match="unknown model `adder`") as caught:
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


def test_a_python_file_may_import_its_neighbor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tosaic_test_neighbor.py").write_text(NET)
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nfrom tosaic_test_neighbor import Net\nmodel, inputs = Net().eval(), (torch.ones(2),)\n"
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
    with pytest.raises(Invalid, match="unknown model `net`") as caught:
        model_file.load("net")
    assert "`net.py`" in caught.value.fix


@pytest.mark.parametrize("name", ["nothing.py", "nothing.pt2", "a/model.onnx", "weights.pth", "program.pte"])
def test_names_that_are_no_model(name: str) -> None:
    with pytest.raises(Invalid):
        model_file.load(name)


def test_exported_programs(exported: Path) -> None:
    program, inputs = model_file.load(str(exported))
    assert inputs is None
    theirs = torch.export.load(exported)
    assert torch.equal(program.module()(torch.ones(4, 3)), theirs.module()(torch.ones(4, 3)))
    assert list(program.state_dict) == list(theirs.state_dict)
    assert program.example_inputs[1] == {}
    assert theirs.example_inputs is not None
    assert torch.equal(program.example_inputs[0][0], theirs.example_inputs[0][0])
    assert str(program.graph) == str(theirs.graph)


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_edit("guards_code", ["__import__('os').system('true')"]), "dynamic shapes"),
        (_edit("extra", {"expr_str": "__import__('os')"}), "dynamic shapes"),
        (_edit("range_constraints", {"u99999999999": {"min_val": 0, "max_val": 1}}), "dynamic shapes"),
        (_call("torch.os.system"), "calls `torch.os.system`"),
        (_call("torch.ops.load_library"), "calls `load_library`"),
        (_call("torch.ops.import_module"), "calls `import_module`"),
        (_call("torch.ops.aten.__class__.__init__"), "calls `aten.__class__"),
        (_call("_operator.call"), "calls `_operator.call`"),
        (_call("_operator.__loader__.get_data"), "calls `_operator.__loader__.get_data`"),
        (_call("math.factorial"), "calls `math.factorial`"),
        (_call("#aten:add"), "calls `#aten:add`"),
        (_edit("extra", {"as_operator": "torch.ops.aten.from_file.default"}), "calls `aten.from_file`"),
        (_edit("extra", {"as_custom_obj": {"name": "x", "class_fqn": "y"}}), "run on loading"),
        (lambda files: files.update({"net/data/constants/opaque_obj_0": b"x"}), "run on loading"),
        (lambda files: files.update({"net/data/aotinductor/model/x.so": b"x"}), "run on loading"),
        (lambda files: files.update({"NET/MODELS/MODEL.JSON": b"{}"}), "the name occurs twice"),
        (lambda files: files.pop("net/models/model.json"), "no part `models/model.json`"),
        (lambda files: files.update({"net/models/model.json": b"{"}), "not an exported program"),
        (lambda files: files.update({"net/models/model.json": b"[" * 100_000}), "not an exported program"),
        (lambda files: files.update({"net/models/model.json": b"{}"}), "not an exported program"),
    ],
    ids=[
        "guard",
        "expression",
        "range",
        "attribute",
        "library",
        "module",
        "class",
        "call",
        "loader",
        "math",
        "extension",
        "operator",
        "custom object",
        "object",
        "native",
        "case",
        "missing",
        "json",
        "deep",
        "empty",
    ],
)
def test_archives_that_are_refused(exported: Path, change: Callable[[dict[str, bytes]], None], words: str) -> None:
    with pytest.raises(Invalid) as caught:
        model_file.load(str(_repack(exported, change)))
    assert words in str(caught.value)


def test_pickles_in_an_archive_are_not_run(exported: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    data = pickle.dumps({"x": hostile.Danger(mark)})

    def change(files: dict[str, bytes]) -> None:
        files["net/data/sample_inputs/model.pt"] = data

    with pytest.raises(Invalid, match="the example inputs of"):
        model_file.load(str(_repack(exported, change)))
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["constants", "weights"])
def test_pickled_tensors_in_an_archive_are_not_run(exported: Path, tmp_path: Path, kind: str) -> None:
    mark = tmp_path / "was-run"
    part = {"constants": "tensor_9", "weights": "weight_9"}[kind]
    meta = {"path_name": part, "is_param": False, "use_pickle": True, "tensor_meta": None}

    def change(files: dict[str, bytes]) -> None:
        name = f"net/data/{kind}/model_{kind}_config.json"
        files |= hostile.edit_json(files, name, lambda config: config["config"].update(evil=meta))
        files[f"net/data/{kind}/{part}"] = pickle.dumps(hostile.Danger(mark))

    with pytest.raises(Invalid, match="run on loading"):
        model_file.load(str(_repack(exported, change)))
    assert not mark.exists()


def test_an_archive_with_two_directories_runs_nothing(exported: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    shown = hostile.unpack(exported.read_bytes())
    hidden = hostile.pickled_constant(shown, mark)
    # As many entries, with names of the same lengths.
    shown["net/data/constants/tensor_xxxx0"] = b"x"
    exported.write_bytes(hostile.two_directories(shown, hidden))
    seen_by_torch = torch._C.PyTorchFileReader(str(exported)).get_all_records()
    assert "data/constants/opaque_obj_0" in seen_by_torch
    with zipfile.ZipFile(exported) as archive:
        assert "net/data/constants/opaque_obj_0" not in archive.namelist()
    with pytest.raises(Invalid, match="is not an exported program"):
        model_file.load(str(exported))
    assert not mark.exists()


@pytest.mark.parametrize("kind", hostile.AMBIGUOUS)
def test_ambiguous_archives(exported: Path, kind: str) -> None:
    exported.write_bytes(hostile.AMBIGUOUS[kind](hostile.unpack(exported.read_bytes())))
    with pytest.raises(Invalid, match="is not an exported program"):
        model_file.load(str(exported))


def _rename(graph: dict[str, Any], name: str) -> None:
    """Give the result of the last node another name, wherever it is used."""
    old = graph["graph"]["nodes"][-1]["name"]
    text = json.dumps(graph).replace(json.dumps(old), json.dumps(name))
    graph |= json.loads(text)


def test_names_are_not_printed_into_code(exported: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    code = f"x = __import__('pathlib').Path({str(mark)!r}).touch(); y"

    def change(files: dict[str, bytes]) -> None:
        files |= hostile.edit_json(files, "net/models/model.json", lambda all: _rename(all["graph_module"], code))

    path = str(_repack(exported, change))
    with pytest.raises(Invalid, match="is not an exported program") as caught:
        model_file.load(path)[0].module()(torch.ones(4, 3))
    assert "cannot be a name" in caught.value.why
    assert not mark.exists()


@pytest.mark.parametrize("key", ["parameter_name", "fqn", "forward_arg_names", "config"])
def test_names_with_quotes_are_refused(exported: Path, key: str) -> None:
    evil = 'linear.a");print("'

    def change(files: dict[str, bytes]) -> None:
        name = "net/data/weights/model_weights_config.json" if key == "config" else "net/models/model.json"
        content = files[name].decode().replace('"linear.weight"', json.dumps(evil)).replace('"fqn": ""', '"fqn": "\\""')
        files[name] = content.replace('"forward_arg_names": ["x"]', '"forward_arg_names": ["x=print()"]').encode()

    with pytest.raises(Invalid) as caught:
        model_file.load(str(_repack(exported, change)))
    assert "cannot be a name" in caught.value.why


@pytest.mark.parametrize(
    "node",
    [
        {
            "type": "collections.defaultdict",
            "context": {"default_factory_module": "os", "default_factory_name": "abort"},
        },
        {"type": "builtins.dict", "context": '[{"__enum__": true, "fqn": "antigravity:x", "name": "x"}]'},
        {"type": "collections.namedtuple", "context": "x"},
        {"type": "builtins.dict", "context": '["x=print()"]'},
    ],
    ids=["factory", "module", "namedtuple", "key"],
)
def test_trees_that_import_modules(exported: Path, node: dict[str, Any]) -> None:
    spec = json.dumps([1, {**node, "children_spec": []}])

    def edit(content: Any) -> None:
        content["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = spec

    def change(files: dict[str, bytes]) -> None:
        files |= hostile.edit_json(files, "net/models/model.json", edit)

    sys.modules.pop("antigravity", None)
    with pytest.raises(Invalid, match="is not an exported program"):
        model_file.load(str(_repack(exported, change)))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [{"as_int": 1 << 20}, {"as_int": 3}]},
        {"storage_offset": {"as_int": 1}},
        {"storage_offset": {"as_int": -1}},
        {"strides": [{"as_int": 1 << 40}, {"as_int": 1}]},
        {"sizes": [{"as_int": 1 << 30}, {"as_int": 1 << 30}], "strides": [{"as_int": 0}, {"as_int": 0}]},
        {"sizes": [{"as_int": True}, {"as_int": 3}]},
        {"dtype": 99},
    ],
    ids=["size", "offset", "negative", "stride", "repeated", "bool", "dtype"],
)
def test_weights_outside_of_their_bytes(exported: Path, change: dict[str, Any]) -> None:
    def edit(config: Any) -> None:
        config["config"]["linear.weight"]["tensor_meta"].update(change)

    def repack(files: dict[str, bytes]) -> None:
        files |= hostile.edit_json(files, "net/data/weights/model_weights_config.json", edit)

    with pytest.raises(Invalid):
        model_file.load(str(_repack(exported, repack)))


def test_a_weight_without_bytes_allocates_nothing(exported: Path) -> None:
    def edit(config: Any) -> None:
        config["config"]["linear.weight"]["tensor_meta"]["sizes"] = [{"as_int": 1 << 40}, {"as_int": 3}]

    def repack(files: dict[str, bytes]) -> None:
        files |= hostile.edit_json(files, "net/data/weights/model_weights_config.json", edit)
        files["net/data/weights/weight_0"] = b""

    with pytest.raises(Invalid, match="damaged"):
        model_file.load(str(_repack(exported, repack)))


def test_json_bombs(exported: Path) -> None:
    bomb = b'{"x": [' + b"[]," * 4_000_000 + b"0]}"
    path = _repack(exported, lambda files: files.update({"net/models/model.json": bomb}))
    with pytest.raises(Invalid, match=r"the JSON of `models/model\.json` needs") as caught:
        model_file.load(str(path), max_memory=256 << 20)
    assert "`max_memory`" in caught.value.fix


def test_max_memory_of_an_archive(exported: Path) -> None:
    with pytest.raises(Invalid, match="bytes of memory"):
        model_file.load(str(exported), max_memory=1000)
    assert model_file.load(str(exported), max_memory=1 << 22)[0] is not None


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"], ids=["empty", "text", "zip"])
def test_files_that_are_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pt2"
    path.write_bytes(content)
    with pytest.raises(Invalid, match="is not an exported program"):
        model_file.load(str(path))


SAMPLES = """
model = Net().eval()
inputs = (torch.ones(1, 2),)
"""


def test_a_file_may_have_calibration_samples(tmp_path: Path) -> None:
    loader = "from torch.utils.data import DataLoader\ncalibration = DataLoader(torch.rand(6, 2), batch_size=3)"
    found = model_file.load_with_samples(_write(tmp_path / "loader.py", f"{SAMPLES}{loader}"))
    samples: Any = found.calibration
    assert [len(batch) for batch in samples] == [3, 3]
    lazy = "def calibration():\n    yield from torch.rand(6, 1, 2)"
    found = model_file.load_with_samples(_write(tmp_path / "lazy.py", f"{SAMPLES}{lazy}"))
    assert isinstance(found.calibration, list) and len(found.calibration) == 6
    found = model_file.load_with_samples(_write(tmp_path / "beside.py", f"{SAMPLES}calibration = 'x.npy'"))
    assert found.calibration == tmp_path / "x.npy"
    for text in ("", "import json as calibration"):
        assert model_file.load_with_samples(_write(tmp_path / "none.py", f"{SAMPLES}{text}")).calibration is None


def test_the_command_takes_the_samples_of_a_file(tmp_path: Path) -> None:
    text = "calibration = [(torch.tensor([[-1.0, 3.0]]), 0), (torch.tensor([[2.0, -2.0]]), 1)]"
    path = _write(tmp_path / "net.py", f"{SAMPLES}{text}")
    for words, unused in (((), "no calibration data"), (("--no-quantize", "--no-delegate"), "was not used")):
        done = run_command("compile", path, "-o", tmp_path / "x.pte", *words)
        assert done.code == 0 and unused not in done.stdout, done.stderr
    np.save(tmp_path / "wrong.npy", np.ones((1, 3), np.float32))
    done = run_command("compile", path, "-o", tmp_path / "x.pte", "--calibration", tmp_path / "wrong.npy")
    assert done.code == 2 and "wrong.npy has shape [1, 3]" in done.stderr
