"""The same bytes everywhere: on the virtual board and in QEMU by both compilers, engine `npu`, ExecuTorch's runtime."""

import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch

import tosaic
from support.boards import needs_board
from support.firmware_models import Sandwich
from tosaic import zoo
from tosaic.board import qemu
from tosaic.board.build import build
from tosaic.board.options import BoardOptions
from tosaic.engines import engine
from tosaic.engines.board import choose_board
from tosaic.formats import pte

Case = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class Recurrent(torch.nn.Module):
    """An LSTM whose state goes in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = torch.nn.LSTM(8, 16, batch_first=True), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (h, c) = self.lstm(x, (h, c))
        return self.head(y), h, c


def make_recurrent() -> Case:
    torch.manual_seed(0)
    return Recurrent().eval(), (torch.randn(1, 5, 8), torch.randn(1, 1, 16), torch.randn(1, 1, 16))


def make_sandwich() -> Case:
    torch.manual_seed(0)
    return Sandwich().eval(), (torch.randn(1, 3, 8, 8),)


#: No delegate; one of int32; two with operators of the CPU between them; a state; an image.
CASES: dict[str, Callable[[], Case]] = {
    "softmax": lambda: zoo.load("softmax"),
    "add": lambda: zoo.load("add"),
    "sandwich": make_sandwich,
    "recurrent": make_recurrent,
    "mobilenet_v2": lambda: zoo.load("mobilenet_v2"),
}


@needs_board
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "mobilenet_v2" else ()) for name in CASES]
)
def test_same_bytes_everywhere(name: str, target: str) -> None:
    model, inputs = CASES[name]()
    data = tosaic.compile(model, inputs, target=target).pte
    arrays = [np.asarray(x) for x in inputs]
    board = "corstone-300" if "u55" in target else "corstone-320"
    found = {"npu": engine.run(data, arrays, engine="npu")}
    if shutil.which("c++"):
        found["executorch"] = engine.run(data, arrays, engine="executorch")
    for toolchain in ("zig", "gcc") if shutil.which("arm-none-eabi-gcc") else ("zig",):
        elf = build(data, board, toolchain=toolchain).elf
        for runner in ("virtual", "qemu") if shutil.which(qemu.PROGRAM) and board == "corstone-300" else ("virtual",):
            options = BoardOptions(board, runner, elf=elf)
            found[f"{toolchain}, {runner}"] = engine.run(data, arrays, engine="board", board=options)
    assert choose_board(pte.read(data), BoardOptions(board))[0].name == board
    expected = [array.tobytes() for array in found["npu"].outputs]
    results = {place: [array.tobytes() for array in run.outputs] for place, run in found.items()}
    assert results == dict.fromkeys(found, expected)
