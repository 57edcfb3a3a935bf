"""The table of element types: no two rows collide, and sizes are those of numpy's types."""

import numpy as np

from tosaic.core.dtypes import BY_SCALAR_TYPE, BY_VK_FORMAT, DTYPES, count_item_bytes


def test_numbers_are_unique() -> None:
    assert len(BY_SCALAR_TYPE) == len(DTYPES)
    assert len(BY_VK_FORMAT) == sum(row.vk_format is not None for row in DTYPES.values())


def test_arrays_have_the_size_of_their_type() -> None:
    for row in DTYPES.values():
        assert row.numpy is None or np.dtype(row.numpy).itemsize == row.bytes


def test_what_c_can_hold_can_be_computed() -> None:
    for row in DTYPES.values():
        assert row.numpy is not None or not row.c_type
        assert row.c_type or not row.c_name


def test_bytes_of_a_type_that_is_not_known() -> None:
    assert (count_item_bytes("int16"), count_item_bytes("format 7")) == (2, 0)
