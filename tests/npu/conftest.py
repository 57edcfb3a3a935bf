"""Fixtures of the tests of the simulator."""

import pytest

from support.npu_bench import Bench


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()
