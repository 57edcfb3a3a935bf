"""Builds a firmware: a .pte and a board in, an ELF file out. The same input gives the same bytes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

from tosaic.board.description import Board, find_board, list_suited
from tosaic.board.kernels import KernelSource, select_kernels
from tosaic.board.placement import Usage, find_mode, find_overfull, list_modes, place
from tosaic.board.pools import Pools, measure_pools
from tosaic.board.project import GENERATED, HEADERS, Model, Sample, make_project
from tosaic.board.toolchain import AUTO, Toolchain, find_toolchain
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.paths import find_cache_folder
from tosaic.formats import blob as ethosu_blob
from tosaic.formats.blob import BACKEND
from tosaic.formats.external import read
from tosaic.formats.pte import Plan, Pte, Tensor
from tosaic.npu.accelerator import Accelerator
from tosaic.npu.stream import parse
from tosaic.tools.cache import make_key

_OUTPUT, _LIBRARY = "firmware.elf", "library.o"
#: What zig's and GNU's linkers write where a memory is full.
_OVERFLOW = re.compile(r"region [`'](\w+)'[: ]+overflowed by (\d+) bytes")
#: The most object files that are kept.
_MOST_KEPT = 50


@dataclass(frozen=True, slots=True)
class Design:
    """A firmware before it is compiled. `usages` are what its model and pools take of each memory, without code,
    variables and stack.

    memory_mode  where network and scratch memory are
    note         why this is not the mode that the .pte was compiled for; empty if it is
    """

    model: Model
    board: Board
    accelerator: str
    memory_mode: str
    note: str
    usages: tuple[Usage, ...]

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        return self.model.kernels

    @property
    def pools(self) -> Pools:
        return self.model.pools


@dataclass(frozen=True, slots=True)
class Firmware(Design):
    """A firmware: its design, and the program with the .pte inside."""

    elf: bytes


class Options(TypedDict, total=False):
    """Options of a firmware, which `design` explains."""

    memory_mode: str | None
    method: str
    operators: Iterable[str] | None
    samples: Sequence[Sample]
    atol: float
    rtol: float
    data: Sequence[bytes]


def build(pte: bytes, board: Board | str, *, toolchain: str = AUTO, **options: Unpack[Options]) -> Firmware:
    """Build the firmware that runs a method of a .pte on a board.

    `toolchain` is `zig`, `gcc`, or by default the first of these that is installed.
    """
    made = design(pte, board, **options)
    elf = compile_design(made, toolchain)
    return Firmware(made.model, made.board, made.accelerator, made.memory_mode, made.note, made.usages, elf)


def compile_design(made: Design, toolchain: str = AUTO) -> bytes:
    """Compile a design and return the ELF file."""
    try:
        return _compile(make_project(made.model, made.board, made.memory_mode), toolchain)
    except ToolFailed as error:
        _check_overflow(error.log, made.board)
        raise


def design(
    pte: bytes,
    board: Board | str,
    *,
    memory_mode: str | None = None,
    method: str = "forward",
    operators: Iterable[str] | None = None,
    samples: Sequence[Sample] = (),
    atol: float = 0.0,
    rtol: float = 0.0,
    data: Sequence[bytes] = (),
) -> Design:
    """Design the firmware that runs a method of a .pte on a board: kernels, pools, and where everything is.

    memory_mode  by default that of the .pte if it fits in the board's memories, else the next one that does
    operators    kernels to include; by default those that the method calls
    samples      inputs with their outputs, which the firmware runs instead of the host's inputs
    atol, rtol   how far an output of floats may be from a sample's: atol + rtol * |expected|
    data         the .ptd files of a program that has some of its data outside the .pte
    """
    program = read(pte, data)
    plan = program.find(method)
    described = find_board(board) if isinstance(board, str) else board
    _check_constants(plan)
    accelerator = _find_accelerator(program, plan, described)
    kernels = _choose_kernels(plan, operators)
    pools = measure_pools(program, plan)
    model = Model(pte, plan, program.plans.index(plan), pools, kernels, tuple(samples), atol, rtol, tuple(data))
    parts = {"MODEL": model.size, "SAMPLES": sum(len(x) for s in samples for x in (*s.inputs, *s.outputs))}
    mode, note, usages = _choose_mode(described, accelerator, plan, memory_mode, parts, pools)
    return Design(model, described, accelerator.name if accelerator is not None else "", mode, note, usages)


def _check_constants(plan: Plan) -> None:
    """Raise Invalid if a method has constants of the CPU in .ptd files."""
    missing = [f"`{value.name}`" for value in plan.values if isinstance(value, Tensor) and value.external]
    if missing:
        raise Invalid(
            "a firmware cannot read constants of the CPU from `.ptd` files",
            why=f"the program needs {', '.join(dict.fromkeys(missing))}, and the .pte does not have them",
            fix="export the model with its constants in the .pte: only weights and commands can be elsewhere",
        )


def _find_accelerator(program: Pte, plan: Plan, board: Board) -> Accelerator | None:
    """Return the NPU that a method was compiled for, after checking that the board exists with it."""
    found: dict[str, Accelerator] = {}
    for delegate in plan.delegates:
        if delegate.id != BACKEND:
            raise Invalid(f"the firmware has no backend `{delegate.id}`", fix="compile the model for an Ethos-U")
        parts = ethosu_blob.unpack(delegate.blob, named=program.named_data)
        accelerator = parse(parts.cmd_data).accelerator
        found[accelerator.name] = accelerator
    for name in found:
        if name not in board.npu.accelerators:
            suited = "".join(f"use the board `{one}`, or " for one in list_suited(name)[:1])
            raise Invalid(
                f"the program is for `{name}`, which {board.title} does not have",
                why=f"it exists with {', '.join(f'`{known}`' for known in board.npu.accelerators)}",
                fix=f"{suited}compile the model for one of these",
            )
    return next(iter(found.values()), None)


def _choose_kernels(plan: Plan, operators: Iterable[str] | None) -> tuple[KernelSource, ...]:
    needed = sorted({str(operator) for operator in plan.operators})
    if operators is None:
        return select_kernels(needed)
    given = set(operators)
    missing = [operator for operator in needed if operator not in given]
    if missing:
        raise Invalid(
            f"the list of operators lacks {', '.join(f'`{operator}`' for operator in missing)}",
            why=f"method `{plan.name}` calls them",
            fix="add them to the list, or leave it out: then the build includes what the method calls",
        )
    return select_kernels(given)


def _choose_mode(
    board: Board,
    accelerator: Accelerator | None,
    plan: Plan,
    wanted: str | None,
    parts: dict[str, int],
    pools: Pools,
) -> tuple[str, str, tuple[Usage, ...]]:
    """Return the memory mode, the reason if it is not the program's, and what the memories hold."""
    modes = list_modes(board, accelerator)
    if wanted is not None and wanted not in modes:
        npu = f" with an {accelerator.name}" if accelerator is not None else ""
        raise Invalid(f"{board.title}{npu} has no memory mode `{wanted}`", fix=f"use one of {', '.join(modes)}")
    own = "Shared_Sram"
    if accelerator is not None:
        own = find_mode(accelerator.name, plan.delegates[0].compile_specs)
    usages = {mode: place(board, mode, parts, pools) for mode in modes}
    fitting = [mode for mode in modes if not find_overfull(usages[mode])]
    first = own if wanted is None else wanted
    if first in fitting:
        return first, "", usages[first]
    if wanted is None and fitting:
        mode = next((known for known in ("Shared_Sram", "Dedicated_Sram") if known in fitting), fitting[0])
        reason = _describe(find_overfull(usages[first])) if first in usages else "the board does not have it"
        return mode, f"the program is for {first}, which does not fit: {reason}", usages[mode]
    tried = usages[first if first in usages else modes[0]]
    raise Invalid(
        f"the program does not fit on {board.title} in memory mode {first}",
        why=_describe(find_overfull(tried)),
        fix=f"use memory mode {fitting[0]}" if fitting else "use a smaller model, or a board with more memory",
    )


