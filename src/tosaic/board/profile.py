"""Memory profiles of boards: what a program must fit into. They come with sources, and users add theirs as TOML."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from tosaic.core import input_file
from tosaic.core.errors import Invalid
from tosaic.core.targets import ACCELERATORS

_PROFILES = Path(__file__).parent / "profiles"
_MAX_BYTES = 1 << 16
_MOST = 1 << 50
_MOST_TEXT, _MOST_SOURCES = 500, 20
_REQUIRED = ("title", "accelerators", "sram")
_OPTIONAL = ("flash", "dram", "clock", "system_config", "cpu_tensors", "sources", "unconfirmed")
_MEMORIES = ("sram", "dram")


@dataclass(frozen=True, slots=True)
class Profile:
    """The memories of a board in bytes; None if a memory has no limit that matters.

    accelerators   the NPUs that it exists with
    clock          of the NPU, in Hz; 0 if the clock of the system configuration is used
    system_config  the section of Vela's configuration file that is nearest; empty for the target's default
    cpu_tensors    the memory with the tensors of the CPU: sram, or dram
    unconfirmed    what the sources do not say
    """

    name: str
    title: str
    accelerators: tuple[str, ...]
    sram: int
    flash: int | None = None
    dram: int | None = None
    clock: int = 0
    system_config: str = ""
    cpu_tensors: str = "sram"
    sources: tuple[str, ...] = ()
    unconfirmed: str = ""


def list_profiles() -> list[str]:
    """List the profiles that come with Tosaic."""
    return sorted(path.stem for path in _PROFILES.glob("*.toml"))


def find_profile(name: str) -> Profile:
    """Return the profile of that name, or in a .toml file."""
    if name in list_profiles():
        return read_profile(_PROFILES / f"{name}.toml")
    if name.endswith(".toml"):
        return read_profile(Path(name))
    near = difflib.get_close_matches(name, list_profiles(), n=2, cutoff=0.4) or list_profiles()
    quoted = " or ".join(f"`{other}`" for other in near)
    raise Invalid(f"unknown board `{name}`", fix=f"did you mean {quoted}? A profile of yours is a .toml file")


def read_profile(path: Path) -> Profile:
    """Read an untrusted profile."""
    import tomllib

    try:
        table = tomllib.loads(bytes(input_file.read(path, _MAX_BYTES)[0]).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"`{path}` is not a TOML file", why=str(error)) from None
    return _Reader(path, table).read()


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


class _Reader:
    """Reads the fields of one file. Errors name the field."""

    def __init__(self, path: Path, table: Mapping[str, object]) -> None:
        self._path, self._table = path, table

    def read(self) -> Profile:
        for name in self._table:
            if name not in (*_REQUIRED, *_OPTIONAL):
                near = difflib.get_close_matches(name, (*_REQUIRED, *_OPTIONAL), n=1)
                raise self._fail(name, "it is unknown", f"did you mean `{near[0]}`?" if near else "remove it")
        for name in _REQUIRED:
            if name not in self._table:
                raise self._fail(name, "it is missing", "docs/fit.md has an example")
        memory = self._get_text("cpu_tensors") or "sram"
        if memory not in _MEMORIES:
            raise self._fail("cpu_tensors", f"it is `{memory}`", f"use one of {', '.join(_MEMORIES)}")
        sram = self._get_size("sram")
        assert sram is not None
        return Profile(
            name=self._path.stem,
            title=self._get_text("title"),
            accelerators=self._read_accelerators(),
            sram=sram,
            flash=self._get_size("flash"),
            dram=self._get_size("dram"),
            clock=self._get_size("clock") or 0,
            system_config=self._read_system(),
            cpu_tensors=memory,
            sources=self._get_texts("sources"),
            unconfirmed=self._get_text("unconfirmed"),
        )

    def _read_accelerators(self) -> tuple[str, ...]:
        names = self._get_texts("accelerators")
        unknown = [name for name in names if name not in ACCELERATORS]
        if unknown or not names:
            why = f"`{unknown[0]}` is not an accelerator" if unknown else "it is empty"
            raise self._fail("accelerators", why, f"use some of {', '.join(ACCELERATORS)}")
        return names

    def _read_system(self) -> str:
        """Read the system configuration, which must be one for every accelerator."""
        from tosaic.tools.vela_options import BUNDLED_INI, VelaOptions, check_options

        name = self._get_text("system_config")
        for accelerator in self._read_accelerators() if name else ():
            target = ACCELERATORS[accelerator]
            try:
                check_options(VelaOptions(target.name, name, target.memory_mode, BUNDLED_INI).with_config())
            except Invalid as error:
                raise self._fail("system_config", str(error.what), error.fix) from None
        return name

    def _get_size(self, name: str) -> int | None:
        value = self._table.get(name)
        if value is None:
            return None
        # A boolean is an integer in Python.
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _MOST:
            raise self._fail(name, f"it is {str(value)[:40]!r}", "use a positive number, in bytes or Hz")
        return value

    def _get_text(self, name: str) -> str:
        value = self._table.get(name, "")
        if not isinstance(value, str) or len(value) > _MOST_TEXT or not value.isprintable():
            raise self._fail(name, "it is not a short text", f'write `{name} = "..."`')
        return value

    def _get_texts(self, name: str) -> tuple[str, ...]:
        value = self._table.get(name, [])
        items = value if _is_list(value) else [None]
        texts = [item for item in items if isinstance(item, str) and len(item) <= _MOST_TEXT and item.isprintable()]
        if len(texts) < len(items) or len(texts) > _MOST_SOURCES:
            raise self._fail(name, "it is not a list of short texts", f'write `{name} = ["...", "..."]`')
        return tuple(texts)

    def _fail(self, name: str, why: str, fix: str) -> Invalid:
        return Invalid(f"`{name}` of the board profile cannot be used", where=f"`{self._path}`", why=why, fix=fix)
