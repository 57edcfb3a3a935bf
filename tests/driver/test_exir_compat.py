"""What Tosaic assumes of the inside of exir still holds, and is still needed, in the release that is installed."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch._subclasses import FakeTensorMode

from tosaic.core.exir_compat import VERSIONS, LocalSpec, replace_class
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.fx.stub import stub

INPUTS = (torch.linspace(-1, 1, 8).reshape(1, 8),)


class Quantized(torch.nn.Module):
    """An int8 addition."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, d = torch.ops.quantized_decomposed.quantize_per_tensor, torch.ops.quantized_decomposed.dequantize_per_tensor
        grid = (0.01, 0, -128, 127, torch.int8)
        x = d(q(x, *grid), *grid)
        return d(q(x + x, *grid), *grid)


def lower(partitioner: EthosUPartitioner) -> bytes:
    config = EdgeCompileConfig(_check_ir_validity=False)
    program = torch.export.export(Quantized(), INPUTS)
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=config)
    return bytes(edge.to_executorch().buffer)


def test_the_installed_release_is_one_that_was_read() -> None:
    assert importlib.metadata.version("executorch").startswith(tuple(f"{one}." for one in VERSIONS))


def test_a_local_spec_reaches_preprocess_and_stays_out_of_the_file(tmp_path: Any) -> None:
    spec = EthosUCompileSpec("ethos-u55-128").dump_intermediate_artifacts_to(str(tmp_path))
    pte = lower(EthosUPartitioner(spec))
    assert list(tmp_path.glob("*.tosa"))
    assert str(tmp_path).encode() not in pte


def test_exir_knows_a_compile_spec_by_the_name_of_its_class() -> None:
    class Local(LocalSpec):
        """Has the name that exir looks for."""

    class Other(CompileSpec):
        """Has not."""

    def write(spec: CompileSpec) -> bytes:
        with FakeTensorMode():
            fake = torch.empty(1)
        return bytes(LoweredBackendModule(stub([fake], [fake]), "AnyBackend", b"blob", [spec]).buffer())

    assert write(Local("key", b"value")) == write(CompileSpec("key", b"value"))
    with pytest.raises(ModuleNotFoundError, match="Other"):
        write(Other("key", b"value"))


def test_exir_asks_the_class_of_a_program_to_decompose_it() -> None:
    asked: list[Any] = []

    class Watched(torch.export.ExportedProgram):
        def run_decompositions(self, *args: Any, **named: Any) -> Any:
            asked.append(self)
            return super().run_decompositions(*args, **named)

    program = torch.export.export(torch.nn.Linear(8, 8), INPUTS)
    replace_class(program, Watched)
    to_edge_transform_and_lower(program)
    assert asked and isinstance(asked[0], Watched)
