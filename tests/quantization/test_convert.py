"""Observers and conversion: the same graphs, names and constants as torchao's prepare_pt2e and convert_pt2e."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e import quantize_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, Quantizer

import tosaic
from support.modules import Call
from tosaic.quantization.prepare import attribute
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config, get_uint8_io_quantization_config


class Branches(nn.Module):
    """A tensor with several readers, a concatenation, a product of computed matrices, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.cat([torch.relu(self.norm(self.a(x))), self.b(x)], 1)
        return y + y.flip(1), torch.softmax(y.flatten(2) @ y.flatten(2).mT, -1)


class Counter(nn.Module):
    """A buffer that is written, and a weight that is computed."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 8))
        self.weight, self.gain = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.rand(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.copy_(self.total + x)
        return nn.functional.linear(self.total * 0.5 + x, self.weight * self.gain)


class Norms(nn.Module):
    """Norms after a linear layer, a transposed convolution and a convolution that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.first = nn.ConvTranspose2d(3, 4, 2, 2), nn.BatchNorm2d(4)
        self.twice, self.second = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.full, self.third = nn.Linear(4, 6), nn.BatchNorm1d(6)
        for norm in (self.first, self.second, self.third):
            nn.init.uniform_(norm.weight, 0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(self.up(x))
        y = self.second(self.twice(torch.relu(self.second(self.twice(y)))))
        return self.third(self.full(y.mean((2, 3))))


def describe(module: Any) -> list[tuple[str, ...]]:
    """Describe each node with its location, and the tensor that it reads."""
    rows: list[tuple[str, ...]] = []
    for node in module.graph.nodes:
        read = attribute(module, node) if node.op == "get_attr" else None
        numbers = f"{read.dtype} {read.tolist()}" if isinstance(read, torch.Tensor) else ""
        place = str(node.meta.get("stack_trace"))
        rows.append((node.name, str(node.target), str(node.args), str(node.kwargs), place, numbers))
    return rows


def quantize_with_torchao(program: Any, samples: list[tuple[torch.Tensor, ...]], quantizer: Quantizer) -> Any:
    with torch.no_grad():
        prepared = quantize_pt2e.prepare_pt2e(program.module(), quantizer)
        for sample in samples:
            prepared(*sample)
        return quantize_pt2e.convert_pt2e(prepared)


def make_quantizer() -> TosaQuantizer:
    return TosaQuantizer().set_global(get_symmetric_quantization_config())


def make_io_quantizer() -> TosaQuantizer:
    return make_quantizer().set_io(get_uint8_io_quantization_config())


@pytest.mark.parametrize(
    ("kind", "shape", "make"),
    [
        (Branches, (2, 3, 6, 6), make_io_quantizer),
        (Norms, (2, 3, 4, 4), make_quantizer),
        (nn.TransformerEncoderLayer, (1, 5, 16), make_quantizer),
    ],
)
def test_the_graph_is_that_of_torchao(kind: Any, shape: tuple[int, ...], make: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = (kind(16, 2, 32, batch_first=True) if kind is nn.TransformerEncoderLayer else kind()).eval()
        samples = [(torch.randn(shape),) for _ in range(3)]
    program = torch.export.export(model, samples[0])
    found = tosaic.quantize(program, samples, make())
    assert describe(found) == describe(quantize_with_torchao(program, samples, make()))
    assert not any(isinstance(child, torch.ao.quantization.ObserverBase) for child in found.children())


def test_a_written_buffer_is_kept() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, samples = Counter().eval(), [(torch.randn(1, 8),) for _ in range(3)]
    program = torch.export.export(model, samples[0])
    found = tosaic.quantize(program, samples)
    written = [node for node in found.graph.find_nodes(op="get_attr") if str(node.target) == "total"]
    start = found.get_buffer("total").clone()
    assert written and start.dtype is torch.int8 and start.unique().numel() == 1
    before = found(*samples[0])
    assert not torch.equal(found.get_buffer("total"), start)
    assert not torch.equal(before, found(*samples[0]))


@pytest.mark.parametrize("inside", [False, True])
def test_all_else_is_left_to_torchao(inside: bool) -> None:
    """Ranges that are measured at run time are not converted here, also if another quantizer inside ours has them."""

    class Dynamic(Quantizer):
        def annotate(self, model: Any) -> Any:
            from torchao.quantization.pt2e import PlaceholderObserver
            from torchao.quantization.pt2e.quantizer import QuantizationSpec

            spec = QuantizationSpec(torch.int8, PlaceholderObserver, -128, 127, torch.per_tensor_affine, None, True)
            for node in model.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
                node.meta["quantization_annotation"] = QuantizationAnnotation({node.args[0]: spec}, None, {}, True)
            return model

        def validate(self, model: Any) -> None: ...

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, samples = nn.Sequential(nn.Linear(4, 3)).eval(), [(torch.randn(2, 4),)]
    quantizer = make_quantizer().add_quantizer(Dynamic()) if inside else Dynamic()
    found = tosaic.quantize(torch.export.export(model, samples[0]), samples, quantizer)
    assert any("choose_qparams" in str(node.target) for node in found.graph.nodes)


def test_a_norm_stays_where_its_layer_has_other_readers() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
            nn.init.constant_(self.norm.weight, 5.0)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.layer(x)
            return self.norm(y), y

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, samples = Two().eval(), [(torch.randn(1, 3, 4, 4),) for _ in range(2)]
    found = tosaic.quantize(torch.export.export(model, samples[0]), samples)
    with torch.no_grad():
        for got, wanted in zip(found(*samples[0]), model(*samples[0]), strict=True):
            assert torch.allclose(got, wanted, atol=0.03 * float(wanted.abs().max()))


def test_a_dropout_in_place_needs_no_second_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("tosaic.driver.exported.functionalize", refuse)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, x = (
            nn.Sequential(nn.Linear(4, 3), nn.Hardswish(), nn.Dropout(0.2, inplace=True)).eval(),
            torch.randn(2, 4),
        )
    assert len(tosaic.compile(model, (x,), "ethos-u55-128", calibration=[(x,)]).delegates) == 1


class Writes(nn.Module):
    """Writes to its input twice, and to a tensor of its own that has only its shape."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = x * 2.0
        x.index_copy_(0, torch.tensor([0, 2]), y)
        x.index_fill_(1, torch.tensor([1]), 0.5)
        filled = torch.full_like(y, 0.0).fill_(0.25)
        return before + x * filled.amax()


def test_an_input_that_is_written_to_is_quantized_and_gets_the_numbers_at_the_end() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        samples = (torch.randn(3, 4), torch.randn(2, 4))
    quantizer = TosaQuantizer().set_global(get_symmetric_quantization_config())
    exported = torch.export.export(Writes(), tuple(t.clone() for t in samples)).module()
    prepared = quantize_pt2e.prepare_pt2e(exported, quantizer)
    prepared(*(t.clone() for t in samples))
    found = quantize_pt2e.convert_pt2e(prepared)
    targets = [str(n.target) for n in found.graph.nodes]
    assert "aten.index_put.default" in targets
    assert not {"aten.index_copy_.default", "aten.index_fill_.int_Scalar", "aten.full_like.default"} & set(targets)
    (wanted_x, wanted_y), (x, y) = ([t.clone() for t in samples] for _ in range(2))
    wanted, got = Writes()(wanted_x, wanted_y), found(x, y)
    assert torch.allclose(got, wanted, atol=0.1)
    assert not torch.equal(x, samples[0])
    assert torch.allclose(x, wanted_x, atol=0.05)


def test_an_elementwise_call_in_place_does_not_change_the_calibration_data() -> None:
    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x += y
        return x.relu_() * 2.0

    x, y = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 0.5]])
    model = torch.export.export(Call(compute), (x.clone(), y)).module()
    prepared = quantize_pt2e.prepare_pt2e(model, TosaQuantizer().set_global(get_symmetric_quantization_config()))
    prepared(x, y)
    assert torch.equal(x, torch.tensor([[1.0, -2.0]]))
    assert torch.allclose(quantize_pt2e.convert_pt2e(prepared)(x, y), torch.tensor([[3.0, 0.0]]), atol=0.03)


class ViewedInput(nn.Module):
    """Reads a view of its input after writing to the input."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        row = x[0]
        x.index_copy_(0, torch.tensor([0]), y)
        return row * 2.0


def test_a_write_that_a_view_of_the_input_shows_stays_in_place() -> None:
    sample = (torch.zeros(2, 3), torch.ones(1, 3))
    model = torch.export.export(ViewedInput(), sample).module()
    TosaQuantizer().set_global(get_symmetric_quantization_config()).transform_for_annotation(model)
    targets = [str(n.target) for n in model.graph.nodes]
    assert "aten.index_copy_.default" in targets and "aten.copy_.default" not in targets
