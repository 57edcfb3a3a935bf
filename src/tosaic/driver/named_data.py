"""Parts of delegates outside the .pte, in the form in which exir writes them into .ptd files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tosaic.backends.protocol import Artifact
from tosaic.core.exir_compat import NamedDataStore, NamedDataStoreOutput
from tosaic.formats.blob import ALIGNMENT


def store_external(artifact: Artifact) -> NamedDataStoreOutput | None:
    """Store the payloads of a delegate by their keys, each in the file of its placement; None if it has none."""
    if not artifact.external:
        return None
    store = NamedDataStore()
    for payload in artifact.external:
        store.add_named_data(payload.key, payload.data, alignment=ALIGNMENT, external_tag=payload.placement)
    return store.get_named_data_store_output()


def list_data_files(program: Any) -> dict[str, bytes]:
    """List the .ptd files of exir's finished program by placement, always in the same order."""
    # exir only writes them to a folder, under names that it derives.
    found: Mapping[str, Any] = program._tensor_data or {}
    return {tag: bytes(found[tag]) for tag in sorted(found)}
