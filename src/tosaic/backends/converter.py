"""The ML SDK's model converter: TOSA in, a .vgf file out (SPIR-V graphs, constants and the order to run them in).

When it rejects a graph it names the kind of the operator ("failed to legalize operation 'tosa.custom'"), never a
tensor: `Refused.names` are all tensors that operators of that kind write.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tosaic.core import errors
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.paths import find_cache_folder
from tosaic.formats.tosa_writer import names, read
from tosaic.tools.cache import CompileCache, make_key
from tosaic.tools.process import run_tool

PACKAGE = "ai-ml-sdk-model-converter"
INSTALL = "pip install 'tosaic[vgf]'"

#: The flags that a user may pass; the others name files, or produce something other than a .vgf.
FLAGS = ("--dump-mlir", "--emit-debug-info", "--require-static-shape", "--experimental-analysis", "--type-narrowing")
#: How many rejected graphs are kept for reproduction.
_MAX_KEPT = 8


class Refused(errors.Refused):
    """A graph that the converter rejects. `kinds` and `names` identify the operators, if it reports them."""

    def __init__(self, tosa: bytes, sentence: str, log: str, flags: Sequence[str]) -> None:
        self.kinds = refused_kinds(log)
        self.names = _find_names(tosa, self.kinds)
        kept = _keep(tosa)
        again = " ".join(["model-converter", *flags, "-i", str(kept), "-o", "model.vgf"]) if kept else ""
        super().__init__(
            "the model converter rejected the graph",
            log=log,
            where=", ".join(f"`{name}`" for name in self.names[:4]),
            why=sentence,
            fix=f"to reproduce: {again}" if again else "",
        )


#: The results of this process, unless a caller provides a cache.
CACHE: CompileCache[bytes] = CompileCache(len)


@functools.cache
def version() -> str:
    """Return the version of the installed converter."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ToolFailed("the model converter is not installed", fix=INSTALL) from None


def probe() -> str:
    """Start the converter and return its version; raise ToolFailed if it is not installed or does not start."""
    found = version()
    with tempfile.TemporaryDirectory(prefix="tosaic-") as name:
        done = run_tool("the model converter", [_find_program(), "--version"], folder=Path(name), timeout=60.0)
    if done.signal or done.code:
        why = f"it ended with {done.signal or f'exit code {done.code}'}"
        raise ToolFailed("the model converter does not start", log=done.output, why=why, fix=INSTALL)
    return found


def check_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Check the flags: each must be known; return each once, in a fixed order."""
    for flag in flags:
        if flag.partition("=")[0] not in FLAGS:
            raise Invalid(f"`{flag}` is not a model converter flag", fix=f"use one of {', '.join(FLAGS)}")
    return tuple(sorted(set(flags)))


def compile(tosa: bytes, flags: Sequence[str] = (), *, timeout: float | None = None) -> bytes:
    """Compile a .tosa file to a .vgf file; the same bytes and flags give the same file.

    Raises Refused if the converter rejects or crashes on the graph, ToolFailed after more than `timeout` seconds.
    """
    version()
    with tempfile.TemporaryDirectory(prefix="tosaic-") as name:
        folder = Path(name)
        (folder / "model.tosa").write_bytes(tosa)
        arguments = [_find_program(), *check_flags(flags), "-i", "model.tosa", "-o", "model.vgf"]
        done = run_tool("the model converter", arguments, folder=folder, timeout=timeout)
        made = folder / "model.vgf"
        if done.signal:
            raise Refused(tosa, f"it crashed with {done.signal}", done.output, flags)
        if done.code or not made.exists():
            raise Refused(tosa, _find_reason(done.output), done.output, flags)
        return made.read_bytes()


def compile_cached(
    tosa: bytes, flags: Sequence[str] = (), *, cache: CompileCache[bytes] = CACHE, timeout: float | None = None
) -> bytes:
    """Compile like `compile`, but take a result with the same bytes, flags and converter from the cache."""
    key = make_key((version(), tosa, *check_flags(flags)))
    found = cache.get(key)
    if found is None:
        found = compile(tosa, flags, timeout=timeout)
        cache.put(key, found)
    return found


def _find_program() -> str:
    files = importlib.metadata.distribution(PACKAGE).files or ()
    program = next((f.locate() for f in files if f.parts[-3:] == ("binaries", "bin", "model-converter")), None)
    if program is None:
        raise ToolFailed("the model converter's package contains no executable", fix=f"{INSTALL} --force-reinstall")
    return str(program)


def refused_kinds(log: str) -> tuple[str, ...]:
    """Return the TOSA operators that a rejection in the log names."""
    return tuple(dict.fromkeys(name.upper() for name in re.findall(r"'tosa\.(\w+)'", log)))


def _find_names(tosa: bytes, kinds: Sequence[str]) -> tuple[str, ...]:
    labels = names(read(tosa))
    return tuple(label for value, label in labels.items() if value.op is not None and value.op.kind in kinds)


def _find_reason(log: str) -> str:
    """Find the first line that is an error, without its location in a file that does not exist."""
    lines = [line.strip() for line in log.splitlines() if "error" in line.lower()]
    return re.sub(r"^<unknown>:0: error: |^ERROR: ", "", lines[0]) if lines else log.strip().rpartition("\n")[2]


def _keep(tosa: bytes) -> Path | None:
    """Keep a rejected graph for reproduction and remove the oldest ones. None if nothing can be written."""
    path = find_cache_folder() / "refused" / f"{make_key([tosa])[:12]}.tosa"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tosa)
        old = sorted(path.parent.glob("*.tosa"), key=lambda p: p.stat().st_mtime_ns)[:-_MAX_KEPT]
        for one in old:
            one.unlink(missing_ok=True)
    except OSError:
        return None
    return path
