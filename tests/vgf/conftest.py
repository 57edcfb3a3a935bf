"""What the VGF tests share: a Vulkan device or the reason why there is none."""

from __future__ import annotations

import pytest

from support.extras import NO_CONVERTER, has_converter
from tosaic.engines import vulkan


@pytest.fixture(scope="session", autouse=True)
def package() -> None:
    """Skips where nothing can be compiled for VGF."""
    if not has_converter():
        pytest.skip(NO_CONVERTER)


@pytest.fixture(scope="session")
def device() -> vulkan.Probe:
    """Skips where no .vgf file can run."""
    found = vulkan.probe()
    if not found.ok:
        pytest.skip(f"Vulkan is not usable: {found.reason}. Fix: {found.fix}")
    return found
