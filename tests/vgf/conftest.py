"""What the VGF tests share: a Vulkan device or the reason why there is none."""

from __future__ import annotations

import importlib.metadata

import pytest

from tosaic.backends import converter
from tosaic.engines import vulkan


@pytest.fixture(scope="session", autouse=True)
def package() -> None:
    """Skips where nothing can be compiled for VGF."""
    try:
        importlib.metadata.version(converter.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package `{converter.PACKAGE}` is not installed. Fix: {vulkan.INSTALL}")


@pytest.fixture(scope="session")
def device() -> vulkan.Probe:
    """Skips where no .vgf file can run."""
    found = vulkan.probe()
    if not found.ok:
        pytest.skip(f"Vulkan is not usable: {found.reason}. Fix: {found.fix}")
    return found
