"""Tests that need what `make setup` does not install: packages, and a compiler."""

from __future__ import annotations

import importlib.metadata

import pytest

from tosaic.backends import converter
from tosaic.engines import shim, vulkan


def has_converter() -> bool:
    """Whether something can be compiled for VGF."""
    try:
        importlib.metadata.version(converter.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


NO_CONVERTER = f"the package `{converter.PACKAGE}` is not installed. Fix: {vulkan.INSTALL}"
needs_converter = pytest.mark.skipif(not has_converter(), reason=NO_CONVERTER)

NO_COMPILER = "no C++ compiler for the shim of engine executorch. Fix: `apt install g++`, or set CXX"
needs_compiler = pytest.mark.skipif(not shim.find_compiler(), reason=NO_COMPILER)
