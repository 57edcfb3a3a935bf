"""Files that ask for hours of computing: refused before, or ended where the limit is."""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
import pytest
import torch

from support.handmade import Spec, Step, call, loop, make_program
from support.hostile_kernels import LONG_CALLS
from tosaic.core.errors import Invalid
from tosaic.engines import work
from tosaic.engines.inputs import make_ones
from tosaic.engines.interpreter import Method
from tosaic.formats.pte import read


def refuse(data: bytes) -> Invalid:
    method = Method(read(data))
    inputs = make_ones(method.inputs)
    begin = time.process_time()
    with pytest.raises(Invalid, match="too much work") as caught:
        method.run(inputs)
    assert time.process_time() - begin < 5
    return caught.value


@pytest.mark.parametrize("name", LONG_CALLS)
def test_a_long_call_is_refused_before_it_begins(name: str) -> None:
    assert len(LONG_CALLS[name]) < 8192
    error = refuse(LONG_CALLS[name])
    assert error.where == "instruction 0 of method `forward`"
    assert "MAX_WORK" in error.fix and "seconds" in error.why


def test_a_loop_of_kernels_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is short, and there are a million."""
    monkeypatch.setattr(work, "MAX_WORK", 1_000_000_000)
    data = loop(Step("aten::cumsum", "out", (Spec((1 << 20,)), 0, None), (Spec((1 << 20,)),)))
    assert "`aten::cumsum.out`" in refuse(data).what


def test_a_loop_of_jumps_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jump looks at all elements of its condition."""
    monkeypatch.setattr(work, "MAX_WORK", 500_000_000)
    never = Spec((1 << 22,), torch.bool)
    data = make_program(Step("aten::logical_not", "out", (never,), (never,)), jumps=[(1, 1)])
    assert "a jump on value 1" in refuse(data).what


def test_a_loop_of_delegates_ends(monkeypatch: pytest.MonkeyPatch, add_pte: dict[str, bytes]) -> None:
    monkeypatch.setattr(work, "MAX_WORK", 50_000_000)
    monkeypatch.setattr(work, "PER_BYTE", 0)

    def spin(_blob: bytes, _specs: object, inputs: list[Any], _outputs: object) -> list[Any]:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        return [inputs[0] * 2]

    method = Method(read(add_pte["inline"]), executors={"EthosUBackend": spin})
    with pytest.raises(Invalid, match="delegate 0"):
        method.run([np.arange(5, dtype=np.int32)])


def test_a_large_file_may_do_more(monkeypatch: pytest.MonkeyPatch) -> None:
    data = LONG_CALLS["a product of matrices"]
    monkeypatch.setattr(work, "MAX_WORK", 0)
    monkeypatch.setattr(work, "PER_BYTE", 0)
    small = call("aten::neg", "out", (Spec((4,)),), Spec((4,)))
    refuse(small)
    monkeypatch.setattr(work, "PER_BYTE", 20_000)
    method = Method(read(small))
    assert method.run(make_ones(method.inputs))[0].tolist() == [-1] * 4
    refuse(data)


@pytest.mark.parametrize("kernel", ["aten::_upsample_bicubic2d_aa", "aten::_upsample_bilinear2d_aa"])
def test_a_resize_counts_what_is_between_its_passes(kernel: str) -> None:
    """Rows of the input by columns of the result: gigabytes, where both are small."""
    data = call(
        kernel,
        "out",
        (Spec((1, 1, 1 << 15, 1)), [1, 1 << 15], False, None, None),
        Spec((1, 1, 1, 1 << 15)),
    )
    method = Method(read(data))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Invalid, match="bytes of memory"):
        method.run(make_ones(method.inputs))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
