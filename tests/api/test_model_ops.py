"""Which operators a .pt2 may call: what exporters write passes, what does more than compute is refused by name."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support import hostile
from support.models import quantize_model
from tosaic import zoo
from tosaic.api import model_file, model_ops
from tosaic.core.errors import Invalid
from tosaic.ops import registry

IMAGE = torch.randn(2, 3, 8, 8)
TEXT = torch.randn(2, 3, 8)


class Net(nn.Module):
    """A function, and the modules that it uses."""

    def __init__(self, run: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.run = run
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.run(self.parts, *inputs)


def _write_in_place(_: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.add_(1).mul_(2).relu_().clamp_(0, 1)
    y[:, 0] = 0
    y[:, 1] = x[:, 2]
    y[0].fill_(3.0)
    return y.squeeze_(0).transpose_(0, 1)


def _put(_: nn.ModuleList, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[i] = 1.0
    y.index_put_((i,), torch.zeros(8))
    y.masked_fill_(y > 1, 0.0).scatter_(1, torch.zeros(2, 3, dtype=torch.long), 1.0)
    return y


def _modes(_: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return y @ y


def _mix(_: nn.ModuleList, x: torch.Tensor) -> Any:
    return (
        (x.to(torch.float16).float().roll(1, 2).flip(3), torch.topk(x, 2)[0], x.sort()[0], x.std((2, 3)), x.norm()),
        (torch.fft.rfft(x).real, nn.functional.interpolate(x, scale_factor=2.0), x.cumsum(1), torch.tril(x)),
        (nn.functional.pad(x, (1, 1, 1, 1), "reflect"), nn.functional.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)),
        (nn.functional.grid_sample(x, torch.zeros(2, 4, 4, 2)), nn.functional.unfold(x, 2), x.unfold(2, 3, 1)),
        (torch.cdist(x[0], x[0]), x.chunk(3, 1)[1], torch.meshgrid(x[0, 0, 0], x[0, 0, 0], indexing="ij")[0]),
        (torch.linspace(0, 1, 4), torch.arange(4.0) + torch.randn(4), x.detach(), x.bernoulli(), torch.tensor([1.0])),
        (
            x.median(),
            x.kthvalue(1)[0],
            x.cummax(1)[0],
            x.prod(),
            x.argsort(),
            torch.var_mean(x, 1),
            torch.where(x > 0, x, -x),
        ),
    )


MODELS: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
    "in place": (Net(_write_in_place), (IMAGE,)),
    "dropout": (Net(lambda parts, x: nn.functional.dropout2d(parts[0](x), 0.1, False), nn.Dropout(0.3)), (IMAGE,)),
    "norms": (
        Net(
            lambda parts, x: parts[3](parts[2](parts[1](parts[0](x)))),
            *(nn.BatchNorm2d(3), nn.InstanceNorm2d(3), nn.GroupNorm(3, 3), nn.LayerNorm(8)),
        ),
        (IMAGE,),
    ),
    "embedding": (Net(lambda parts, i: parts[0](i), nn.Embedding(10, 4)), (torch.arange(6).reshape(2, 3),)),
    "embedding bag": (Net(lambda parts, i: parts[0](i), nn.EmbeddingBag(10, 4)), (torch.arange(6).reshape(2, 3),)),
    "lstm": (Net(lambda parts, x: parts[0](x)[0], nn.LSTM(8, 5, batch_first=True, bidirectional=True)), (TEXT,)),
    "gru": (Net(lambda parts, x: parts[0](x)[0], nn.GRU(8, 5)), (TEXT,)),
    "attention": (Net(lambda parts, x: parts[0](x, x, x)[0], nn.MultiheadAttention(8, 2, batch_first=True)), (TEXT,)),
    "encoder": (Net(lambda parts, x: parts[0](x), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), (TEXT,)),
    "einsum": (Net(lambda parts, x: torch.einsum("bchw,bdhw->bcd", x, x)), (IMAGE,)),
    "one hot": (Net(lambda parts, i: nn.functional.one_hot(i, 5).float()), (torch.arange(4),)),
    "index put": (Net(_put), (torch.randn(4, 8), torch.tensor([0, 2]))),
    "branches": (
        Net(lambda parts, x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))),
        (torch.randn(3),),
    ),
    "modes": (Net(_modes), (torch.randn(3, 3),)),
    "mix": (Net(_mix), (IMAGE,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_exporters_write_passes(name: str, tmp_path: Path) -> None:
    model, inputs = MODELS[name]
    theirs = torch.export.export(model.eval(), inputs)
    torch.export.save(theirs, tmp_path / "x.pt2")
    ours, _ = model_file.load(str(tmp_path / "x.pt2"))
    assert [node.target for node in ours.graph.nodes] == [node.target for node in theirs.graph.nodes]
    assert all(torch.equal(a, b) for a, b in zip(ours.example_inputs[0], inputs, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_every_zoo_model_passes(name: str, tmp_path: Path) -> None:
    theirs = torch.export.export(*zoo.load(name))
    torch.export.save(theirs, tmp_path / "x.pt2")
    ours, _ = model_file.load(str(tmp_path / "x.pt2"))
    assert [node.target for node in ours.graph.nodes] == [node.target for node in theirs.graph.nodes]
    assert all(torch.equal(tensor, theirs.state_dict[name]) for name, tensor in ours.state_dict.items())


def test_a_quantized_program_passes(tmp_path: Path) -> None:
    theirs = quantize_model("softmax")[2]
    assert "quantized_decomposed" in str(theirs.graph)
    torch.export.save(theirs, tmp_path / "x.pt2")
    ours, _ = model_file.load(str(tmp_path / "x.pt2"))
    assert str(ours.graph) == str(theirs.graph)


def test_operators_of_the_registry_pass() -> None:
    importlib.import_module("executorch.exir.dialects._ops")  # registers the operators of the edge dialect

    names = [f"torch.ops.{name}" for record in registry().records.values() for name in record.overloads]
    known = [name for name in names if model_ops._is_operator(name)]
    assert len(known) > 200
    model_ops.refuse(known, "x.pt2")


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.from_file.out",
        "aten.set_.source_Storage",
        "aten.set_data.default",
        "aten.resize_.default",
        "aten.requires_grad_.default",
        "aten.record_stream.default",
        "aten.add.out",
        "aten._cufft_set_plan_cache_max_size.default",
        "aten.fbgemm_pack_gemm_matrix_fp16.default",
        "aten.quantized_lstm_cell.default",
        "aten.mkldnn_linear.default",
        "aten._sparse_coo_tensor_unsafe.default",
        "aten._test_serialization_subcmul.default",
        "prim.device.default",
        "profiler._record_function_enter_new.default",
        "higher_order.while_loop",
        "higher_order.auto_functionalized",
        "higher_order.triton_kernel_wrapper_mutation",
        "_c10d_functional.all_reduce.default",
        "inductor.resize_storage_bytes_.default",
    ],
)
def test_operators_that_do_more_than_compute(name: str) -> None:
    with pytest.raises(Invalid, match="which Tosaic does not run for an untrusted file") as caught:
        model_ops.refuse([f"torch.ops.{name}"], "x.pt2")
    assert f"calls `{name.removesuffix('.default')}`" in caught.value.what


@pytest.mark.parametrize(
    "name",
    [
        "torch.ops.load_library",
        "torch.ops.loaded_libraries.add",
        "torch.ops.import_module",
        "torch.ops.aten.__class__",
        "torch.ops.aten.add.__class__",
        "torch.ops.aten.add._op",
        "torch.ops.aten.add.default.decompose",
        "torch.ops.aten.nothing.default",
        "torch.load",
        "_operator.call",
        "_operator.methodcaller",
        "_operator.setitem",
        "_operator.getitem.__self__",
        "math.sqrt",
        "",
    ],
)
def test_what_is_no_operator_cannot_be_allowed(name: str) -> None:
    short = name.removeprefix("torch.ops.")
    assert not model_ops.is_allowed(name, {name, short})


def _read_a_file(folder: Path) -> tuple[Path, Path]:
    """A .pt2 that calls an operator which makes and reads a file, and that file."""
    made, path = folder / "made", folder / "x.pt2"
    model = Net(lambda parts, x: x + torch.ones(4))
    torch.export.save(torch.export.export(model, (torch.ones(4),)), path)

    def change(content: Any) -> None:
        node = content["graph_module"]["graph"]["nodes"][0]
        assert node["target"] == "torch.ops.aten.ones.default"
        given = {"filename": {"as_string": str(made)}, "shared": {"as_bool": True}, "size": {"as_int": 4}}
        node["target"] = "torch.ops.aten.from_file.default"
        node["inputs"] = [{"name": name, "arg": value, "kind": 1} for name, value in given.items()]

    files = hostile.edit_json(hostile.unpack(path.read_bytes()), "x/models/model.json", change)
    path.write_bytes(hostile.plain(files))
    return path, made


def test_a_program_makes_no_files(tmp_path: Path) -> None:
    path, made = _read_a_file(tmp_path)
    with pytest.raises(Invalid, match=r"calls `aten\.from_file`, which Tosaic does not run") as caught:
        model_file.load(str(path))[0].module()(torch.ones(4))
    assert "name `aten.from_file` in `allow_ops`" in caught.value.fix
    assert not made.exists()


@pytest.mark.parametrize("name", ["aten.from_file", "aten.from_file.default"])
def test_an_operator_that_the_user_allows(tmp_path: Path, name: str) -> None:
    path, made = _read_a_file(tmp_path)
    assert model_file.load(str(path), allow_ops=[name])[0].module()(torch.ones(4)).tolist() == [1.0] * 4
    assert made.exists()
