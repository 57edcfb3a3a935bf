"""Results of types that a target does not have, int64 and booleans on Ethos-U55: the CPU casts them afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

import tosaic
from support import samples
from tosaic.api.prepare import quantize
from tosaic.driver.exported import export
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.tosa import TosaCompileSpec, TOSAPartitioner

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(5))
CASES: dict[str, Any] = {
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: torch.relu(x).argmin(1, keepdim=True),
    "max": lambda x: tuple(torch.max(x, 1)),
    "topk": lambda x: torch.topk(x, 1)[1],
    "count": lambda x: (x > 0.5).sum(1),
    "moved": lambda x: x.argmax(1, keepdim=True).reshape(3),
    "compared": lambda x: x > 0.5,
    "any": lambda x: (x > 1.0).any(1),
    "both": lambda x: (x.argmax(-1), x.argmax(-1).to(torch.int32)),
}


#: What else is on the CPU: a float profile has no integers that could be moved.
MORE_ON_CPU = {("moved", "TOSA-1.0+FP"): ("aten.reshape.default",)}


def compare(program: Any, model: Any) -> None:
    wanted = model(X)
    for got, want in zip(program.run(X), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert got.dtype == want.numpy().dtype
        if want.dtype.is_floating_point:
            np.testing.assert_allclose(got, want.numpy(), atol=0.05)
        else:
            assert np.array_equal(got, want.numpy())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256", "TOSA-1.0+FP"])
@pytest.mark.parametrize("name", CASES)
def test_compile(name: str, target: str) -> None:
    model = samples.Call(CASES[name]).eval()
    program = tosaic.compile(model, (X,), target)
    assert len(program.delegates) == 1
    left = {r.op for r in program.reasons if not r.is_io}
    assert left <= {"aten._to_copy.default", *MORE_ON_CPU.get((name, target), ())}
    compare(program, model)
    assert program.verify().ok


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["ethos-u55-128", "TOSA-1.0+FP"])
def test_partitioner(name: str, target: str) -> None:
    """ExecuTorch's own way: nothing but casts, and what quantizes, is left beside one delegate."""
    model = samples.Call(CASES[name]).eval()
    program = export(model, (X,))
    if target.startswith("ethos"):
        program = torch.export.export(quantize(program, [(X,)]), (X,))
        partitioner: Any = EthosUPartitioner(EthosUCompileSpec(target))
    else:
        partitioner = TOSAPartitioner(TosaCompileSpec(target))
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner])
    graph = edge.exported_program().graph
    calls = [str(n.target) for n in graph.nodes if n.op == "call_function"]
    assert sum("executorch_call_delegate" in c for c in calls) == 1
    others = [c for c in calls if "call_delegate" not in c and "getitem" not in c and "quantize_per_tensor" not in c]
    more = ("view_copy",) if (name, target) in MORE_ON_CPU else ()
    assert all(any(word in c for word in ("to_dim_order_copy", "_to_copy", *more)) for c in others)
    wanted = model(X)
    outputs = [n.meta["val"] for n in graph.output_node().all_input_nodes]
    expected = wanted if isinstance(wanted, tuple) else (wanted,)
    assert [(o.dtype, tuple(o.shape)) for o in outputs] == [(w.dtype, tuple(w.shape)) for w in expected]
    edge.to_executorch()


def test_a_result_that_32_bits_may_not_hold_stays_on_the_cpu() -> None:
    model = samples.Call(lambda x: x.argmax(-1) * 2**40).eval()
    program = tosaic.compile(model, (X,), "ethos-u85-256")
    assert "aten.mul.Tensor" in {r.op for r in program.reasons}
    compare(program, model)
