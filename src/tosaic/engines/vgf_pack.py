"""Wraps a .vgf file in a program that the runtime can load."""

from __future__ import annotations

import warnings

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule

from tosaic.formats import vgf as reader
from tosaic.fx.stub import stub
from tosaic.fx.torch_compat import FakeTensorMode


def pack(vgf: bytes) -> bytes:
    """Make the .pte that only calls this delegate."""
    found = reader.read(vgf)
    with FakeTensorMode():
        inputs, outputs = (
            [torch.empty(kind.shape, dtype=getattr(torch, kind.dtype)) for kind in (found.resources[i] for i in side)]
            for side in (found.inputs, found.outputs)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bytes(LoweredBackendModule(stub(inputs, outputs), "VgfBackend", vgf, []).buffer())
