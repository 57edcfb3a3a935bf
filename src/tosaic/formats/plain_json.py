"""Reads untrusted JSON: the memory of its objects is estimated before they are made."""

from __future__ import annotations

import json
from typing import TypeAlias

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

#: The most bytes that Python needs for each of these: objects, their share of a container, and its growth.
_COSTS = {b"[": 128, b"{": 320, b",": 80, b":": 128, b'"': 40}
#: A character may take four bytes, once in the whole text and once in a value.
_BYTE_COST = 8


def estimate(text: bytes) -> int:
    """Estimate an upper bound of the memory that json.loads needs for this text."""
    return len(text) * _BYTE_COST + sum(text.count(mark) * cost for mark, cost in _COSTS.items())


def loads(data: bytes | memoryview, what: str, budget: Budget) -> Json:
    """Parse the JSON value in this text; `what` names the text in errors."""
    text = bytes(data)
    budget.take(estimate(text), f"the JSON of {what}")
    try:
        value: Json = json.loads(text.decode())
        return value
    except RecursionError:
        raise Invalid(f"{what} is not JSON", why="it is nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"{what} is not JSON", why=str(error)) from None
