"""Unpacks zip files that nobody vouches for, in memory and within bounds."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Sequence

from tosaic.errors import Invalid

#: What is unpacked at most, and in how many files.
MAX_BYTES = 1 << 30
MAX_FILES = 4096
_ENCRYPTED = 1


def unpack(data: bytes, names: re.Pattern[str], what: str) -> dict[str, bytes]:
    """The files of a zip in its order, if all of them have a name that `names` knows; `what` is the zip in errors."""
    name = "the directory"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check(entries, names, what)
            files: dict[str, bytes] = {}
            for entry in entries:
                name = entry.filename
                files[name] = archive.read(entry)
            return files
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise Invalid(f"{what} is damaged", where=f"`{name}`", why=str(error)) from None


def _check(entries: Sequence[zipfile.ZipInfo], names: re.Pattern[str], what: str) -> None:
    """Nothing is unpacked before the directory as a whole is within bounds."""
    total = sum(entry.file_size for entry in entries)
    if len(entries) > MAX_FILES or total > MAX_BYTES:
        bounds = f"at most {MAX_FILES} files of {MAX_BYTES} bytes are unpacked"
        raise Invalid(f"{what} is too large", why=f"it has {len(entries)} files of {total} bytes together; {bounds}")
    seen: set[str] = set()
    for entry in entries:
        why = ""
        if not names.fullmatch(entry.filename):
            why = "no file of this name belongs here"
        elif entry.filename in seen:
            why = "there is an earlier file of this name"
        elif entry.flag_bits & _ENCRYPTED or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            why = "it is encrypted or packed in a way that is not deflate"
        if why:
            raise Invalid(f"{what} is damaged", where=f"`{entry.filename[:80]}`", why=why)
        seen.add(entry.filename)
