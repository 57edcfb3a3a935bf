"""The memory that one untrusted file may take: counted before it is allocated."""

from __future__ import annotations

from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint

#: Bytes that a file may take beyond its own size.
DEFAULT = 1 << 30


class Budget:
    """The bytes that reading one file, and running what is in it, may still take."""

    def __init__(self, file_size: int, max_memory: int | None = None) -> None:
        self.limit = file_size + DEFAULT if max_memory is None else max_memory
        self.left = self.limit

    def take(self, size: int, what: str) -> None:
        """Count bytes that are about to be allocated for `what`; raise if they are too many."""
        if size > self.left:
            raise Invalid(
                f"{what} needs {size:,} bytes of memory, but only {self.left:,} are left",
                why=f"the limit for this file is {self.limit:,} bytes",
                fix=Hint(
                    "if you trust the file, allow more with `max_memory`",
                    "if you trust the file, allow more with `--max-memory`",
                ),
            )
        self.left -= size

    def give_back(self, size: int) -> None:
        """Count bytes that are free again."""
        self.left += size
