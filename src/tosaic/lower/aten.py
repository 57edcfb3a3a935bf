"""Decomposition of an operator into simpler ATen operators: one function of the record, run by two interpreters.

Before calibration, `quantization.prepare.GraphAten` inserts the operators into an fx graph, so that the ranges between
them are observed. In a float model, `lower.steps.LoweringAten` lowers each of them to TOSA at once.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from tosaic.ir.graph import Array

T = TypeVar("T")


class Aten(Protocol[T]):
    """Argument of a `decompose` function: ATen operators by name, on values of type T."""

    def __call__(self, name: str, /, *args: Any, **kwargs: Any) -> T:
        """Call an operator, such as `aten("add.Tensor", x, y)`."""
        ...

    def constant(self, array: Array, /) -> T:
        """Make a constant of float32 or int32."""
        ...

    def shape(self, value: T, /) -> tuple[int, ...]:
        """Return the shape of a value."""
        ...

    def data(self, value: T, /) -> Array | None:
        """Return the numbers of a constant; None for any other value."""
        ...

    def is_bool(self, value: T, /) -> bool:
        """Tell whether a value is boolean."""
        ...

    def as_indices(self, value: T, /) -> T:
        """Return indices as int32, the only type that targets take for them; torch's are int64."""
        ...

    def as_numbers(self, value: T, /) -> T:
        """Return indices in a type that the target can move and compare: int32, or float32 in a float profile."""
        ...
