"""Tests that need packages which `make setup` does not install."""

from __future__ import annotations

import importlib.metadata

import pytest

from tosaic.backends import converter
from tosaic.engines import vulkan


def has_converter() -> bool:
    """Whether something can be compiled for VGF."""
    try:
        importlib.metadata.version(converter.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


NO_CONVERTER = f"the package `{converter.PACKAGE}` is not installed. Fix: {vulkan.INSTALL}"
needs_converter = pytest.mark.skipif(not has_converter(), reason=NO_CONVERTER)
