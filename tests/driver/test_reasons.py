"""The words and places of reasons, through both Python APIs."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.passes.quantize_io_pass import QuantizeInputs, QuantizeOutputs
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import tosaic
from support.samples import Call
from tosaic.api.prepare import quantize
from tosaic.core.errors import Invalid
from tosaic.core.location import describe_place
from tosaic.core.reason import Reason
from tosaic.driver.exported import export
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.quantizer import EthosUQuantizer, get_symmetric_quantization_config
from tosaic.report.terminal import Page, show_report


class Cut(nn.Module):
    """Two layers around an operator that no target has."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return self.last(torch.native_dropout(self.body(t), 0.0, True)[0])


X = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(1))
LINE = f"{__file__}:{inspect.getsourcelines(Cut.forward)[1] + 1}"


def compile_front(model: nn.Module) -> tuple[Reason, ...]:
    return tosaic.compile(model.eval(), (X,), "ethos-u55-128").reasons


def compile_edge(model: nn.Module) -> tuple[Reason, ...]:
    module = quantize(export(model.eval(), (X,)), [(X,)])
    partitioner = EthosUPartitioner(EthosUCompileSpec("ethos-u55-128"))
    config = EdgeCompileConfig(_check_ir_validity=False)
    to_edge_transform_and_lower(torch.export.export(module, (X,)), partitioner=[partitioner], compile_config=config)
    return partitioner.reasons


BOTH_APIS = pytest.mark.parametrize("compile_model", [compile_front, compile_edge])


@BOTH_APIS
def test_every_reason_has_the_users_line_and_the_module(compile_model: Any) -> None:
    reasons = compile_model(Cut())
    assert {r.where for r in reasons} == {LINE}
    assert next((r.op, r.module, r.layer) for r in reasons if not r.is_io) == ("aten.native_dropout.default", "", "Cut")
    assert {(r.module, r.layer) for r in reasons if r.is_io} >= {("body.0", "Conv2d"), ("last", "Conv2d")}


@BOTH_APIS
def test_a_sequential_alone_names_its_layer(compile_model: Any) -> None:
    reasons = compile_model(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.ReLU(), nn.Sigmoid())))
    places = [describe_place(reason.where, reason.module, reason.layer) for reason in reasons]
    assert [place.partition(":")[0] for place in places] == [
        "model.0 (Conv2d) at torch/nn/modules/conv.py",
        "model.1.1 (Sigmoid) at torch/nn/modules/activation.py",
    ]


def test_a_quantize_in_the_middle_names_the_operator_before_it() -> None:
    reasons = compile_front(Cut())
    (cause,) = [r for r in reasons if r.op == "aten.native_dropout.default"]
    first, last = [r for r in reasons if ".quantize_per_tensor" in r.op]
    assert first.fix == 'compile with `io="int8"`, for a program with quantized inputs and outputs'
    assert last.why.startswith("it takes the float result of `native_dropout` (aten.native_dropout.default)")
    assert last.fix == f"for `native_dropout`: {cause.fix}"
    (out,) = [r for r in reasons if ".dequantize" in r.op and "native_dropout" in r.why]
    assert out.fix == f"for `native_dropout`: {cause.fix}"


def test_what_belongs_to_one_of_several_results_follows_the_operator() -> None:
    reasons = compile_front(Call(lambda t: torch.relu(t).tile(1, 1, 8, 8).flatten().sort().values))
    (cause,) = [r for r in reasons if r.op == "aten.sort.default"]
    owned = [r for r in reasons if r.why == "it belongs to `sort` (aten.sort.default), which is on the CPU"]
    assert len(owned) == 2
    assert {(r.cause, r.fix) for r in owned} == {("sort", f"for `sort`: {cause.fix}")}


def test_quantize_and_dequantize_around_a_refused_operator_point_to_it() -> None:
    model = nn.Conv2d(3, 3, 3, stride=4, padding=2, groups=3)
    left = {r.op.split(".")[1]: r for r in compile_front(model) if not r.is_io}
    why = left.pop("conv2d").why
    assert why
    assert {r.why for r in left.values()} == {"it belongs to `conv2d` (aten.conv2d.default), which is on the CPU"}


@BOTH_APIS
def test_followers_name_their_cause(compile_model: Any) -> None:
    reasons = compile_model(Cut())
    (cause,) = [r for r in reasons if not r.is_io]
    assert cause.cause == ""
    followers = [r for r in reasons if r.cause]
    assert {r.cause for r in followers} == {cause.node}
    pair = ["dequantize_per_tensor", "quantize_per_tensor"]
    assert sorted(r.op.split(".")[1] for r in followers) == pair
    # What is left is the float input and output of the model.
    assert sorted(r.op.split(".")[1] for r in reasons if r.is_io and not r.cause) == pair


def test_the_fix_for_float_inputs_and_outputs_is_one_of_the_api_in_use() -> None:
    model = nn.Conv2d(3, 4, 1)
    assert all("`io=" in r.fix for r in compile_front(model))
    assert all("quantize_io_pass" in r.fix for r in compile_edge(model))


