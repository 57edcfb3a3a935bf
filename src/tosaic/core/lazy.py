"""Public names that import their home module at first use, so that `import tosaic` stays free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tosaic.core.quiet import import_quietly


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module `__getattr__` for the names in `homes` (name -> module)."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        return getattr(import_quietly(homes[name]), name)

    return get
