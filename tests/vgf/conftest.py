"""What the VGF tests share: the registry's samples, and a Vulkan device or the reason why there is none."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from types import ModuleType

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
def samples() -> ModuleType:
    """tests/ops/build.py: modules, inputs and quantized graphs of the registry's samples."""
    path = Path(__file__).parents[1] / "ops" / "build.py"
    spec = importlib.util.spec_from_file_location("tosaic_op_samples", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def device() -> vulkan.Probe:
    """Skips where no .vgf file can run."""
    found = vulkan.probe()
    if not found.ok:
        pytest.skip(f"Vulkan is not usable: {found.reason}. Fix: {found.fix}")
    return found
