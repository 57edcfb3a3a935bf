from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

class GraphStatus:
    TOSA_VALID: ClassVar[GraphStatus]
    TOSA_UNPREDICTABLE: ClassVar[GraphStatus]
    TOSA_ERROR: ClassVar[GraphStatus]
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

def run(
    tosa_binary: str | bytes,
    inputs: Sequence[npt.NDArray[np.generic]],
    *,
    debug_filename: str | None = None,
    debug_mode: str | None = None,
    verbosity: str = "NONE",
    dump_intermediates: int = 0,
    initialize_variable_tensor_from_numpy: int = 0,
    precise_mode: int = 0,
    bounds_mode: bool = False,
    tosa_level: str = "NONE",
) -> tuple[list[npt.NDArray[np.generic]], GraphStatus]: ...
