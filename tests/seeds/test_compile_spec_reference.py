"""The signatures and the behavior of EthosUCompileSpec as the Ethos-U reference page states them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch

from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid
from tosaic.driver.delegate import build, dump
from tosaic.ethosu import EthosUCompileSpec
from tosaic.formats.tosa_writer import read
from tosaic.fx.source import Source

# Quoted from the document (its module path says tosaic here).
SIGNATURES = {
    "": "(target: str, system_config: str | None = None, memory_mode: str | None = None, "
    "extra_flags: list[str] | None = None, config_ini: str | None = 'Arm/vela.ini')",
    "dump_debug_info": "(self, debug_mode: tosaic.common.arm_compile_spec.ArmCompileSpec.DebugMode | None)",
    "dump_intermediate_artifacts_to": "(self, output_path: str | None)",
    "get_intermediate_path": "(self) -> str | None",
    "get_output_format": "() -> str",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    signature = inspect.signature(getattr(EthosUCompileSpec, name) if name else EthosUCompileSpec)
    # ExecuTorch 1.5 has one parameter more.
    seen = [p for p in signature.parameters.values() if p.name != "external_block_placements"]
    assert str(signature.replace(parameters=seen)) == SIGNATURES[name]


def test_defaults_of_each_family() -> None:
    expected = {
        "ethos-u55-128": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
        "ethos-u65-512": ("Ethos_U65_High_End", "Dedicated_Sram_384KB"),
        "ethos-u85-256": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
    }
    for target, (system, memory) in expected.items():
        options = EthosUCompileSpec(target).options
        assert (options.system_config, options.memory_mode) == (system, memory)


def test_paths_and_format(tmp_path: Path) -> None:
    spec = EthosUCompileSpec("ethos-u55-128")
    assert spec.get_intermediate_path() is None
    spec.dump_intermediate_artifacts_to(str(tmp_path))
    assert spec.get_intermediate_path() == str(tmp_path)
    assert EthosUCompileSpec.get_output_format() == "vela"


def test_flags_as_list_or_string_and_spec_round_trip() -> None:
    as_list = EthosUCompileSpec("ethos-u85-256", extra_flags=["--optimise=Size"])
    assert as_list.options.extra_flags == ("--optimise=Size",)
    assert EthosUCompileSpec.from_list(as_list.to_list()) == as_list
    assert as_list != EthosUCompileSpec("ethos-u85-256")
    with pytest.warns(UserWarning, match="debug-force-regor"):
        assert EthosUCompileSpec("ethos-u55-128", extra_flags=["--debug-force-regor"]).options.extra_flags == ()


def test_unknown_sections_and_modes() -> None:
    with pytest.raises(Invalid, match="Turbo") as caught:
        EthosUCompileSpec("ethos-u55-128", memory_mode="Turbo")
    assert "Shared_Sram" in str(caught.value)
    with pytest.raises(Invalid) as caught:
        EthosUCompileSpec("ethos-u55-128", memory_mode="Dedicated_Sram")
    assert caught.value.why


@pytest.mark.parametrize("mode", [ArmCompileSpec.DebugMode.JSON, ArmCompileSpec.DebugMode.TOSA])
def test_debug_info_of_every_delegate(mode: ArmCompileSpec.DebugMode, tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + x
            return torch.cumsum(y, 0).to(torch.int32) * y

    folder = tmp_path / "with space ü"
    spec = EthosUCompileSpec("ethos-u85-256")
    spec.dump_intermediate_artifacts_to(str(folder))
    spec.dump_debug_info(mode)
    program = torch.export.export(Net(), (torch.ones(5, dtype=torch.int32),))
    built = build(Source.of_program(program), spec)
    for number, delegate in enumerate(built.delegates):
        dump(delegate, spec, number)
    assert len(built.delegates) == 2
    assert len(list(folder.glob("*.tosa"))) == 2
    assert len(list(folder.glob("*.vela.bin"))) == 2
    if mode is ArmCompileSpec.DebugMode.JSON:
        rows = [row for path in folder.glob("*.debug.json") for row in json.loads(path.read_text())]
        assert {row["op"] for row in rows} == {"aten.add.Tensor", "aten.mul.Tensor"}
        for row in rows:
            assert row["where"].startswith(__file__)
            assert {"event_id", "node", "stack_trace", "module", "tosa"} <= set(row)
            assert row["tosa"]
    else:
        for path in folder.glob("*.tosa"):
            texts = [text for op in read(path.read_bytes()).ops for text in op.origin if text]
            assert any(__file__ in text for text in texts)


def test_no_host_path_in_the_specs_that_go_into_the_pte(tmp_path: Path) -> None:
    spec = EthosUCompileSpec("ethos-u55-128")
    spec.dump_intermediate_artifacts_to(str(tmp_path))
    assert all(str(tmp_path).encode() not in entry.value for entry in spec.to_list())
    assert EthosUCompileSpec.from_list(spec.to_list()).get_intermediate_path() == str(tmp_path)
