"""Weights or commands outside the .pte, with both APIs: same bytes, same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec

import tosaic
from support.programs import Add, make_external, make_filter
from tosaic.core.errors import Invalid
from tosaic.engines import engine
from tosaic.formats import blob, external, ptd, pte

BOTH = tosaic.VelaExternalBlockPlacements(cmd_data="sram", weight_data="flash")
PARTS = [("weights",), ("commands",), ("weights", "commands")]


def lower_with_executorch(module: Any, inputs: Any, spec: tosaic.EthosUCompileSpec) -> Any:
    edge = to_edge_transform_and_lower(
        torch.export.export(module, inputs),
        partitioner=[tosaic.EthosUPartitioner(spec)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    return edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=False))


def test_placements() -> None:
    assert BOTH.to_block_placements() == {"cmd_data": "sram", "weight_data": "flash"}
    assert tosaic.VelaExternalBlockPlacements().to_block_placements() == {}
    assert tosaic.VelaExternalBlockPlacements("x").to_block_placements() == {"cmd_data": "x"}
    assert hash(BOTH) == hash(tosaic.VelaExternalBlockPlacements("sram", "flash"))


@pytest.mark.parametrize("placement", ["", "grün", 7, b"flash"])
def test_placements_that_are_no_names(placement: Any) -> None:
    for block in ("cmd_data", "weight_data"):
        with pytest.raises(Invalid, match=f"`{block}`"):
            tosaic.VelaExternalBlockPlacements(**{block: placement})


def test_compile_spec_keeps_the_placements() -> None:
    spec = tosaic.EthosUCompileSpec("ethos-u55-128", external_block_placements=BOTH)
    entries = {entry.key: entry.value for entry in spec.to_list()}
    assert entries[external.PLACEMENTS] == b'{"cmd_data":"sram","weight_data":"flash"}'
    again = tosaic.EthosUCompileSpec.from_list(spec.to_list())
    assert again == spec and again.external_block_placements == BOTH
    plain = tosaic.EthosUCompileSpec("ethos-u55-128")
    assert plain != spec and plain.external_block_placements == tosaic.VelaExternalBlockPlacements()
    assert external.PLACEMENTS not in {entry.key for entry in plain.to_list()}


@pytest.mark.parametrize("parts", PARTS)
def test_results_are_the_same(parts: tuple[str, ...]) -> None:
    _, inputs = make_filter()
    program, whole = make_external(parts), make_external(())
    assert set(program.data) == set(parts) and whole.data == {}
    assert len(program.pte) < len(whole.pte)
    for name in ("npu", "tosa"):
        assert np.array_equal(program.run(*inputs, engine=name)[0], whole.run(*inputs, engine=name)[0])
    verdict = program.verify()
    assert verdict.ok and verdict.compared == 3


def test_same_input_same_bytes() -> None:
    first, second = make_external(("weights", "commands")), make_external(("commands", "weights"))
    assert (first.pte, dict(first.data)) == (second.pte, dict(second.data))


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_both_apis_write_the_same_files(target: str, tmp_path: Path) -> None:
    model, inputs = make_filter()
    quantized = tosaic.quantize(torch.export.export(model, inputs), [inputs])
    spec = tosaic.EthosUCompileSpec(target, external_block_placements=BOTH)
    ours = tosaic.compile(quantized, inputs, spec)
    theirs = lower_with_executorch(quantized, inputs, spec)
    theirs.write_tensor_data_to_file(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {f"{tag}.ptd": data for tag, data in ours.data.items()}
    assert set(written) == {"sram.ptd", "flash.ptd"}
    blobs = [pte.read(data).find().delegates[0].blob for data in (ours.pte, theirs.buffer)]
    assert blobs[0] == blobs[1] == ours.delegates[0].blob
    x = [inputs[0].numpy()]
    found = engine.run(theirs.buffer, x, data=list(written.values())).outputs
    assert np.array_equal(found[0], engine.run(ours.pte, x, data=tuple(ours.data.values())).outputs[0])


def test_two_delegates_share_the_files() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.native_dropout(self.a(x), 0.0, True)[0])

    torch.manual_seed(0)
    program = tosaic.compile(Two().eval(), (torch.randn(1, 3, 8, 8),), external=["weights"])
    assert len(program.delegates) == 2 and set(program.data) == {"weights"}
    keys = [blob.list_keys(delegate.blob)["weight_data"] for delegate in program.delegates]
    assert len(set(keys)) == 2 and program.verify().ok


def test_delegate_without_weights() -> None:
    """Vela then writes a single byte."""
    inputs = (torch.arange(5, dtype=torch.int32),)
    program = tosaic.compile(Add().eval(), inputs, external=["weights"])
    assert [len(data) for data in ptd.read(program.data["weights"]).named.values()] == [1]
    assert program.run(*inputs)[0].tolist() == [0, 2, 4, 6, 8]


def test_compile_spec_of_an_unknown_block() -> None:
    specs = tosaic.EthosUCompileSpec("ethos-u55-128").to_list()
    for text in (b'{"scratch_size":"x"}', b'["x"]', b"{"):
        with pytest.raises(Invalid, match="external_block_placements"):
            tosaic.EthosUCompileSpec.from_list([*specs, CompileSpec(external.PLACEMENTS, text)])


def test_files_that_are_saved(tmp_path: Path) -> None:
    program = make_external(("weights",))
    program.save(tmp_path / "net.pte")
    assert {path.name for path in tmp_path.iterdir()} == {"net.pte", "net.weights.ptd", "net.tosaic"}
    assert (tmp_path / "net.weights.ptd").read_bytes() == program.data["weights"]
    assert "weights" in str(program)
    with pytest.raises(Invalid, match="cannot write a program to"):
        program.save(tmp_path / "net.ptd")


def test_placement_that_is_no_file_name(tmp_path: Path) -> None:
    model, inputs = make_filter()
    placements = tosaic.VelaExternalBlockPlacements(weight_data="far/away")
    spec = tosaic.EthosUCompileSpec("ethos-u55-128", external_block_placements=placements)
    program = tosaic.compile(model, inputs, spec)
    with pytest.raises(Invalid, match="`far/away` cannot be a file name"):
        program.save(tmp_path / "net.pte")
    assert list(tmp_path.iterdir()) == []


def test_options_that_do_not_fit() -> None:
    model, inputs = make_filter()
    with pytest.raises(Invalid, match="`bias`"):
        tosaic.compile(model, inputs, external=["bias"])
    with pytest.raises(Invalid, match=r"weights of `TOSA-1\.0\+INT` cannot be outside"):
        tosaic.compile(model, inputs, "TOSA-1.0+INT", external=["weights"])
    with pytest.raises(Invalid, match="external_block_placements"):
        tosaic.compile(model, inputs, tosaic.EthosUCompileSpec("ethos-u55-128"), external=["weights"])


def test_intermediate_blob_is_complete(tmp_path: Path) -> None:
    model, inputs = make_filter()
    spec = tosaic.EthosUCompileSpec("ethos-u55-128", external_block_placements=BOTH)
    tosaic.compile(model, inputs, spec.dump_intermediate_artifacts_to(str(tmp_path)))
    (path,) = tmp_path.glob("*.vela.bin")
    assert path.read_bytes() == make_external(()).delegates[0].blob
