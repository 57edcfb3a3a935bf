"""All backends, by their name in the runtime."""

from __future__ import annotations

from tosaic.backends.ethosu import EthosUCompiler
from tosaic.backends.protocol import Backend
from tosaic.backends.tosa import TosaCompiler
from tosaic.backends.vgf import VgfCompiler
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid
from tosaic.core.targets import Target

_ALL: tuple[Backend, ...] = (
    EthosUCompiler(),
    VgfCompiler(),
    TosaCompiler(),
)
BACKENDS: dict[str, Backend] = {backend.id: backend for backend in _ALL}


def find_backend(spec: ArmCompileSpec) -> Backend:
    """Find the backend that a compile spec is for."""
    for backend in BACKENDS.values():
        if isinstance(spec, backend.spec_class):
            return backend
    known = ", ".join(f"`{backend.spec_class.__name__}`" for backend in BACKENDS.values())
    raise Invalid(f"no backend takes a `{type(spec).__name__}`", fix=f"use one of {known}")


def find_backend_for(target: Target) -> Backend:
    """Find the backend that compiles for a target by default."""
    for backend in BACKENDS.values():
        if backend.accepts(target):
            return backend
    raise Invalid(f"no backend compiles for `{target.name}`")
