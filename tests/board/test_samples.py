"""The records' samples without a delegate: the firmware's CPU kernels give what ExecuTorch's runtime gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from support.firmware import GCC, STATUSES, Firmware
from support.kernel_calls import find_difference
from support.programs import emit
from support.samples import exported
from tosaic.board.kernels import list_kernels
from tosaic.core.errors import ToolFailed
from tosaic.engines import executorch
from tosaic.formats.npy import Array
from tosaic.formats.pte import read
from tosaic.ops import registry

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
#: Records whose samples are few and need kernels of several files.
SOME = ("hardswish", "where", "rsub", "stack")


def compare(firmware: Firmware, record: str, index: int) -> tuple[str, str]:
    """Return what a sample was compared with, and where the results differ; nothing if they do not."""
    model, inputs, graph = exported(record, index)
    try:
        data = emit(graph, forms=("inline",))["inline"]
    except (RuntimeError, NotImplementedError):
        return "ExecuTorch cannot write it", ""
    if {str(operator) for operator in read(data).find().operators} - set(list_kernels()):
        return "a kernel is missing", ""  # another test lists these
    arrays = [array.numpy() for array in inputs]
    ended = firmware.run(data, arrays, pools=(1 << 20, 64 << 20, 0, 0))
    if ended.status:
        return "nothing", f"{STATUSES[ended.status]}: {ended.name}"
    try:
        found = find_differences(ended.outputs, executorch.run(data, arrays))
    except ToolFailed:
        found = "ExecuTorch's kernel refuses it"
    if not found:
        return "ExecuTorch", ""
    # Where ExecuTorch does not compute what torch computes, a shift by more bits than there are, we do.
    results = model(*inputs)
    expected = [results] if isinstance(results, torch.Tensor) else list(results)
    differs = find_differences(ended.outputs, [each.detach().numpy() for each in expected])
    return "torch", f"ExecuTorch: {found}; torch: {differs}" if differs else ""


def find_differences(ours: Sequence[Array], theirs: Sequence[Array]) -> str:
    return "; ".join(filter(None, map(find_difference, map(np.asarray, ours), theirs)))


def check(firmware: Firmware, record: str) -> None:
    samples = range(len(registry().records[record].samples()))
    found = {index: compare(firmware, record, index) for index in samples}
    assert not {index: differs for index, (_, differs) in found.items() if differs}


@pytest.mark.parametrize("record", SOME)
def test_some_samples(firmware: Firmware, record: str) -> None:
    check(firmware, record)


@pytest.mark.slow
@pytest.mark.parametrize("record", sorted(set(registry().records) - set(SOME)))
def test_samples(firmware: Firmware, record: str) -> None:
    check(firmware, record)
