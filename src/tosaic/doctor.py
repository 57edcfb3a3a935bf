"""Checks of the installation. Each check ends with the command that fixes it."""

from __future__ import annotations

import importlib
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tosaic.core.releases import TESTED

#: packages whose version matters
_PACKAGES = ("torch", "executorch", "torchao", "ethos-u-vela", "tosa-tools")
_COMPILERS = ("c++", "g++", "clang++")
_LEAST_PYTHON = (3, 11)
VGF, BOARD, TESTS = "vgf", "board", "tests"
#: What can be installed, and the extras with its packages.
_EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType({VGF: ("vgf",), BOARD: ("board",), TESTS: ("dev", "vision")})
_FIX_VGF, _FIX_BOARD, _FIX_TESTS = (f"tosaic doctor --fix {name}" for name in _EXTRAS)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's list. A `target` works if its last check passes; empty: it concerns all of them."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = True
    target: str = ""


@dataclass(frozen=True, slots=True)
class Helpers:
    """What a check that takes seconds needs: an import of torch without its messages, and someone to tell its name."""

    import_torch: Callable[[], None]
    announce: Callable[[str], None]


def examine(helpers: Helpers) -> Iterator[Check]:
    """Yield all checks, one after the other; the later ones take seconds."""
    yield from _examine_all()
    fix = "install what is missing above; `tosaic compile add --debug` shows more"
    for check in (
        lambda: _try(helpers, "Vela", _run_vela, "pip install --force-reinstall ethos-u-vela"),
        lambda: _try(helpers, "Ethos-U compile", lambda: _run_compile(helpers, "ethos-u55-128"), fix),
    ):
        yield replace(check(), target="ethos-u")
    yield from examine_vgf(helpers)
    yield from examine_board(helpers)
    fix = "pip install --force-reinstall tosa-tools"
    reference = _try(helpers, "TOSA reference model", _run_reference, fix, needed=False)
    yield replace(reference, target="tosa")


def examine_vgf(helpers: Helpers) -> Iterator[Check]:
    """Yield the checks of compiling for VGF, and then of running."""
    for package, wanted in _list_wanted(VGF):
        yield replace(_check_package(package, wanted), fix=_FIX_VGF, needed=False, target=VGF)
    compiles = _try(helpers, "VGF compile", lambda: _run_compile(helpers, "vgf"), _FIX_VGF, needed=False)
    yield replace(compiles, target=VGF)
    from tosaic.engines import vulkan

    helpers.announce("Vulkan")
    probe = vulkan.probe()
    wrong = vulkan.find_wrong_operator() if probe.ok else ""
    note = f"; files of other compilers may fail: it computes {wrong} wrongly" if wrong else ""
    found = f"runs: one operator, {probe.driver} on `{probe.device}`{note}" if probe.ok else probe.reason
    yield Check("Vulkan", probe.ok, found, probe.fix or _FIX_VGF, needed=False, target=VGF)


def examine_board(helpers: Helpers) -> Iterator[Check]:
    """Yield the checks of building firmware for a board, and of running it."""
    from tosaic.board import qemu

    for package, wanted in _list_wanted(BOARD):
        yield replace(_check_package(package, wanted), fix=_FIX_BOARD, needed=False, target=BOARD)
    program = shutil.which(qemu.PROGRAM)
    yield Check("QEMU", bool(program), program or "none", qemu.INSTALL, needed=False, target=BOARD)
    boots = _try(helpers, "virtual board", lambda: _run_board(helpers), _FIX_BOARD, needed=False)
    yield replace(boots, target=BOARD)


def examine_tests() -> Iterator[Check]:
    """Yield the checks of the packages that the tests need."""
    missing: list[str] = []
    for package, wanted in _list_wanted(TESTS):
        check = replace(_check_package(package, wanted), fix=_FIX_TESTS, needed=False, target=TESTS)
        missing += [] if check.ok else [package]
        yield check
    found = f"lack {', '.join(missing)}" if missing else "have all packages"
    yield Check("tests", not missing, found, _FIX_TESTS, needed=False, target=TESTS)


def examine_fix(name: str, helpers: Helpers) -> Iterator[Check]:
    """Yield the checks of what `install` installs."""
    return examine_tests() if name == TESTS else {VGF: examine_vgf, BOARD: examine_board}[name](helpers)


def plan(name: str) -> list[str]:
    """Return the commands that `install` would run, as a user would type them."""
    from tosaic.engines import vulkan_setup

    command = _find_pip_command(name)
    return [*([shlex.join(command)] if command else []), *(vulkan_setup.plan() if name == VGF else [])]


def install(name: str, announce: Callable[[str], None]) -> None:
    """Install what VGF, boards or the tests lack: Python packages with pip, and the Vulkan driver with apt."""
    from tosaic.engines import vulkan_setup

    command = _find_pip_command(name)
    if command:
        announce("installing Python packages")
        vulkan_setup.execute(command)
        importlib.invalidate_caches()
    if name == VGF:
        vulkan_setup.install(announce)


def _find_pip_command(name: str) -> list[str]:
    """Return the command that installs the Python packages which are missing; empty if there are none."""
    missing = [
        f"{package}{versions}" for package, versions in _list_wanted(name) if not _check_package(package, versions).ok
    ]
    return [sys.executable, "-m", "pip", "install", *missing] if missing else []


def _list_wanted(name: str) -> list[tuple[str, str]]:
    return [wanted for extra in _EXTRAS[name] for wanted in _read_ranges(extra).items()]


def list_working(checks: Iterable[Check]) -> dict[str, bool]:
    """Tell for each target whether it works: the result of its last check."""
    return {check.target: check.ok for check in checks if check.target}


