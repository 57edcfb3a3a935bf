"""Writes results so that an older good file is only replaced by a complete new one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write all of these files, or leave all as they were if one cannot be written."""
    waiting = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in files}
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting[path].write_bytes(data)
        for path, temporary in waiting.items():
            temporary.replace(path)
    finally:
        for temporary in waiting.values():
            with suppress(OSError):
                temporary.unlink()
