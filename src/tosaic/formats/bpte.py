"""Reads untrusted .bpte files, programs bundled with test cases: returns a Bundle, or raises Invalid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tosaic.core.budget import Budget
from tosaic.core.dtypes import BY_SCALAR_TYPE
from tosaic.core.errors import Invalid
from tosaic.formats.flatbuffer import Buffer
from tosaic.formats.npy import Array
from tosaic.formats.pte_schema import Row

IDENTIFIER = b"BP08"
#: More dimensions than any program has; a product of thousands of sizes would take minutes.
_MAX_RANK = 16


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of a method, and the outputs that are expected for them."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Suite:
    """The test cases of one method."""

    method: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A .pte file with test cases for its methods."""

    program: bytes
    suites: tuple[Suite, ...]

    def find(self, method: str) -> tuple[Case, ...]:
        """Return the test cases of a method."""
        return next((suite.cases for suite in self.suites if suite.method == method), ())


class _BundleBuffer(Buffer):
    def fail(self, what: str, at: int) -> Invalid:
        return Invalid(f"the .bpte file is damaged: {what} at offset {at}")


def detect(data: bytes | bytearray) -> bool:
    """Tell whether these are the bytes of a .bpte file."""
    return data[4:8] == IDENTIFIER


def read(data: bytes, *, max_memory: int | None = None) -> Bundle:
    """Read the program and the test cases in a .bpte file and check every offset and size."""
    if not detect(data):
        raise Invalid("not a .bpte file: the identifier BP08 is missing at offset 4", why=f"it has {data[4:8]!r} there")
    budget = Budget(len(data), max_memory)
    buffer = _BundleBuffer(data, budget)
    buffer.need(0, 8, "the header")
    root = Row(buffer, buffer.follow(0, "the root"), "BundledProgram", "BundledProgram")
    start, size = root.get_bytes("program")
    budget.take(size, "the program in the .bpte file")
    suites = tuple(_read_suite(row, budget) for row in root.get_rows("method_test_suites", "BundledMethodTestSuite"))
    names = [suite.method for suite in suites]
    if len(set(names)) != len(names):
        raise root.fail("has two test suites of the same method")
    return Bundle(data[start : start + size], suites)


def _read_suite(row: Row, budget: Budget) -> Suite:
    cases = row.get_rows("test_cases", "BundledMethodTestCase")
    return Suite(row.get_text("method_name"), tuple(_read_case(case, budget) for case in cases))


def _read_case(row: Row, budget: Budget) -> Case:
    sides = (row.get_rows(side, "BundledValue") for side in ("inputs", "expected_outputs"))
    return Case(*(tuple(_read_value(value, budget) for value in values) for values in sides))


def _read_value(row: Row, budget: Budget) -> Array:
    member = row.get_union("val", "BundledValues")
    # No member of this union is without fields.
    assert member is not None
    match member.kind:
        case "Int":
            return np.asarray(member.get_int("int_val", "<q"))
        case "Bool":
            return np.asarray(bool(member.get_int("bool_val", "<B")))
        case "Double":
            return np.asarray(member.get_float("double_val"))
        case _:
            return _read_tensor(member, budget)


def _read_tensor(row: Row, budget: Budget) -> Array:
    shape, code = row.get_numbers("sizes", "i"), row.get_int("scalar_type", "<b")
    order = row.get_numbers("dim_order", "B") or tuple(range(len(shape)))
    element = BY_SCALAR_TYPE.get(code)
    if element is None or element.numpy is None:
        raise row.fail(f"has type {code}, which cannot be compared")
    if len(shape) > _MAX_RANK or min(shape, default=0) < 0 or sorted(order) != list(range(len(shape))):
        raise row.fail(f"has {len(shape)} sizes and a dim order of {len(order)}, which are not valid")
    start, size = row.get_bytes("data")
    if size != math.prod(shape) * element.bytes:
        raise row.fail(f"has {size} bytes of data, its shape needs {math.prod(shape) * element.bytes}")
    budget.take(size, "a tensor in the .bpte file")
    flat: Array = np.frombuffer(row.buffer.data, np.dtype(element.numpy), math.prod(shape), start)
    back = [order.index(dim) for dim in range(len(shape))]
    return np.ascontiguousarray(flat.reshape([shape[dim] for dim in order]).transpose(back))
