"""Every model of the zoo on the virtual board: the bytes that engine `npu` computes, and no memory too much."""

import numpy as np
import pytest

import tosaic
from support.boards import check_memory, needs_board
from tosaic import zoo
from tosaic.engines import engine

QUICK = ("add", "softmax", "ds_cnn")


@needs_board
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in zoo.names()]
)
def test_zoo(name: str, target: str) -> None:
    model, inputs = zoo.load(name)
    data = tosaic.compile(model, inputs, target=target).pte
    arrays = [np.asarray(x) for x in inputs]
    board, npu = (engine.run(data, arrays, engine=place) for place in ("board", "npu"))
    assert [array.tobytes() for array in board.outputs] == [array.tobytes() for array in npu.outputs]
    assert board.execution is not None
    check_memory(board.execution.log)
