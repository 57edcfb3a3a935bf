"""Which parts are quantized, to what, and that nothing stands in the way of training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchao.quantization.pt2e import FusedMovingAvgObsFakeQuantize, MovingAveragePerChannelMinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, SharedQuantizationSpec

import tosaic
from tosaic.core.errors import Invalid
from tosaic.ethosu import EthosUCompileSpec
from tosaic.fx.source import overload
from tosaic.quantization.observe import _make_observers
from tosaic.quantization.prepare import ANNOTATION_KEY
from tosaic.quantizer import EthosUQuantizer, TOSAQuantizer, get_symmetric_quantization_config

SPEC = EthosUCompileSpec("ethos-u55-128")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        y = torch.relu(self.body(y) + y)
        return self.head(y.mean((2, 3)))


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def convert(quantizer: Any, model: nn.Module, *inputs: torch.Tensor, **options: Any) -> Any:
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(model.eval(), inputs).module(), quantizer)
        prepared(*inputs)
        return convert_pt2e(prepared, **options)


def counts(module: Any) -> dict[str, int]:
    names = [overload(n).split(".")[1] for n in module.graph.nodes if n.op == "call_function"]
    return {n: names.count(n) for n in names}


def test_plain_module_graph_with_guards() -> None:
    """`export().module()` is taken as it stands; another batch size may calibrate it afterwards."""
    model, inputs = Net().eval(), x(1, 3, 8, 8)
    module = torch.export.export(model, (inputs,)).module()
    prepared = prepare_pt2e(module, EthosUQuantizer(SPEC).set_global(get_symmetric_quantization_config()))
    prepared(x(4, 3, 8, 8))
    converted = convert_pt2e(prepared)
    assert not any(n.op == "call_module" for n in converted.graph.nodes)


@pytest.mark.parametrize("per_channel", [True, False])
def test_weights_per_channel_or_per_tensor(per_channel: bool) -> None:
    config = get_symmetric_quantization_config(is_per_channel=per_channel)
    module = convert(EthosUQuantizer(SPEC).set_global(config), Net(), x(1, 3, 8, 8))
    found = counts(module)
    assert found.get("dequantize_per_channel", 0) == (6 if per_channel else 0)
    weights = [b for b in module.buffers() if b.dtype is torch.int8]
    assert len(weights) == 3
    assert all(int(w.min()) >= -127 for w in weights)
    program = tosaic.compile(module, (x(1, 3, 8, 8),), "ethos-u55-128")
    assert len(program.delegates) == 1
    assert [r for r in program.reasons if not r.is_io] == []


def observed_between(module: Any, first: str, second: str) -> bool:
    """Whether a quantize stands between an op and its user."""
    for node in module.graph.nodes:
        if node.op == "call_function" and overload(node) == first:
            return all(overload(u) != second for u in node.users)
    raise AssertionError(first)


def test_conv_relu_and_add_relu_are_fused() -> None:
    module = convert(EthosUQuantizer(SPEC).set_global(get_symmetric_quantization_config()), Net(), x(1, 3, 8, 8))
    assert not observed_between(module, "aten.conv2d.default", "aten.relu.default")
    assert not observed_between(module, "aten.add.Tensor", "aten.relu.default")
    assert "batch_norm" not in counts(module)


class WritesIntoNewTensor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape).copy_(x) + x


class ReadsBeforeItWrites(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(x.shape)
        before = y + x
        return y.copy_(x) + before


def test_writing_into_a_new_tensor_is_quantized() -> None:
    quantizer = EthosUQuantizer(SPEC).set_global(get_symmetric_quantization_config())
    assert counts(convert(quantizer, WritesIntoNewTensor(), x(2, 3))) == {
        "quantize_per_tensor": 2,
        "dequantize_per_tensor": 2,
        "add": 1,
    }
    assert "copy_" in counts(convert(quantizer, ReadsBeforeItWrites(), x(2, 3)))


def test_module_name_type_and_none() -> None:
    config = get_symmetric_quantization_config()
    by_name = EthosUQuantizer(SPEC).set_global(config).set_module_name("body", None)
    by_type = EthosUQuantizer(SPEC).set_global(config).set_module_type(nn.Linear, None)
    only = EthosUQuantizer(SPEC).set_module_name("stem", config)
    for quantizer, left in ((by_name, "aten.conv2d.default"), (by_type, "aten.linear.default")):
        program = tosaic.compile(
            Net().eval(), (x(1, 3, 8, 8),), SPEC, calibration=[(x(1, 3, 8, 8),)], quantizer=quantizer
        )
        assert left in {r.op for r in program.reasons if not r.is_io}
        assert all("float" in r.why or "CPU" in r.why for r in program.reasons if r.op == left)
    found = counts(convert(only, Net(), x(1, 3, 8, 8)))
    assert found["quantize_per_tensor"] == 2


def test_io_config_quantizes_borders_only() -> None:
    quantizer = EthosUQuantizer(SPEC).set_io(get_symmetric_quantization_config())
    found = counts(convert(quantizer, Net(), x(1, 3, 8, 8)))
    assert found["quantize_per_tensor"] == found["dequantize_per_tensor"] == 2
    assert "dequantize_per_channel" not in found


def test_any_object_with_the_right_attributes() -> None:
    config = get_symmetric_quantization_config()
    foreign = SimpleNamespace(
        input_activation=config.input_activation,
        output_activation=config.output_activation,
        weight=config.weight,
        bias=None,
    )
    module = convert(EthosUQuantizer(SPEC).set_global(foreign), nn.Linear(4, 3), x(2, 4))
    assert counts(module)["dequantize_per_channel"] == 2
    with pytest.raises(Invalid, match="not a quantization configuration"):
        EthosUQuantizer(SPEC).set_global("int8")


def test_tosa_quantizer_wants_an_integer_profile() -> None:
    assert TOSAQuantizer("TOSA-1.0+INT").compile_spec.target.tosa_spec == "TOSA-1.0+INT"
    with pytest.raises(Invalid, match="no integer profile"):
        TOSAQuantizer("TOSA-1.0+FP")


def test_dynamic_quantization_is_refused() -> None:
    with pytest.raises(Invalid, match="dynamic quantization is not supported") as caught:
        get_symmetric_quantization_config(is_dynamic=True)
    assert "is_dynamic=True" in caught.value.fix


def test_unfolded_weights_and_float_bias() -> None:
    """A float weight behind its quantize, and a float bias beside an int8 weight, lower like the folded ones."""
    config = get_symmetric_quantization_config()
    inputs = x(2, 4)
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    folded = convert(EthosUQuantizer(SPEC).set_global(config), model, inputs)
    unfolded = convert(EthosUQuantizer(SPEC).set_global(config), model, inputs, fold_quantize=False)
    assert counts(unfolded)["quantize_per_channel"] == 2
    float_bias = SimpleNamespace(
        input_activation=config.input_activation,
        output_activation=config.output_activation,
        weight=config.weight,
        bias=SimpleNamespace(dtype=torch.float32),
    )
    third = convert(EthosUQuantizer(SPEC).set_global(float_bias), model, inputs)
    assert counts(third)["dequantize_per_channel"] == 1
    blobs = {tosaic.compile(m, (inputs,), SPEC).delegates[0].blob for m in (folded, unfolded, third)}
    assert len(blobs) == 1


@pytest.mark.parametrize("make", [lambda: nn.Conv2d(3, 4, 3), lambda: nn.ConvTranspose2d(4, 4, 3, groups=2)])
def test_a_function_in_place_of_a_bias_derives_it(make: Any) -> None:
    """The configurations of ExecuTorch have one."""
    config = get_symmetric_quantization_config()

    def derive(node: torch.fx.Node) -> Any:
        raise AssertionError(f"the bias of {node} is derived for the spec that its weight has here")

    given = SimpleNamespace(**{**vars(config), "bias": derive})
    torch.manual_seed(0)
    model = make().eval()
    inputs = x(1, model.in_channels, 5, 5)
    first, second = (convert(EthosUQuantizer(SPEC).set_global(c), model, inputs) for c in (config, given))
    assert counts(first) == counts(second)
    assert torch.equal(first(inputs), second(inputs))


def test_a_transposed_convolution_is_trained_with_any_weight_observer() -> None:
    """Its channels are dimension 1, even if the observer was made for dimension 0, and fused with its rounding."""
    config = get_symmetric_quantization_config(is_qat=True)
    observer = MovingAveragePerChannelMinMaxObserver
    fused = FusedMovingAvgObsFakeQuantize.with_args(observer=observer, ch_axis=0)
    weight = QuantizationSpec(torch.int8, fused, -127, 127, torch.per_channel_symmetric, 0)
    model, inputs = nn.ConvTranspose2d(3, 5, 3), x(1, 3, 4, 4)
    quantizer = EthosUQuantizer(SPEC).set_global(replace(config, weight=weight))
    prepared = prepare_qat_pt2e(torch.export.export(model, (inputs,)).module(), quantizer)
    prepared(inputs)
    converted = convert_pt2e(prepared)
    weights = [n for n in converted.graph.nodes if overload(n).endswith("dequantize_per_channel.default")]
    assert sorted(n.args[3] for n in weights) == [0, 1]
    assert len(tosaic.compile(converted, (inputs,), SPEC).delegates) == 1


def test_requantize_without_an_op_between() -> None:
    """A bare dequantize-quantize pair is a RESCALE."""

    class Pair(nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            q = torch.ops.quantized_decomposed
            a = q.quantize_per_tensor(t, 0.05, 3, -128, 127, torch.int8)
            b = q.quantize_per_tensor(
                q.dequantize_per_tensor(a, 0.05, 3, -128, 127, torch.int8), 0.031, -7, -128, 127, torch.int8
            )
            c = q.dequantize_per_tensor(b, 0.031, -7, -128, 127, torch.int8)
            d = q.quantize_per_tensor(torch.tanh(c), 1 / 128, 0, -128, 127, torch.int8)
            return q.dequantize_per_tensor(d, 1 / 128, 0, -128, 127, torch.int8)

    inputs = (x(3, 7),)
    program = tosaic.compile(torch.export.export(Pair(), inputs), inputs, SPEC)
    kinds = program.report().delegates[0].tosa_ops
    assert kinds == {"RESCALE": 1, "TABLE": 1}
    assert np.abs(program.run(*inputs)[0] - Pair()(*inputs).numpy()).max() <= 1.5 / 128


def test_decomposed_islands_become_one_table() -> None:
    """Several float ops between one dequantize and one quantize are one TABLE, whatever they are."""

    class Island(nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return torch.where(t > 0, t * torch.clamp(t + 3.0, 0.0, 6.0) / 6.0, torch.atan(t))

    inputs = (x(4, 9),)
    config = get_symmetric_quantization_config()
    q = torch.ops.quantized_decomposed

    class Wrapped(nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            a = q.dequantize_per_tensor(
                q.quantize_per_tensor(t, 0.02, 0, -128, 127, torch.int8), 0.02, 0, -128, 127, torch.int8
            )
            b = q.quantize_per_tensor(Island()(a), 0.02, 0, -128, 127, torch.int8)
            return q.dequantize_per_tensor(b, 0.02, 0, -128, 127, torch.int8)

    program = tosaic.compile(torch.export.export(Wrapped(), inputs), inputs, SPEC)
    assert program.report().delegates[0].tosa_ops == {"TABLE": 1}
    assert np.abs(program.run(*inputs)[0] - Wrapped()(*inputs).numpy()).max() <= 1e-6
    assert config.weight is not None


@pytest.mark.slow
def test_quantization_aware_training() -> None:
    """All parameters stay trainable, a step changes them, and the result is on the NPU."""
    torch.manual_seed(0)
    inputs = x(8, 3, 8, 8)
    module = torch.export.export(Net().train(), (inputs,)).module()
    quantizer = EthosUQuantizer(SPEC).set_global(get_symmetric_quantization_config(is_qat=True))
    prepared = prepare_qat_pt2e(module, quantizer)
    names = [n for n, p in prepared.named_parameters() if p.requires_grad]
    assert len(names) == 7
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
    before = [p.detach().clone() for p in prepared.parameters()]
    prepared(inputs).square().mean().backward()
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, prepared.parameters(), strict=True))
    from torchao.quantization.pt2e import move_exported_model_to_eval

    move_exported_model_to_eval(prepared)
    converted = convert_pt2e(prepared)
    program = tosaic.compile(converted, (inputs,), SPEC)
    assert len(program.delegates) == 1
    assert [r for r in program.reasons if not r.is_io] == []


def test_a_tensor_shares_its_range_with_a_view_of_itself() -> None:
    """Each of the two leads to the other by way of the operator that reads both."""

    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            view = x.unsqueeze(0)
            return view.select_scatter(x, 0, 0), view.reshape(-1) * 2.0

    program = tosaic.compile(Both().eval(), (x(3, 5),), "ethos-u55-128")
    assert all(r.is_io for r in program.reasons)
    assert program.verify().ok
    module = convert(EthosUQuantizer(SPEC).set_global(get_symmetric_quantization_config()), Both(), x(3, 5))
    assert counts(module)["select_scatter"] == 1


def test_annotations_that_name_only_each_other() -> None:
    """A user's quantizer may write them; torchao's own search does not end."""
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    nodes = [graph.call_function(torch.neg, (a,)) for _ in range(2)]
    graph.output(nodes)
    for node, other in zip(nodes, reversed(nodes), strict=True):
        node.meta[ANNOTATION_KEY] = QuantizationAnnotation(
            input_qspec_map={a: SharedQuantizationSpec((a, other))}, allow_implicit_sharing=False, _annotated=True
        )
    with pytest.raises(Invalid, match="name only each other"):
        _make_observers(torch.fx.GraphModule(nn.Module(), graph))
