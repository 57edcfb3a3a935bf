"""What `verify` and reports need of a finished delegate, kept in this process for `tosaic.write_sidecar`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tosaic.backends.registry import find_backend
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.driver.delegate import Delegate
from tosaic.formats.sidecar import DelegateFiles
from tosaic.tools.cache import CompileCache


@dataclass(frozen=True, slots=True)
class Kept:
    """The files of a delegate, and what it was compiled for."""

    files: DelegateFiles
    target: str
    options: Mapping[str, str]


#: The delegates that the ExecuTorch API has compiled, by the sha256 of the blob; the oldest are dropped.
_KEPT: CompileCache[Kept] = CompileCache(lambda kept: len(kept.files.tosa) + len(kept.files.debug_db))


def keep(delegate: Delegate, spec: ArmCompileSpec) -> None:
    """Keep the files of a delegate whose .pte ExecuTorch will write."""
    options = find_backend(spec).describe_options(spec)
    _KEPT.put(_key(delegate.blob), Kept(make_files(delegate), spec.target.name, options))


def find_kept(blob: bytes) -> Kept | None:
    """Find what was kept for a blob of a .pte."""
    return _KEPT.get(_key(blob))


def make_files(delegate: Delegate) -> DelegateFiles:
    """Make the files of a delegate in a .tosaic file."""
    return DelegateFiles(
        tosa=delegate.tosa,
        origins=tuple(map(_strip_paths, delegate.origins)),
        debug_db=delegate.artifact.debug_db,
        summary=dict(delegate.artifact.summary),
    )


def _key(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _strip_paths(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Remove paths of this machine from an origin: files in the working folder or in a package keep a short path."""
    path = str(origin["where"])
    short = path.rpartition("/site-packages/")[2]
    if short == path:
        inside = Path(path).is_relative_to(Path.cwd())
        short = str(Path(path).relative_to(Path.cwd())) if inside else Path(path).name
    return {k: v for k, v in origin.items() if k != "stack_trace"} | {"where": short}
