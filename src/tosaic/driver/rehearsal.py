"""Runs a small delegate before it is accepted: its commands have to compute what its TOSA graph says.

Vela 5.2 miscompiles some combinations of operators. `passes/separate_vela_pairs.py` avoids those that are known; this
finds others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tosaic.backends.protocol import Artifact
from tosaic.core.errors import ToolFailed
from tosaic.engines import reference
from tosaic.formats.tosa_writer import read
from tosaic.ir.graph import NUMPY, RANGES, Array, DType, Type
from tosaic.npu import Fault
from tosaic.tools.cache import CompileCache, make_key

#: Ranges for numbers of 32 bits, which may be positions, or factors whose product is out of range: the commands have
#: to be right for one of them.
_WIDE = ((-100, 100), (0, 1))

#: What was found for the .tosa and the blob of a delegate.
FOUND: CompileCache[str] = CompileCache(len)


def find_fault(tosa: bytes, artifact: Artifact) -> str:
    """Find what is wrong with the commands of a delegate; empty if nothing is, or if it is too large to be run."""
    if not artifact.is_simulated:
        return ""
    key = make_key((tosa, artifact.blob))
    found = FOUND.get(key)
    if found is None:
        found = _rehearse(tosa, artifact)
        FOUND.put(key, found)
    return found


def _rehearse(tosa: bytes, artifact: Artifact) -> str:
    types = [value.type for value in read(tosa).inputs]
    fault = ""
    for wide in _WIDE if any(type.dtype is DType.I32 for type in types) else _WIDE[:1]:
        inputs = _draw(types, wide)
        try:
            wanted = reference.run(tosa, inputs)
        except reference.Undefined:
            # The simulator would find a fault, such as an index out of range.
            continue
        except ToolFailed:
            # A failure of the judge says nothing about the commands.
            return ""
        try:
            fault = _compare(artifact.simulate(inputs), wanted)
        except Fault as error:
            fault = f"its commands end in a fault: {error.what}"
        if not fault:
            return ""
    return fault


def _draw(types: Sequence[Type], wide: tuple[int, int]) -> list[Array]:
    """Draw the same numbers each time."""
    rng = np.random.default_rng(0)
    arrays: list[Array] = []
    for type in types:
        low, high = wide if type.dtype is DType.I32 else (0, 1) if type.dtype is DType.BOOL else RANGES[type.dtype]
        arrays.append(rng.integers(low, high + 1, type.shape).astype(NUMPY[type.dtype]))
    return arrays


def _compare(got: Sequence[Array], wanted: Sequence[Array]) -> str:
    if len(got) != len(wanted):
        return f"it has {len(got)} of {len(wanted)} outputs"
    wrong = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a.tobytes() != b.tobytes()]
    return f"output {wrong[0]} is not what its TOSA graph computes" if wrong else ""
