"""Random TOSA graphs with fixed seeds: what Vela makes of them, after our passes, is what they mean."""

from __future__ import annotations

import pytest

from support.fuzzer import tosa
from support.fuzzer.tosa import KNOWN, Plan, Step, find_kind, generate, shrink, try_check
from tosaic.core.targets import find
from tosaic.ir.graph import Graph

U55 = tosa.TARGETS[0]


def list_findings(target: str, seeds: range) -> list[str]:
    found = ((seed, try_check(generate(seed, find(target).family), target)) for seed in seeds)
    return [f"{seed} {what}" for seed, what in found if what and find_kind(what) not in KNOWN]


@pytest.mark.parametrize("target", tosa.TARGETS)
def test_graphs(target: str) -> None:
    assert list_findings(target, range(60)) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", tosa.TARGETS)
def test_more_graphs(target: str) -> None:
    assert list_findings(target, range(1000, 2000)) == []


def test_what_vela_gets_wrong_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(graph: Graph, *_: object) -> Graph:
        return graph

    monkeypatch.setattr(tosa, "run_passes", keep)
    steps = [
        Step("table", (0, 0), 1),
        Step("slice", (1, 1), 0),
        Step("reduce_max", (2, 2), 1),
        Step("table", (3, 3), 3),
    ]
    plan = Plan(((1, 5, 6, 8),), tuple(steps), (4, 1))
    assert find_kind(try_check(plan, U55)) == "wrong"
    small = shrink(plan, U55)
    assert [step.name for step in small.steps] == ["slice", "reduce_max"]
    assert find_kind(try_check(small, U55)) == "wrong"


def test_the_seed_decides_the_graph() -> None:
    assert generate(5, "u85") == generate(5, "u85")
    assert generate(5, "u85") != generate(6, "u85")