def test_to_backend_of_a_whole_program_names_what_can_be_done_there() -> None:
    module = quantize(export(nn.Conv2d(3, 4, 1).eval(), (X,)), [(X,)])
    edge = to_edge(torch.export.export(module, (X,)), compile_config=EdgeCompileConfig(_check_ir_validity=False))
    spec = EthosUCompileSpec("ethos-u55-128")
    with pytest.raises(Invalid, match="cannot be compiled") as caught:
        to_backend("EthosUBackend", edge.exported_program(), spec.to_list())
    assert "partitioner" in caught.value.fix and "quantize_io_pass" in caught.value.fix
    assert "io=" not in caught.value.fix


def test_weights_alone_are_not_enough() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    quantize_(model, Int8WeightOnlyConfig())
    partitioner = EthosUPartitioner(EthosUCompileSpec("ethos-u55-128"))
    to_edge_transform_and_lower(torch.export.export(model, (torch.rand(1, 32),)), partitioner=[partitioner])
    fixes = {r.fix for r in partitioner.reasons if not r.cause and "its result is a constant" not in r.why}
    assert fixes == {"quantize this part of the model, its activations as well as its weights"}


def test_the_passes_of_executorch_that_the_fix_names_remove_the_float_inputs_and_outputs() -> None:
    module = quantize(export(nn.Conv2d(3, 4, 1).eval(), (X,)), [(X,)])
    partitioner = EthosUPartitioner(EthosUCompileSpec("ethos-u55-128"))
    edge = to_edge_transform_and_lower(torch.export.export(module, (X,)), partitioner=[partitioner])
    edge = edge.transform([QuantizeInputs(edge, [0]), QuantizeOutputs(edge, [0])])
    assert edge.to_executorch().executorch_program.execution_plan[0].operators == []


def test_the_report_shows_causes_and_counts_what_follows_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    report = tosaic.compile(Cut().eval(), (X,), "ethos-u55-128").report()
    show_report(Page(), report)
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("why these are on the CPU")
    assert [line for line in lines[start + 1 :] if line.startswith("  ") and line[2] != " "] == [
        "  `aten.native_dropout.default` x1",
        "  float I/O: `quantize_per_tensor` x1, `dequantize_per_tensor` x1",
    ]
    also = "2 nodes because of it: `dequantize_per_tensor` x1, `quantize_per_tensor` x1"
    assert f"    also   {also}" in lines
    assert [one["cause"] for one in report.to_json()["reasons"] if not one["is_io"]] == [""]


@BOTH_APIS
def test_one_result_of_several_goes_with_its_operator(compile_model: Any) -> None:
    class Drop(nn.Module):
        def forward(self, t: torch.Tensor) -> Any:
            numbers, kept = torch.native_dropout(t * 2.0, 0.0, True)
            return numbers * 3.0, kept

    ops = [r.op for r in compile_model(Drop()) if not r.is_io]
    assert "getitem" not in ops
    assert "aten.native_dropout.default" in ops


def test_the_high_level_api_logs_its_reasons() -> None:
    said: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record)

    handler, logger = Keep(), logging.getLogger("tosaic")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        reasons = compile_front(Cut())
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert len(said) == len(reasons)
    assert {record.levelno for record in said} == {logging.DEBUG, logging.INFO}
    place = describe_place(LINE, "", "Cut")
    assert any(
        f"native_dropout (aten.native_dropout.default) at {place} stays on the CPU" in record.getMessage()
        for record in said
    )


def test_casts_at_the_inputs_and_outputs_of_a_float16_model_are_io() -> None:
    program = tosaic.compile(Cut().body.half().eval(), (X.half(),), "ethos-u55-128", io="int8")
    assert len(program.delegates) == 1 and all(reason.is_io for reason in program.reasons)
    assert sum("model.float()" in reason.fix and not reason.cause for reason in program.reasons) == 2
    assert any("keep float types other than float32" in warning for warning in program.warnings)


def test_a_partitioner_names_no_option_of_compile() -> None:
    class Partly(Cut):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(t)) + torch.native_dropout(t, 0.0, True)[0][:, :1]

    spec = EthosUCompileSpec("ethos-u55-128")
    quantizer = EthosUQuantizer(spec).set_module_type(nn.Conv2d, get_symmetric_quantization_config())
    module = prepare_pt2e(torch.export.export(Partly().eval(), (X,)).module(), quantizer)
    module(X)
    program = torch.export.export(convert_pt2e(module), (X,))
    partitioner = EthosUPartitioner(spec)
    to_edge_transform_and_lower(program, partitioner=[partitioner])
    assert partitioner.reasons
    assert not any("io=" in reason.fix for reason in partitioner.reasons)
    relu = next(reason for reason in partitioner.reasons if "relu" in reason.op and not reason.is_io)
    assert "quantize this part of the model" in relu.fix
