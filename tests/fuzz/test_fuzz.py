"""Random graphs with fixed seeds, and proof that the fuzzer finds what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support import TESTS
from support.fuzzer import check as checks
from support.fuzzer.campaign import KNOWN, examine, shrink_failure
from support.fuzzer.check import check
from support.fuzzer.generate import generate
from support.fuzzer.graph import Graph, Leaf, Model, Ref, Step, example, prune, write
from support.records import change_record
from tosaic.lower import arithmetic as arith
from tosaic.ops import registry

QUICK = [("int8", seed) for seed in range(12)] + [("fp", seed) for seed in range(8)]
SLOW = [
    *((profile, seed) for profile in ("int8", "fp") for seed in range(100, 160)),
    *(("vgf", seed) for seed in range(20)),
]
U85 = "ethos-u85-256"
FP = "TOSA-1.0+FP"


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOSAIC_STRICT", "1")


def unexpected(profile: str, seed: int) -> str:
    """The failures of a graph that no known defect explains, with a minimal program each."""
    found = [f for f in examine(profile, seed, 60.0)["failures"] if not f["known"]]
    return "\n\n".join(f"{f['kind']}\n{f['detail']}\n{f['program']}" for f in found)


@pytest.mark.parametrize(("profile", "seed"), QUICK)
def test_graph(profile: str, seed: int) -> None:
    assert unexpected(profile, seed) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "seed"), SLOW)
def test_more_graphs(profile: str, seed: int) -> None:
    assert unexpected(profile, seed) == ""


def chain(*ops: str) -> Graph:
    """Functions of one tensor, one after the other, each result an output."""
    leaf = Leaf("input", (2, 5), torch.float32, 0.5, 2.0, 1)
    steps = [Step(op, (Ref("v", i - 1) if i else Ref("x", 0),)) for i, op in enumerate(ops)]
    return Graph((leaf,), tuple(steps), tuple(Ref("v", i) for i in range(len(ops))))


def test_seed_decides_the_graph() -> None:
    assert generate(5) == generate(5)
    assert generate(5) != generate(6)


def test_no_scatter_writes_a_place_twice() -> None:
    graph = generate(520029)
    assert not any(step.op == "aten.scatter.src" for step in graph.steps)


def test_printed_program_is_the_graph() -> None:
    graph = generate(3)
    space: dict[str, Any] = {}
    exec(compile(write(graph), "<graph>", "exec"), space)
    with torch.no_grad():
        want = Model(graph).eval()(*example(graph))
        got = space["model"](*space["inputs"])
    assert len(got) == len(want) > 0
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_pruned_graph_keeps_what_outputs_need() -> None:
    graph = replace(chain("aten.abs.default", "aten.exp.default", "aten.neg.default"), outputs=(Ref("v", 1),))
    assert [s.op for s in prune(graph).steps] == ["aten.abs.default", "aten.exp.default"]


def binary(op: str) -> Graph:
    """A graph of twelve steps; the operator of interest is in the middle, of two tensors: of one it is a table."""
    leaves = tuple(Leaf("input", (2, 5), torch.float32, 0.5, 2.0, seed) for seed in (1, 2))
    before = [Step("aten.sigmoid.default", (Ref("x", 0),)), Step("aten.neg.default", (Ref("v", 0),))]
    middle = [Step("aten.exp.default", (Ref("x", 1),)), Step(op, (Ref("v", 1), Ref("v", 2)))]
    after = [Step("aten.tanh.default", (Ref("v", 3 + i),)) for i in range(8)]
    steps = (*before, *middle, *after)
    return Graph(leaves, steps, (Ref("v", len(steps) - 1), Ref("v", 0)))


@pytest.mark.parametrize(("target", "quantized"), [(U85, True), (FP, False)], ids=["int8", "fp"])
def test_swapped_operands_are_found_and_shrunk(target: str, quantized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original = registry().records["sub"].lower
    assert original is not None
    assert check(binary("aten.sub.Tensor"), target, quantized, frozenset({"nodes"})).failures == []
    change_record(monkeypatch, "sub", lower=lambda lo, self, other, alpha=1: original(lo, other, self, alpha))
    (failure, *_) = check(binary("aten.sub.Tensor"), target, quantized, frozenset({"nodes"})).failures
    assert failure.kind == "node: aten.sub.Tensor"
    small = shrink_failure(binary("aten.sub.Tensor"), failure.kind, target, quantized, 30.0)
    assert [s.op for s in small.steps] == ["aten.sub.Tensor"]


def test_wrong_scale_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = arith.multiply
    monkeypatch.setattr(arith, "multiply", lambda lo, x, y: arith.scaled(original(lo, x, y), 1.02))
    (failure,) = check(binary("aten.mul.Tensor"), U85, True, frozenset({"nodes"})).failures
    assert failure.kind == "node: aten.mul.Tensor"
    assert "steps in int8[2, 5]" in failure.detail


def product() -> Graph:
    """One multiplication: nothing before it can excuse a difference."""
    leaves = tuple(Leaf("input", (2, 5), torch.float32, 0.5, 2.0, seed) for seed in (1, 2))
    return Graph(leaves, (Step("aten.mul.Tensor", (Ref("x", 0), Ref("x", 1))),), (Ref("v", 0),))


def test_program_of_one_rounding_is_judged_by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    original = arith.multiply
    parts = frozenset({"compile", "run"})
    assert check(product(), U85, True, parts).failures == []
    monkeypatch.setattr(arith, "multiply", lambda lo, x, y: arith.scaled(original(lo, x, y), 1.02))
    (failure,) = check(product(), U85, True, parts).failures
    assert failure.kind == "run: not what torch's graph gives"


def test_float_program_is_compared_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = registry().records["sub"].lower
    assert original is not None
    change_record(monkeypatch, "sub", lower=lambda lo, self, other, alpha=1: original(lo, other, self, alpha))
    (failure,) = check(binary("aten.sub.Tensor"), FP, False, frozenset({"compile", "verify"})).failures
    assert failure.kind == "verify: the program differs from torch's graph"


def test_other_delegates_of_the_executorch_api_are_judged_by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    original, lower = arith.multiply, checks.to_edge_transform_and_lower

    def lower_with_a_wrong_scale(*args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(arith, "multiply", lambda lo, x, y: arith.scaled(original(lo, x, y), 1.02))
            return lower(*args, **kwargs)

    monkeypatch.setattr(checks, "to_edge_transform_and_lower", lower_with_a_wrong_scale)
    (failure,) = check(product(), U85, True).failures
    assert failure.kind == "ExecuTorch API: not what torch's graph gives"


def test_exception_in_a_lowering_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lo: Any, **_: Any) -> Any:
        raise KeyError("planted")

    change_record(monkeypatch, "sub", lower=broken)
    (failure,) = check(binary("aten.sub.Tensor"), U85, True).failures
    assert "planted" in failure.kind
    small = shrink_failure(binary("aten.sub.Tensor"), failure.kind, U85, True, 30.0)
    assert [s.op for s in small.steps] == ["aten.sub.Tensor"]


def test_known_defects_say_why() -> None:
    assert all(pattern and reason for pattern, reason in KNOWN)


@pytest.mark.slow
def test_campaign_writes_a_summary(tmp_path: Path) -> None:
    script = TESTS / "run_fuzzer.py"
    arguments = ["--profile", "fp", "--count", "2", "--jobs", "2", "--shrink", "0", "--out", str(tmp_path / "out.json")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=dict(os.environ),
    )
    assert done.returncode in (0, 1), done.stderr
    assert "graphs: 2" in done.stdout
    assert "CPU seconds" in (tmp_path / "out.json").read_text()
