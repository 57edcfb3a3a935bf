"""A backend is one module and one entry in the registry: everything else finds it there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import tosaic
from tosaic.backends.protocol import Artifact, Backend, MemoryUse
from tosaic.backends.registry import BACKENDS, find_backend, find_backend_for
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid, Refused
from tosaic.core.targets import ACCELERATORS, VGF, Target, find
from tosaic.engines.engine import ENGINES
from tosaic.ethosu import EthosUCompileSpec
from tosaic.formats import pte
from tosaic.formats.tosa_writer import read
from tosaic.tools import vela_options
from tosaic.tosa import TosaCompileSpec
from tosaic.vgf import VgfCompileSpec

INPUTS = (torch.linspace(-1, 1, 8).reshape(1, 8),)


class ToyCompileSpec(ArmCompileSpec):
    """Compile for the toy."""

    _output_format = "toy"

    def __init__(self) -> None:
        super().__init__()
        self.target = find("TOSA-1.0+INT")


class Toy(Backend):
    """A compiler that writes the graph backwards, and does not take TABLE."""

    id = "ToyBackend"
    tool = "toy compiler"
    engine = "tosa"
    spec_class = ToyCompileSpec

    def accepts(self, target: Target) -> bool:
        return False

    def make_spec(self, target: Target) -> ToyCompileSpec:
        return ToyCompileSpec()

    def compile(self, tosa: bytes, spec: ArmCompileSpec) -> Artifact:
        if any(op.kind == "TABLE" for op in read(tosa).ops):
            raise Refused("the toy refused the graph", why="it has no TABLE")
        return Artifact(tosa[::-1], files={".toy": tosa[::-1]}, summary={"cost": 3.0})

    def measure_memory(self, spec: ArmCompileSpec, artifacts: Sequence[Artifact]) -> MemoryUse:
        return MemoryUse(network=sum(len(one.blob) for one in artifacts), network_in="toy box")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    backend = Toy()
    monkeypatch.setitem(BACKENDS, backend.id, backend)
    return backend


def test_a_new_backend_compiles_runs_and_verifies(toy: Toy, tmp_path: Path) -> None:
    spec = ToyCompileSpec().dump_intermediate_artifacts_to(str(tmp_path))
    program = tosaic.compile(Net().eval(), INPUTS, spec)
    delegates = pte.read(program.pte).find("forward").delegates
    assert [d.id for d in delegates] == [toy.id, toy.id]
    assert [d.blob for d in delegates] == [d.tosa[::-1] for d in program.delegates]
    (reason,) = (r for r in program.reasons if not r.is_io and "toy" in r.why)
    assert (reason.op, reason.why) == ("aten.tanh.default", "toy compiler: it has no TABLE")
    assert sorted(p.read_bytes() for p in tmp_path.glob("*.toy")) == sorted(d.blob for d in delegates)
    report = program.report()
    assert report.memory.network == sum(len(d.blob) for d in delegates)
    assert report.memory.network_in == "toy box"
    assert [d.vela for d in report.delegates] == [{"cost": 3.0}] * 2
    assert report.options == {"tosa_spec": "TOSA-1.0+INT"}
    verdict = program.verify()
    assert verdict.ok and verdict.engine == "tosa"
    plain = tosaic.compile(Net().eval(), INPUTS, "TOSA-1.0+INT")
    assert np.allclose(program.run(*INPUTS)[0], plain.run(*INPUTS)[0], atol=0.05)


def test_every_spec_has_its_backend() -> None:
    specs = {"EthosUBackend": EthosUCompileSpec("ethos-u55-128"), "VgfBackend": VgfCompileSpec()}
    specs["TOSABackend"] = TosaCompileSpec("TOSA-1.0+FP")
    assert {name: find_backend(spec).id for name, spec in specs.items()} == {name: name for name in BACKENDS}
    assert all(backend.engine in ENGINES for backend in BACKENDS.values())


def test_every_target_has_one_backend() -> None:
    for target in (*ACCELERATORS.values(), VGF, find("TOSA-1.0+INT")):
        assert [b for b in BACKENDS.values() if b.accepts(target)] == [find_backend_for(target)]
        assert find_backend_for(target).make_spec(target).target == target


def test_a_spec_without_a_backend_is_refused() -> None:
    with pytest.raises(Invalid, match="no backend takes a `ToyCompileSpec`"):
        tosaic.compile(Net().eval(), INPUTS, ToyCompileSpec())


def test_only_an_ethos_u_has_a_system() -> None:
    with pytest.raises(Invalid, match="`vgf` has no system configuration"):
        tosaic.compile(Net().eval(), INPUTS, "vgf", memory_mode="Sram_Only")


def test_the_configuration_file_is_read_once_per_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    read_ini, names = vela_options.read_ini, []

    def count(config_ini: str) -> bytes:
        names.append(config_ini)
        return read_ini(config_ini)

    monkeypatch.setattr(vela_options, "read_ini", count)
    program = tosaic.compile(Net().eval(), INPUTS, "ethos-u55-128")
    assert program.report().delegates[0].estimate is not None
    assert names == ["Arm/vela.ini"]
