"""Small .pte files as fixtures, which tests/conftest.py loads for all folders."""

import pytest
import torch
from torch.export import export

from support.programs import Add, Branch, Conv, Dynamic, Inputs, Made, Mixed, Softmax, compile_front, emit


@pytest.fixture(scope="session")
def add() -> Made:
    return compile_front(Add(), (torch.arange(5, dtype=torch.int32),), "ethos-u55-128")


@pytest.fixture(scope="session")
def add_pte(add: Made) -> dict[str, bytes]:
    return add.pte


@pytest.fixture(scope="session")
def conv_inputs() -> Inputs:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, 3, 8, 8, generator=generator), torch.randn(1, 8, 8, 8, generator=generator)


@pytest.fixture(scope="session")
def conv(conv_inputs: Inputs) -> Made:
    torch.manual_seed(0)
    return compile_front(Conv(), conv_inputs, "ethos-u85-256")


@pytest.fixture(scope="session")
def conv_pte(conv: Made) -> dict[str, bytes]:
    return conv.pte


@pytest.fixture(scope="session")
def softmax_pte() -> dict[str, bytes]:
    return emit(export(Softmax(), (torch.ones(2, 2),)))


@pytest.fixture(scope="session")
def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


@pytest.fixture(scope="session")
def mixed_pte(mixed: Mixed) -> bytes:
    return emit(export(mixed, (torch.ones(1, 3, 6, 6),)), forms=("segment",))["segment"]


@pytest.fixture(scope="session")
def branch_pte() -> bytes:
    return emit(export(Branch(), (torch.tensor(True), torch.ones(3))), forms=("inline",))["inline"]


@pytest.fixture(scope="session")
def dynamic_pte() -> bytes:
    program = export(Dynamic(), (torch.ones(3, 4),), dynamic_shapes=({0: torch.export.Dim("n", max=8)},))
    return emit(program, forms=("inline",))["inline"]
