"""What fills a memory that is too small: the tensors and weights of a program, with the layers that need them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tosaic.report.profile import MemoryPlan, Profile

#: Vela's name for the SRAM
_SRAM = "Sram"


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a layer needs in a memory: the tensors it computes at the peak, or its weights."""

    layer: str
    what: str
    bytes: int


def list_peak_tensors(profile: Profile) -> list[Held]:
    """List the tensors in SRAM at the time when a memory plan needs most of it, the largest first."""
    uses = [(size, time, plan) for plan in profile.plans for time, size in plan.measure(_SRAM)]
    if not uses:
        return []
    _, time, plan = max(uses, key=lambda use: use[0])
    return sorted(_list_tensors(profile, plan, time), key=lambda one: -one.bytes)


def _list_tensors(profile: Profile, plan: MemoryPlan, time: int) -> list[Held]:
    found: list[Held] = []
    for buffer in plan.buffers:
        if buffer.memory == _SRAM and buffer.first <= time <= buffer.last:
            layer = plan.find_layer(buffer)
            what = "weights" if buffer.holds_weights else f"tensor `{buffer.name}`"
            found.append(Held("" if layer is None else profile.layers[layer].name, what, buffer.size))
    return found


def list_weights(profile: Profile) -> list[Held]:
    """List the layers by the bytes of their stored weights, the largest first."""
    total: Counter[str] = Counter()
    for layer in profile.layers:
        total[layer.name] += layer.weight_bytes
    return [Held(layer, "weights", size) for layer, size in total.most_common() if size]
