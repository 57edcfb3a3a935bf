"""Writes results so that an existing file is only replaced by a complete new one."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tosaic.core.errors import Invalid

_MOST_LINKS = 40
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write all of these files, or leave all unchanged if one cannot be written.

    Only regular files are overwritten. A symlink stays, and its target is written.
    """
    targets = {path: find_target(path) for path in files}
    if len(set(targets.values())) < len(targets):
        raise Invalid(f"two results have the same name: {', '.join(f'`{path}`' for path in targets)}")
    waiting: dict[Path, Path] = {}
    replaced: dict[Path, Path | None] = {}
    path = Path()
    try:
        for path, data in files.items():
            target = targets[path]
            target.parent.mkdir(parents=True, exist_ok=True)
            # Other threads and processes may write the same file at the same time.
            waiting[target] = _name_beside(target)
            _write(waiting[target], data, target)
        for path in files:
            target = targets[path]
            replaced[target] = _back_up(target)
            waiting[target].replace(target)
    except OSError as error:
        for target, backup in replaced.items():
            with suppress(OSError):
                target.unlink() if backup is None else backup.replace(target)
        raise Invalid(
            f"cannot write `{path}`",
            why=error.strerror or str(error),
            fix="nothing was replaced: free some space, or write somewhere else",
        ) from error
    finally:
        for temporary in (*waiting.values(), *filter(None, replaced.values())):
            with suppress(OSError):
                temporary.unlink()


def _name_beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:200]}.{os.urandom(8).hex()}.tmp")


def _back_up(target: Path) -> Path | None:
    """Keep a file that is about to be replaced under a second name; None if there is none."""
    if not target.exists():
        return None
    backup = _name_beside(target)
    try:
        backup.hardlink_to(target)
    except OSError:
        # Some file systems have no hard links.
        shutil.copy2(target, backup)
    return backup


def find_target(path: Path) -> Path:
    """Find the regular file for a result of this name; raise Invalid if something else is there."""
    target, is_open_file = path, False
    try:
        for _ in range(_MOST_LINKS):
            if not target.is_symlink():
                break
            # Links in /proc lead to open files: replacing one would not change the open file.
            is_open_file |= Path("/proc") in target.parents
            target = target.parent / target.readlink()
        target = target.parent.resolve() / target.name
        folder = next(parent for parent in target.parents if parent.exists())
        mode = target.stat().st_mode if target.exists() else stat.S_IFREG
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else ""
        raise Invalid(f"cannot write `{path}`", why=why or str(error)) from error
    if not folder.is_dir():
        raise Invalid(
            f"cannot write `{path}`", why=f"`{folder}` is not a folder", fix="pass the name of a regular file"
        )
    kind = next((name for matches, name in _KINDS if matches(mode)), "an open file" if is_open_file else "")
    if kind or not stat.S_ISREG(mode):
        raise Invalid(
            f"cannot write `{path}`",
            why=f"it is {kind or 'not a regular file'}; only regular files are overwritten",
            fix="pass the name of a regular file",
        )
    return target


def check_writable(path: Path) -> Path:
    """Find the regular file for a result of this name; raise Invalid if its folder takes no files."""
    import tempfile

    target = find_target(path)
    folder = next(parent for parent in target.parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            return target
    except OSError as error:
        raise Invalid(
            f"cannot write `{path}`",
            why=f"`{folder}` takes no files: {error.strerror or error}",
            fix="pass the name of a file in another folder",
        ) from error


def _write(temporary: Path, data: bytes, target: Path) -> None:
    """Write a new file with the mode and owner of the one it will replace."""
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        file.write(data)
        with suppress(FileNotFoundError):
            status = target.stat()
            # Changing the owner of a file may not be permitted.
            with suppress(PermissionError):
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
