"""Where a firmware has its parts: the memories of the board, by the scripts of the board and of the memory mode."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tosaic.board.description import Board
from tosaic.board.pools import Pools
from tosaic.core.errors import Invalid
from tosaic.npu.accelerator import Accelerator
from tosaic.npu.registers import Family
from tosaic.npu.system import find_options

#: The memory modes and the scripts that a board has for them.
MODES = {"Sram_Only": "sram_only.ld", "Shared_Sram": "shared_sram.ld", "Dedicated_Sram": "dedicated_sram.ld"}
STACK = 0x2000
#: The scripts begin each part at a multiple of this.
_PAGE = 1024
_ALIAS = re.compile(r'REGION_ALIAS\("(\w+)", *(\w+)\)')
#: The region of each pool in the scripts.
_REGIONS = {
    "method": "METHOD",
    "planned": "PLANNED",
    "scratch": "SCRATCH",
    "fast_scratch": "FAST_SCRATCH",
    "interface": "PLANNED",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What a memory holds: its size, and the parts with theirs. Each part takes whole pages."""

    area: str
    size: int
    parts: Mapping[str, int]

    @property
    def used(self) -> int:
        return sum(-(-size // _PAGE) * _PAGE for size in self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.parts.items())
        return f"{self.area}: {self.used:,} of {self.size:,} bytes ({parts})"


def find_mode(accelerator: str, specs: Sequence[tuple[str, bytes]]) -> str:
    """Return the memory mode that a delegate was compiled for."""
    mode = find_options(accelerator, specs).memory_mode
    return next((known for known in MODES if mode.startswith(known)), "Shared_Sram")


def list_modes(board: Board, accelerator: Accelerator | None) -> list[str]:
    """List the memory modes that a board has for an accelerator."""
    return [
        mode
        for mode, script in MODES.items()
        if (board.folder / script).is_file()
        and not (mode == "Dedicated_Sram" and accelerator is not None and accelerator.family is Family.U55)
    ]


def place(board: Board, mode: str, parts: Mapping[str, int], pools: Pools) -> tuple[Usage, ...]:
    """Return what each memory holds. `parts` are sizes by region: the model, samples, and code where it is known."""
    aliases = _read_all_aliases(board, mode)
    content: dict[str, dict[str, int]] = {area.name: {} for area in board.areas}
    rows = [(region.lower(), region, size) for region, size in parts.items()]
    rows += [(name, _REGIONS[name], size) for name, size in pools.list_sizes().items()]
    if is_copied(board, mode):
        rows.append(("model before its copy", "MODEL_LOAD", parts["MODEL"]))
    for name, region, size in rows:
        area = aliases.get(region, "")
        if area not in content:
            raise Invalid(f"board `{board.name}` has no memory for {region}", where=str(board.folder / "board.ld"))
        if size:
            content[area][name] = size
    return tuple(Usage(area.name, area.size, content[area.name]) for area in board.areas)


def find_overfull(usages: Sequence[Usage]) -> list[Usage]:
    """Return the memories that hold more than they can."""
    return [usage for usage in usages if usage.used > usage.size]


def is_copied(board: Board, mode: str) -> bool:
    """Tell whether the firmware copies the model to another memory after reset."""
    aliases = _read_all_aliases(board, mode)
    return aliases.get("MODEL_LOAD") != aliases.get("MODEL")


def _read_all_aliases(board: Board, mode: str) -> dict[str, str]:
    return _read_aliases(board.folder / "board.ld") | _read_aliases(board.folder / MODES[mode])


def _read_aliases(path: Path) -> dict[str, str]:
    try:
        return dict(_ALIAS.findall(path.read_text("utf-8")))
    except OSError as error:
        raise Invalid(f"the board has no `{path.name}`", where=str(path.parent), why=error.strerror or "") from None


def make_script(board: Board, pools: Pools) -> str:
    """Write `memory.ld`: the memories of the board, and the sizes of stack and pools."""
    lines = ["/* The memories of board.toml, and the sizes that the model needs. Generated. */", "MEMORY", "{"]
    lines += [f"    {area.name} : ORIGIN = 0x{area.base:08x}, LENGTH = 0x{area.size:x}" for area in board.areas]
    lines += ["}", f"stack_size = 0x{STACK:x};"]
    lines += [f"{name}_pool_size = {size};" for name, size in pools.list_sizes().items()]
    return "\n".join([*lines, ""])
