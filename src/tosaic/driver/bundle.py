"""Bundled programs of ExecuTorch: a .pte with inputs and the outputs that are expected for them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tosaic.core.quiet import quiet_imports


def make_bundle(pte: bytes, cases: Sequence[tuple[list[torch.Tensor], list[torch.Tensor]]]) -> bytes:
    """Return the .bpte of a program, with pairs of inputs and expected outputs for its method `forward`."""
    # Its packages print messages for their developers.
    with quiet_imports():
        from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
        from executorch.devtools.bundled_program.core import BundledProgram
        from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer

    suite: Any = MethodTestSuite("forward", [MethodTestCase(inputs, outputs) for inputs, outputs in cases])
    with tempfile.TemporaryDirectory(prefix="tosaic-") as folder:
        path = Path(folder) / "program.pte"
        path.write_bytes(pte)
        return bytes(serialize_from_bundled_program_to_flatbuffer(BundledProgram(None, [suite], str(path))))
