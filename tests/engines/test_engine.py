"""An engine is one module and one entry in the table: `run` and `verify` find it there."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import tosaic
from tosaic.backends.registry import BACKENDS
from tosaic.cli.run import run_file
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.engines.engine import AUTO, ENGINES, choose
from tosaic.engines.interpreter import Executor
from tosaic.engines.protocol import Engine, Job, Result
from tosaic.engines.tosa import make_reference
from tosaic.formats.pte import Plan, read
from tosaic.formats.sidecar import Sidecar

INPUTS = (torch.linspace(-1, 1, 8).reshape(1, 8),)


class Toy(Engine):
    """Answers with zeros; its delegates are computed by the reference model."""

    title = "the toy"

    def __init__(self, obstacle: str = "") -> None:
        self.obstacle = obstacle

    def find_obstacle(self) -> str:
        return self.obstacle

    def run(self, job: Job) -> Result:
        return Result([np.zeros_like(array) for array in job.inputs], [])

    def open(self, plan: Plan, sidecar: Sidecar | None, budget: Budget) -> Executor:
        return make_reference(plan, sidecar)


@pytest.fixture(scope="module")
def program() -> tosaic.Program:
    torch.manual_seed(0)
    return tosaic.compile(torch.nn.Linear(8, 8).eval(), INPUTS, "ethos-u55-128")


def test_a_new_engine_runs_a_program(program: tosaic.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="unknown engine `toy`") as caught:
        program.run(*INPUTS, engine="toy")
    assert caught.value.fix == "use one of auto, npu, executorch, vulkan, tosa, board"
    monkeypatch.setitem(ENGINES, "toy", Toy())
    assert not program.run(*INPUTS, engine="toy")[0].any()


def test_a_backend_names_its_engine(program: tosaic.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "toy", Toy())
    monkeypatch.setattr(BACKENDS["EthosUBackend"], "engine", "toy", raising=False)
    assert not program.run(*INPUTS)[0].any()
    verdict = program.verify(rounds=1)
    assert verdict.ok and (verdict.engine, verdict.compared) == ("toy", 2)


def test_an_engine_that_does_not_work_here_gives_way(program: tosaic.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "npu", Toy("it is asleep"))
    plan = read(program.pte).find("forward")
    assert choose(plan, AUTO) == ("tosa", "the toy is not usable: it is asleep")
    assert choose(plan, "npu") == ("npu", "")


def test_the_help_names_every_engine() -> None:
    (option,) = (str(a) for name, a in run_file.__annotations__.items() if name == "engine")
    assert all(re.search(rf"\b{name}\b", option) for name in (AUTO, *ENGINES))
