"""Vela, Arm's compiler for Ethos-U: TOSA in, command stream and weights out.

What Vela 5.2 prints when it rejects TOSA: it names the kind of the first operator it cannot place ("Non-passthrough
operation (Gather) could not run on NPU") or finds malformed ("Validation error: Add: ..."), almost never a tensor. The
kind is Vela's own, after its rewriting: a SELECT on a bool input is rejected as NotEqual. The child therefore runs it
again with the graph listed, from which `refused_names` takes the tensors that such operators write. A malformed graph
is rejected before there is a listing: then only `refused_kinds` helps. An unused graph input is missing from
`Compiled.inputs`, and a tensor with a dimension of 0 makes Vela crash.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tosaic.core import errors
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.tools.cache import CompileCache, make_key
from tosaic.tools.vela_options import (
    VelaOptions,
    build_arguments,
    check_options,
    default_options,
    list_sections,
    normalize_flags,
)
from tosaic.tools.worker import Worker

__all__ = [
    "CACHE",
    "Compiled",
    "Refused",
    "VelaOptions",
    "check_options",
    "compile",
    "compile_cached",
    "default_options",
    "list_sections",
    "normalize_flags",
    "refused_kinds",
    "refused_names",
    "version",
    "worker",
]


@dataclass(frozen=True, slots=True)
class Slot:
    """Location of an input or output of the command stream: six dimensions, left padded with 1."""

    shape: tuple[int, ...]
    element_bytes: int
    offset: int
    region: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result of Vela for one TOSA file. `summary` keeps the column names of Vela's summary csv."""

    cmd_data: bytes
    weight_data: bytes
    scratch_size: int
    fast_scratch_size: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    weight_region: int
    scratch_region: int
    fast_scratch_region: int
    summary: dict[str, float]
    debug_db: str
    log: str


class Refused(errors.Refused):
    """A graph that Vela rejects. `kinds` and `names` identify the operators, if Vela reports them."""

    def __init__(self, sentence: str, log: str) -> None:
        self.kinds = refused_kinds(log)
        self.names = refused_names(log)
        super().__init__("Vela rejected the graph", log=log, why=sentence)


def _count_bytes(compiled: Compiled) -> int:
    # Texts are ASCII except for names, so a character is a byte; the rest is small.
    return sum(map(len, (compiled.cmd_data, compiled.weight_data, compiled.debug_db, compiled.log))) + 4096


#: The results of this process, unless a caller provides a cache.
CACHE: CompileCache[Compiled] = CompileCache(_count_bytes)


@functools.cache
def worker() -> Worker:
    """Return the only Vela worker of this Python process."""
    return Worker("tosaic.tools.vela_child", "Vela")


@functools.cache
def version() -> str:
    """Return the version of the installed Vela."""
    try:
        return importlib.metadata.version("ethos-u-vela")
    except importlib.metadata.PackageNotFoundError:
        raise ToolFailed("Vela is not installed", fix="pip install ethos-u-vela") from None


def compile(tosa: bytes, options: VelaOptions, *, timeout: float | None = None) -> Compiled:
    """Compile a .tosa file. The same bytes and options give the same result in any folder.

    Raises Refused if Vela rejects the graph, ToolFailed if it crashes or takes longer than `timeout` seconds, Invalid
    for bad options.
    """
    version()
    options = options.with_config()
    check_options(options)
    arguments = build_arguments(options, "vela.ini")
    reply = worker().request({"argv": arguments}, (tosa, options.get_config().data), timeout=timeout)
    if reply.failure:
        raise ToolFailed("Vela's results could not be read", log=reply.log, why=reply.failure)
    refusal = reply.body.get("refusal") or _find_complaint(reply.log)
    if refusal:
        raise _explain(refusal, reply.log)
    body = reply.body
    cmd_data, weight_data = reply.parts
    return Compiled(
        cmd_data=cmd_data,
        weight_data=weight_data,
        scratch_size=body["scratch_size"],
        fast_scratch_size=body["scratch_fast_size"],
        inputs=_read_io(body["inputs"]),
        outputs=_read_io(body["outputs"]),
        weight_region=body["weight_region"],
        scratch_region=body["scratch_region"],
        fast_scratch_region=body["scratch_fast_region"],
        summary=body["summary"],
        debug_db=body["debug_db"],
        log=reply.log,
    )


def compile_cached(
    tosa: bytes, options: VelaOptions, *, cache: CompileCache[Compiled] = CACHE, timeout: float | None = None
) -> Compiled:
    """Compile like `compile`, but take a result with the same bytes, options and Vela from the cache."""
    options = options.with_config()
    names = (options.accelerator, options.system_config, options.memory_mode)
    key = make_key((version(), tosa, *names, options.get_config().data, *options.extra_flags))
    found = cache.get(key)
    if found is None:
        found = compile(tosa, options, timeout=timeout)
        cache.put(key, found)
    return found


def _read_io(rows: Sequence[Any]) -> tuple[Slot, ...]:
    return tuple(Slot(tuple(shape), elem_size, offset, region) for shape, elem_size, offset, region in rows)


def _find_complaint(log: str) -> str:
    """Find what Vela printed as an error although it exited normally; empty if nothing."""
    error = re.search(r"^Error: .+$", log, re.MULTILINE)
    on_cpu = re.search(r"^CPU operators = [1-9].*$", log, re.MULTILINE)
    return error[0] if error else on_cpu[0] if on_cpu else ""


def _explain(sentence: str, log: str) -> Invalid | Refused:
    usage = re.search(r"^vela: error: (.+)$", log, re.MULTILINE)
    if usage:
        return Invalid("Vela does not accept these options", why=usage[1])
    return Refused(" ".join(re.sub(r"\n *- ", "; ", sentence).replace(":; ", ": ").split()), log)


def refused_kinds(log: str) -> tuple[str, ...]:
    """Return the operator kinds, by Vela's names (`Gather`, `Conv2D`), that a rejection in the log names."""
    found = re.findall(r"operation \((\w+)\) could not run on NPU|Validation error:\n(\w+):", log)
    return tuple(dict.fromkeys(placed or malformed for placed, malformed in found))


def refused_names(log: str) -> tuple[str, ...]:
    """Return the tensors of the .tosa file that operators of a rejected kind write: candidates, not proof."""
    names = dict.fromkeys(re.findall(r"Output tensor (.+?) does not have any writers", log))
    # The text before the first title, then alternating title and listing: Before, After, Before, After.
    parts = re.split(r"^\[ (Before|After) Graph Optimi[sz]ation \]$", log, flags=re.MULTILINE)
    if len(parts) > 2:
        source, final = _read_listing(parts[2]), _read_listing(parts[-1])
        for refused in refused_kinds(log):
            names |= dict.fromkeys(_trace(refused, source, final))
    return tuple(names)


def _trace(refused: str, source: Sequence[tuple[str, str]], final: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the tensors in the source listing behind the operators of one kind in the final listing."""
    source_kinds = {name: kind for kind, name in source}
    kept = {name for _, name in final}
    # Vela folds a RESHAPE into the previous operator, which then writes another tensor.
    moved = [name for kind, name in source if kind == refused and name not in kept]
    pending = False
    for kind, name in final:
        if kind == refused and moved and source_kinds.get(name) != refused:
            yield from moved
            continue
        # An operator that Vela made while rewriting precedes the one whose result is in the source.
        pending = pending or kind == refused
        if pending and name in source_kinds:
            yield name
            pending = False


def _read_listing(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^\d+ +(\w+) +(\S.*?) *$", text, re.MULTILINE)
