"""What a compile spec tells `preprocess`, apart from what is written into the .pte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.core.exir_compat import LocalSpec

if TYPE_CHECKING:
    from tosaic.core.compile_spec import ArmCompileSpec


class Dump(LocalSpec):
    """Paths on this machine, which `preprocess` needs and which are never written into the .pte."""

    folder: str | None = None
    config_ini: str = ""
    mode: ArmCompileSpec.DebugMode | None = None
