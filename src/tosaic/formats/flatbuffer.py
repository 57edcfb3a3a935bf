"""Checked access to the tables of a flatbuffer: every offset is range-checked before it is followed."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid

#: Bytes that Python needs for a table or a text, and for a number.
_OBJECT, _NUMBER = 512, 40


class Buffer:
    """The bytes of an untrusted file, and a bound that stops files whose tables point at each other.

    Objects made from the tables are counted in `budget`: a vector of offsets may name one table a million times.
    """

    def __init__(self, data: bytes, budget: Budget | None = None) -> None:
        self.data = data
        self.budget = budget or Budget(len(data))
        # Each byte is visited about once in a regular file; shared tables would multiply without a bound.
        self._budget = 4 * len(data) + 4096

    def fail(self, what: str, at: int) -> Invalid:
        return Invalid(f"the .tosa file is damaged: {what} at offset {at}")

    def spend(self, amount: int, at: int) -> None:
        self._budget -= amount
        if self._budget < 0:
            raise self.fail("tables are shared far too often", at)

    def make(self, what: str, *, objects: int = 0, numbers: int = 0) -> None:
        """Count the memory of tables, texts and numbers that are about to be made."""
        self.budget.take(objects * _OBJECT + numbers * _NUMBER, what)

    def need(self, at: int, size: int, what: str) -> None:
        if at < 0 or at + size > len(self.data):
            raise self.fail(f"{what} of {size} bytes reaches outside the file of {len(self.data)} bytes", at)

    def read(self, form: str, at: int, what: str) -> int:
        self.need(at, struct.calcsize(form), what)
        return int(struct.unpack_from(form, self.data, at)[0])

    def follow(self, at: int, what: str) -> int:
        """Return the position an offset points to."""
        target = at + self.read("<I", at, what)
        self.need(target, 4, what)
        return target

    def root(self) -> Table:
        self.need(0, 8, "the header")
        if self.data[4:8] != b"TOSA":
            raise Invalid("not a .tosa file: the identifier TOSA is missing at offset 4")
        return Table(self, self.follow(0, "the root"), "the graph")


class Table:
    """One table of the file; `what` names it in errors. Fields are addressed by their slot."""

    def __init__(self, buffer: Buffer, at: int, what: str) -> None:
        self.buffer, self.at, self.what = buffer, at, what
        self._vtable = at - buffer.read("<i", at, what)
        self._slots_end = buffer.read("<H", self._vtable, what)
        self._size = buffer.read("<H", self._vtable + 2, what)
        buffer.need(self._vtable, self._slots_end, what)
        buffer.need(at, self._size, what)
        if self._slots_end < 4 or self._size < 4:
            raise buffer.fail(f"{what} has a broken field list", self._vtable)
        buffer.spend(self._size, at)

    def _find(self, slot: int, size: int) -> int | None:
        """Find the position of a field; None if the file leaves it at its default."""
        entry = 4 + 2 * slot
        offset = self.buffer.read("<H", self._vtable + entry, self.what) if entry + 2 <= self._slots_end else 0
        if offset and offset + size > self._size:
            raise self.buffer.fail(f"field {slot} of {self.what} reaches outside its table", self.at)
        return self.at + offset if offset else None

    def get(self, slot: int, form: str, default: int = 0) -> int:
        """Read a number, in `struct` notation."""
        at = self._find(slot, struct.calcsize(form))
        return default if at is None else self.buffer.read(form, at, self.what)

    def get_table(self, slot: int, what: str) -> Table | None:
        at = self._find(slot, 4)
        return None if at is None else Table(self.buffer, self.buffer.follow(at, what), what)

    def get_vector(self, slot: int, width: int, what: str) -> tuple[int, int]:
        """Return start and length of a vector whose elements have `width` bytes; an absent one is empty."""
        field = self._find(slot, 4)
        if field is None:
            return self.at, 0
        at = self.buffer.follow(field, what)
        count = self.buffer.read("<I", at, what)
        self.buffer.need(at + 4, count * width, what)
        self.buffer.spend(4 + count * width, at)
        return at + 4, count

    def get_bytes(self, slot: int, what: str) -> npt.NDArray[np.uint8]:
        start, count = self.get_vector(slot, 1, what)
        return np.frombuffer(self.buffer.data, dtype=np.uint8, count=count, offset=start)

    def get_ints(self, slot: int, what: str) -> tuple[int, ...]:
        start, count = self.get_vector(slot, 4, what)
        self.buffer.make(what, numbers=count)
        return struct.unpack_from(f"<{count}i", self.buffer.data, start)

    def get_text(self, slot: int, what: str) -> str:
        start, count = self.get_vector(slot, 1, what)
        return self._decode(start, count, what)

    def get_texts(self, slot: int, what: str) -> list[str]:
        texts: list[str] = []
        start, count = self.get_vector(slot, 4, what)
        self.buffer.make(what, objects=count)
        for i in range(count):
            at = self.buffer.follow(start + 4 * i, what)
            size = self.buffer.read("<I", at, what)
            self.buffer.need(at + 4, size, what)
            self.buffer.spend(4 + size, at)
            texts.append(self._decode(at + 4, size, what))
        return texts

    def get_tables(self, slot: int, what: str) -> list[Table]:
        start, count = self.get_vector(slot, 4, what)
        self.buffer.make(what, objects=count)
        return [Table(self.buffer, self.buffer.follow(start + 4 * i, what), f"{what} {i}") for i in range(count)]

    def _decode(self, start: int, count: int, what: str) -> str:
        # The bytes, and a text with up to four bytes per character.
        self.buffer.budget.take(5 * count, what)
        raw = self.buffer.data[start : start + count]
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.buffer.fail(f"{what} is not UTF-8 text", start) from None
        # Native tools end a text at its first NUL, so two names could look the same to them.
        if "\0" in text:
            raise self.buffer.fail(f"{what} contains a NUL", start)
        return text
