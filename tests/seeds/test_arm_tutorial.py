"""The tutorial: its three files by the script, and its `to_backend` call in a complete program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.backend.backend_api import to_backend

from tosaic.arm_backend import ArmPartitioner, generate_ethosu_compile_spec
from tosaic.formats.pte import read
from tosaic.scripts.aot_arm_compiler import main

DELEGATE = ["EthosUBackend"]


@pytest.mark.parametrize(
    ("arguments", "name", "delegates", "kernels"),
    [
        (["--model_name=softmax"], "softmax.pte", [], {"aten::_softmax"}),
        (["--model_name=add", "--delegate"], "add_arm_delegate.pte", DELEGATE, set()),
        (
            ["--model_name=mv2", "--delegate", "--quantize", "--so_library=libquantized_ops_aot_lib.so"],
            "mv2_arm_delegate.pte",
            DELEGATE,
            {"quantized_decomposed::quantize_per_tensor", "quantized_decomposed::dequantize_per_tensor"},
        ),
    ],
    ids=["softmax", "add", "mv2"],
)
def test_script_writes_the_tutorials_files(
    arguments: list[str],
    name: str,
    delegates: list[str],
    kernels: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 0
    plan = read((tmp_path / name).read_bytes()).plans[0]
    assert [d.id for d in plan.delegates] == delegates
    assert {o.name for o in plan.operators} == kernels


def test_script_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--model_name=no_such_model", "--delegate"]) == 2
    assert "no_such_model" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class AddModule(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class SmallNet(torch.nn.Module):
    """Enough to arrive decomposed: linear as addmm, batch norm, max pool with indices, hardswish."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.hardswish(self.norm(self.conv(x)))
        y = torch.nn.functional.max_pool2d(y, 2)
        return self.head(y.flatten(1))


def test_to_backend_on_an_edge_program() -> None:
    edge = to_edge(torch.export.export(AddModule(), (torch.ones(5, dtype=torch.int32),)))
    partitioner = ArmPartitioner(generate_ethosu_compile_spec("ethos-u55-128"))
    lowered: Any = to_backend(edge.exported_program(), partitioner)
    calls = [n for n in lowered.graph.nodes if n.op == "call_function" and "call_delegate" in str(n.target)]
    assert len(calls) == 1


def test_to_backend_on_a_decomposed_quantized_program() -> None:
    """Everything arrives decomposed there, and the partitioner never sees the weights."""
    from tosaic.api.prepare import quantize
    from tosaic.driver.exported import export

    inputs = (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)),)
    module = quantize(export(SmallNet().eval(), inputs), [inputs])
    edge = to_edge(torch.export.export(module, inputs))
    partitioner = ArmPartitioner(generate_ethosu_compile_spec("ethos-u55-128"))
    lowered = edge.to_backend(partitioner)
    assert [r for r in partitioner.reasons if not r.is_io] == []
    calls = [n for n in lowered.exported_program().graph.nodes if "call_delegate" in str(n.target)]
    assert len(calls) == 1
    assert len(lowered.to_executorch().buffer) > 1000
