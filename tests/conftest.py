"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

pytest_plugins = ["support.fixtures"]
warnings.filterwarnings("ignore", category=FutureWarning)
# An internal error that would only cost a node is a failure here, in child processes too.
os.environ["TOSAIC_STRICT"] = "1"


@pytest.fixture(scope="session", autouse=True)
def quick_torch() -> None:
    # Two pytest workers on two cores: more threads would only fight.
    torch.set_num_threads(1)
