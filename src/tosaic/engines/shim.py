"""Builds the C++ shim that lets ExecuTorch's runtime call back into Python, once per version, into a cache folder."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import os
import platform
import shutil
import tempfile
from pathlib import Path

from tosaic.core.errors import ToolFailed
from tosaic.core.paths import CACHE_VARIABLE, find_cache_folder
from tosaic.tools.process import run_tool

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-DC10_USING_CUSTOM_GENERATED_MACROS")
_INSTEAD = "or use engine `npu`, which needs no compiler"


def find_compiler() -> str:
    """Find the C++ compiler: the one in CXX, else the first of the usual names; empty if there is none."""
    names = (os.environ.get("CXX", ""), *_COMPILERS)
    return next((path for name in names if name and (path := shutil.which(name))), "")


def build() -> Path:
    """Return the shared library of the shim; compile it if it is not in the cache."""
    source = importlib.resources.files("tosaic.engines").joinpath("shim.cpp").read_bytes()
    version, include = _find_executorch()
    parts = (source, version.encode(), " ".join(_FLAGS).encode(), platform.machine().encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    target = find_cache_folder() / f"shim-{key}.so"
    if not target.exists():
        _compile(source, include, target)
    return target


def _find_executorch() -> tuple[str, Path]:
    """Find version and headers of the installed package without importing it."""
    spec = importlib.util.find_spec("executorch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    include = next((Path(place) / "include" for place in places if (Path(place) / "include").is_dir()), None)
    if include is None:
        raise ToolFailed("ExecuTorch's headers are not installed", fix=f"pip install executorch, {_INSTEAD}")
    return importlib.metadata.version("executorch"), include


def _compile(source: bytes, include: Path, target: Path) -> None:
    compiler = find_compiler()
    if not compiler:
        raise ToolFailed(
            "engine `executorch` needs a C++ compiler",
            why=f"none of {', '.join(_COMPILERS)} is on the PATH, and CXX is not set to one",
            fix=f"install one (Debian: `apt install g++`), {_INSTEAD}",
        )
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as name:
            _run_compiler(compiler, source, include, Path(name))
            # Another process may be building the same file: the last one to finish replaces it atomically.
            (Path(name) / "shim.so").replace(target)
    except OSError as error:
        raise ToolFailed(
            f"the cache folder `{target.parent}` cannot be used",
            why=error.strerror or str(error),
            fix=f"set another one with the environment variable `{CACHE_VARIABLE}`, {_INSTEAD}",
        ) from None


def _run_compiler(compiler: str, source: bytes, include: Path, folder: Path) -> None:
    (folder / "shim.cpp").write_bytes(source)
    types = include / "executorch" / "runtime" / "core" / "portable_type" / "c10"
    arguments = [compiler, *_FLAGS, f"-I{include}", f"-I{types}", "shim.cpp", "-o", "shim.so"]
    done = run_tool(f"`{compiler}`", arguments, folder=folder)
    if done.code:
        log = done.output
        why = next((line for line in log.splitlines() if "error" in line), log[:200])
        raise ToolFailed(
            f"`{compiler}` cannot compile the shim for engine `executorch`", log=log, why=why, fix=_INSTEAD
        )
