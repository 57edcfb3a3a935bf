"""Errors that end a simulation: each gives the byte offset in the command stream."""

from __future__ import annotations

from tosaic.core.errors import Invalid


class Fault(Invalid):
    """A command stream that cannot be decoded or executed. `offset` counts bytes from its first command."""

    def __init__(self, what: str, *, offset: int | None = None, why: str = "", fix: str = "") -> None:
        self.offset = offset
        where = "" if offset is None else f"command at offset 0x{offset:06x}"
        super().__init__(what, where=where, why=why, fix=fix)


class Malformed(Fault):
    """A damaged container or command."""


class DamagedWeights(Malformed):
    """A weight stream that cannot be decoded."""


class UnknownField(Fault):
    """A field value whose effect is not known: the simulator never guesses."""

    def __init__(self, field: str, value: int | str, *, offset: int | None = None, why: str = "") -> None:
        self.field, self.value = field, value
        super().__init__(f"the effect of `{field}` = {value} is not known", offset=offset, why=why)


class OutOfRange(Fault):
    """An access that ends outside its region."""

    def __init__(self, region: str, address: int, size: int, limit: int, *, offset: int | None = None) -> None:
        self.region, self.address, self.size = region, address, size
        super().__init__(
            f"{size} bytes from address {address} are outside {region}", offset=offset, why=f"it has {limit} bytes"
        )


class Uninitialized(Fault):
    """A read of memory that was never written."""

    def __init__(self, region: str, address: int, count: int, *, offset: int | None = None) -> None:
        self.region, self.address, self.count = region, address, count
        super().__init__(f"{count} bytes of {region} are read but were never written", offset=offset)
        self.why = f"the first of them is at address {address}"


class Hazard(Fault):
    """An access to memory that an earlier command may still be using."""

    def __init__(self, what: str, *, offset: int, earlier: int, missing: str) -> None:
        self.earlier = earlier
        super().__init__(what, offset=offset, why=f"nothing waits for the command at offset 0x{earlier:06x}")
        self.fix = f"a {missing} is missing between the two"


class TooMuch(Fault):
    """A stream that needs more work or memory than the limits allow."""