def _describe(usages: Sequence[Usage]) -> str:
    return "; ".join(map(str, usages))


def _check_overflow(log: str, board: Board) -> None:
    """Raise Invalid if the linker found that code or variables do not fit."""
    beyond: dict[str, int] = {}
    sizes = {area.name: area.size for area in board.areas}
    for area, size in _OVERFLOW.findall(log):
        beyond[area] = max(int(size), beyond.get(area, 0))
    if beyond:
        rows = (
            f"{area}: {sizes.get(area, 0) + more:,} of {sizes.get(area, 0):,} bytes" for area, more in beyond.items()
        )
        raise Invalid(
            f"code and variables of the firmware do not fit on {board.title}",
            why="; ".join(rows),
            fix="place them in a larger memory, in the `board.ld` of the board, or call fewer operators",
        )


def _compile(files: Mapping[str, bytes], name: str) -> bytes:
    toolchain = find_toolchain(name)
    with tempfile.TemporaryDirectory(prefix="tosaic-") as temporary:
        folder = Path(temporary)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        (folder / _LIBRARY).write_bytes(_make_library(files, toolchain, folder))
        toolchain.link(folder, [*GENERATED, _LIBRARY], HEADERS, _OUTPUT)
        return (folder / _OUTPUT).read_bytes()


def _make_library(files: Mapping[str, bytes], toolchain: Toolchain, folder: Path) -> bytes:
    """Return all code that does not depend on the model as one object file, which is kept for the next build."""
    sources = sorted(path for path in files if path.endswith(".c") and path not in GENERATED)
    headers = sorted(path for path in files if path.endswith(".h"))
    content = [part for path in (*sources, *headers) for part in (path, files[path])]
    key = make_key([toolchain.name, toolchain.version, *toolchain.flags, *content])
    kept = find_cache_folder() / "board" / f"{key}.o"
    if kept.is_file():
        return kept.read_bytes()
    toolchain.merge(folder, sources, HEADERS, _LIBRARY)
    library = (folder / _LIBRARY).read_bytes()
    with suppress(OSError):
        # Without a folder to keep it in, the next build takes a second longer.
        _keep(library, kept)
    return library


def _keep(library: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in sorted(path.parent.glob("*.o"), key=lambda kept: kept.stat().st_mtime)[:-_MOST_KEPT]:
        old.unlink(missing_ok=True)
    # Another process may write the same file.
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(library)
    Path(file.name).replace(path)
