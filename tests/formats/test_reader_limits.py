"""Files whose tables ask for far more memory or time than their size: refused before anything is made of them."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import pytest

from support.hostile_tables import make_blob, make_tosa, make_vgf, share_table
from tosaic.core.errors import Invalid
from tosaic.formats import blob, pte, vgf
from tosaic.formats import tosa_reader as tosa
from tosaic.formats.flatbuffer import Buffer
from tosaic.formats.pte_schema import FIELDS

MILLION = 1 << 20


def refuse(read: Callable[[], object]) -> str:
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(Invalid) as caught:
        read()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert time.process_time() - begin < 1
    return str(caught.value)


def test_pte_with_one_table_a_million_times() -> None:
    segments = FIELDS["Program"].index("segments")
    assert pte.read(share_table(b"ET12", segments, 9)).segments == (pte.Segment(0, 0),) * 9
    data = share_table(b"ET12", segments, 2 * MILLION)
    assert "bytes of memory" in refuse(lambda: pte.read(data))
    assert "bytes of memory" in refuse(lambda: pte.read(share_table(b"ET12", segments, 9999), max_memory=MILLION))


def test_tosa_with_one_table_a_million_times() -> None:
    root = Buffer(share_table(b"TOSA", 1, 3 * MILLION)).root()
    assert "bytes of memory" in refuse(lambda: root.get_tables(1, "region"))


def test_tosa_tensor_of_too_many_dimensions() -> None:
    assert tosa.read(make_tosa(6)).inputs[0].shape == (2,) * 6
    assert "33 dimensions" in refuse(lambda: tosa.read(make_tosa(33)))


def test_vgf_tensor_of_too_many_dimensions() -> None:
    """The product of so many sizes takes minutes, and is too long to print."""
    assert vgf.read(make_vgf(4, 0)).resources[0].shape == (0, 0, 0, 0)
    assert "9999 dimensions" in refuse(lambda: vgf.read(make_vgf(9999, (1 << 62) + 1)))


def test_blob_with_a_count_that_it_does_not_hold() -> None:
    data = make_blob(MILLION)
    assert "its count is 1048576" in refuse(lambda: blob.unpack(data))
