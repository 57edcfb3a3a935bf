"""Folders that Tosaic keeps between runs."""

from __future__ import annotations

import os
from pathlib import Path

#: The environment variable that names another cache folder.
CACHE_VARIABLE = "TOSAIC_CACHE"


def find_cache_folder() -> Path:
    """Return the cache folder: `TOSAIC_CACHE`, else `tosaic` in `XDG_CACHE_HOME`, else `~/.cache/tosaic`."""
    chosen = os.environ.get(CACHE_VARIABLE, "")
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(chosen) if chosen else (Path(base) if base else Path.home() / ".cache") / "tosaic"
    # Tools get paths in it, and run in other folders.
    return folder.absolute()