def _examine_all() -> Iterator[Check]:
    version = platform.python_version()
    yield Check("Python", sys.version_info >= _LEAST_PYTHON, version, "install Python 3.11 or newer")
    ranges = _read_ranges()
    for package in _PACKAGES:
        yield _check_package(package, ranges.get(package, ""))
    yield _check_releases(version)
    yield _check_compiler()
    yield _check_folder()


def _read_ranges(extra: str = "") -> dict[str, str]:
    """Read the versions that the installed Tosaic, or one of its extras, requires: {"torch": ">=2.13,<2.14"}."""
    import importlib.metadata

    ranges: dict[str, str] = {}
    for line in importlib.metadata.requires("tosaic") or ():
        match = re.match(r"([\w.-]+?)([<>=!~][^;]*)?(?:;extra=='([\w-]+)')?$", line.replace(" ", "").replace('"', "'"))
        if match and (match[3] or "") == extra:
            ranges[match[1]] = match[2] or ""
    return ranges


def _find_version(package: str) -> str | None:
    # Here: the import would be half of the time of `--help`.
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_package(package: str, wanted: str) -> Check:
    fix = f"pip install '{package}{wanted}'"
    version = _find_version(package)
    if version is None:
        return Check(package, ok=False, found="not installed", fix=fix)
    usable = fits(version, wanted)
    return Check(package, usable, version if usable else f"{version}, but {wanted} is needed", fix)


def _check_releases(python: str) -> Check:
    """Check that this combination of releases is one that is tested."""
    torch, executorch = (_find_version(name) for name in ("torch", "executorch"))
    if torch is None or executorch is None:
        return Check("releases", ok=False, found="not known", fix="install torch and executorch", needed=False)
    tested = any(one.matches(python, torch, executorch) for one in TESTED)
    found = f"Python, torch and executorch are {'' if tested else 'not '}tested together"
    return Check("releases", tested, found, f"use one of these: {'; '.join(map(str, TESTED))}", needed=False)


def fits(version: str, wanted: str) -> bool:
    """Tell whether a version is in a range of `>=`, `<` and `==` bounds."""
    have = _numbers(version)
    for bound in filter(None, wanted.split(",")):
        at_least, below, exact = (bound.startswith(sign) for sign in (">=", "<", "=="))
        limit = _numbers(bound.lstrip("<>="))
        if (at_least and have < limit) or (below and have >= limit) or (exact and have != limit):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _check_compiler() -> Check:
    found = next((path for name in _COMPILERS if (path := shutil.which(name))), "")
    fix = "install one, e.g. `apt install g++`"
    return Check("C++ compiler", bool(found), found or "none", fix, needed=False)


def _check_folder() -> Check:
    """Check that there is a writable temporary folder for tools."""
    import tempfile

    fix = "set the environment variable `TMPDIR` to a writable folder"
    try:
        with tempfile.TemporaryDirectory(prefix="tosaic-") as folder:
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("temporary folder", ok=False, found=str(error), fix=fix)
    return Check("temporary folder", ok=True, found=f"`{tempfile.gettempdir()}`, {free >> 20:,} MiB free", fix=fix)


def _try(helpers: Helpers, name: str, job: Callable[[], str], fix: str, *, needed: bool = True) -> Check:
    helpers.announce(name)
    try:
        return Check(name, ok=True, found=job(), fix=fix, needed=needed)
    except Exception as error:
        # Any failure in here is a result of the check, also an import that fails in a native library.
        first = next(iter(str(error).strip().splitlines()), "")
        return Check(name, ok=False, found=f"{type(error).__name__}: {first}", fix=fix, needed=needed)


def _make_tosa() -> bytes:
    """Make the smallest graph with work in it: one addition."""
    from tosaic.formats.tosa_writer import serialize
    from tosaic.ir import ops
    from tosaic.ir.build import Builder
    from tosaic.ir.graph import DType, Type

    builder = Builder()
    x, y = (builder.input(Type(DType.I32, (1, 4))) for _ in range(2))
    return serialize(builder.finish([ops.add(builder, x, y)]))


def _run_reference() -> str:
    import numpy as np

    from tosaic.engines import reference

    ones = np.ones((1, 4), np.int32)
    (result,) = reference.run(_make_tosa(), [ones, ones])
    if result.tolist() != [[2, 2, 2, 2]]:
        raise ValueError(f"1 + 1 returned {result.tolist()}")
    return "runs: 1 + 1 = 2"


def _run_vela() -> str:
    from tosaic.core.targets import find
    from tosaic.tools import vela

    target = find("ethos-u55-128")
    compiled = vela.compile(_make_tosa(), vela.default_options(target))
    return f"runs: one operator, {len(compiled.cmd_data):,} bytes of commands for {target.name}"


def _run_board(helpers: Helpers) -> str:
    import numpy as np

    helpers.import_torch()
    from tosaic import zoo
    from tosaic.api import build as api
    from tosaic.engines import engine

    module, inputs = zoo.load("add")
    program = api.compile(module, inputs, "ethos-u55-128")
    ones = np.ones(tuple(inputs[0].shape), np.int32)
    (result,) = engine.run(program.pte, [ones], engine="board").outputs
    if (result != 2).any():
        raise ValueError(f"1 + 1 returned {result.tolist()}")
    return "boots: the model `add`, 1 + 1 = 2"


def _run_compile(helpers: Helpers, target: str) -> str:
    helpers.import_torch()
    from tosaic import zoo
    from tosaic.api import build as api

    module, inputs = zoo.load("add")
    program = api.compile(module, inputs, target)
    if len(program.delegates) != 1:
        raise ValueError(f"the model `add` has {len(program.delegates)} delegates instead of 1")
    return f"works: the model `add`, {len(program.pte):,} bytes of .pte"
