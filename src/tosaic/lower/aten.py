"""Decomposition of an operator into simpler ATen operators: one function of the record, run by three interpreters.

Before calibration, `quantization.prepare.GraphAten` inserts the operators into an fx graph, so that the ranges between
them are observed. In a float model, `lower.steps.LoweringAten` lowers each of them to TOSA at once. To explain why a
float operator is on the CPU, `driver.unquantized` runs it on shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from tosaic.ir.graph import Array

#: a tensor: an fx node, or one of a lowering
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

    def same_dtype(self, value: T, other: T, /) -> bool:
        """Tell whether two values have the same dtype."""
        ...

    def as_indices(self, value: T, /) -> T:
        """Return indices as int32, the only type that targets take for them; torch's are int64."""
        ...

    def as_numbers(self, value: T, /) -> T:
        """Return indices in a type that the target can move and compare: int32, or float32 in a float profile."""
        ...

    def made_by(self, value: T, /) -> tuple[str, tuple[Any, ...]]:
        """Return the overload whose call has made a value, and its positional arguments; "" if that is not known."""
        ...


class NarrowingAten(Aten[T], Protocol[T]):
    """Argument of a `decompose` function that narrows int64 indices: a lowering has none, so it never calls these."""

    def is_int64(self, value: T, /) -> bool:
        """Tell whether numbers are known only at run time and may need more than 32 bits."""
        ...

    def again(self, arguments: Mapping[str, object], /) -> T:
        """Call the operator that is decomposed with other arguments."""
        ...


def is_number(aten: Aten[T], operand: T | float) -> bool:
    """Tell whether an operand of a function of two is one number: then the function is a TABLE of the other one."""
    return isinstance(operand, (int, float)) or aten.shape(operand) == ()
