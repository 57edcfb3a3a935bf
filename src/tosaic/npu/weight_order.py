"""The common parts of all weight orders: parts of a kernel for blocks of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the kernel for one block of output and input channels, counted in groups."""

    first_out: int
    groups: int
    first_in: int
    in_groups: int
    y: int
    x: int
    rows: int
    columns: int

    def cut(self, volume: npt.NDArray[np.float32], inputs: int, outputs: int) -> npt.NDArray[np.float32]:
        """Return this part of [kernel rows, kernel columns, inputs, outputs], as a view; both are group sizes."""
        return volume[
            self.y : self.y + self.rows,
            self.x : self.x + self.columns,
            self.first_in : self.first_in + self.in_groups * inputs,
            self.first_out : self.first_out + self.groups * outputs,
        ]


def make_volume(taps: tuple[int, int], places: Sequence[Place], inputs: int, outputs: int) -> npt.NDArray[np.float32]:
    """Allocate zeros for [kernel rows, kernel columns, inputs, outputs], with room for the groups of all places."""
    deep = max(place.first_in + place.in_groups * inputs for place in places)
    wide = max(place.first_out + place.groups * outputs for place in places)
    return np.zeros((*taps, deep, wide), np.float32)
