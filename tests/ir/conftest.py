"""A reference model in a child process: it may crash on a bad file, and then only the child ends."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tosaic.formats.tosa_writer import serialize
from tosaic.ir.graph import Graph

Arrays = list[npt.NDArray[np.generic]]
Run = Callable[[Graph, Sequence[npt.NDArray[np.generic]]], Arrays]

# The model prints to stdout, so answers go through a copy of it made before.
_CHILD = """
import os, pickle, struct, sys
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
import tosa_reference_model
while head := sys.stdin.buffer.read(4):
    data, inputs = pickle.loads(sys.stdin.buffer.read(struct.unpack("<I", head)[0]))
    outputs, status = tosa_reference_model.run(data, inputs)
    answer = pickle.dumps((status.name, outputs))
    answers.write(struct.pack("<I", len(answer)) + answer)
    answers.flush()
"""


class _Model:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, graph: Graph, inputs: Sequence[npt.NDArray[np.generic]]) -> Arrays:
        if self._child is None or self._child.poll() is not None:
            self._child = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._child.stdin is not None and self._child.stdout is not None
        request = pickle.dumps((serialize(graph), [np.ascontiguousarray(a) for a in inputs]))
        self._child.stdin.write(struct.pack("<I", len(request)) + request)
        self._child.stdin.flush()
        head = self._child.stdout.read(4)
        assert len(head) == 4, "the reference model crashed"
        status, outputs = pickle.loads(self._child.stdout.read(struct.unpack("<I", head)[0]))
        assert status == "TOSA_VALID", status
        return list(outputs)

    def close(self) -> None:
        if self._child is not None:
            self._child.communicate()


@pytest.fixture(scope="session")
def reference() -> Iterator[Run]:
    model = _Model()
    yield model.run
    model.close()
