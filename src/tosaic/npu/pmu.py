"""The counters that Arm's runner reads on a device, estimated from the commands of a delegate."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tosaic.npu.accelerator import ACCELERATORS
from tosaic.npu.perf import Estimate
from tosaic.npu.registers import Family

_U55_EVENTS = (
    "ETHOSU_PMU_AXI0_RD_DATA_BEAT_RECEIVED",
    "ETHOSU_PMU_AXI1_RD_DATA_BEAT_RECEIVED",
    "ETHOSU_PMU_AXI0_WR_DATA_BEAT_WRITTEN",
    "ETHOSU_PMU_NPU_IDLE",
)
_U85_EVENTS = (
    "ETHOSU_PMU_SRAM_RD_DATA_BEAT_RECEIVED",
    "ETHOSU_PMU_SRAM_WR_DATA_BEAT_WRITTEN",
    "ETHOSU_PMU_EXT_RD_DATA_BEAT_RECEIVED",
    "ETHOSU_PMU_EXT_WR_DATA_BEAT_WRITTEN",
    "ETHOSU_PMU_NPU_IDLE",
    "ETHOSU_PMU_MAC_ACTIVE",
    "ETHOSU_PMU_WD_ACTIVE",
)
#: The events that the runner counts, by family.
PMU_EVENTS: Mapping[Family, tuple[str, ...]] = MappingProxyType(
    {family: _U85_EVENTS if family.has_u85_units else _U55_EVENTS for family in Family}
)
#: The memory at the first port; all others are at the second.
_INNER = "Sram"


def count_events(estimate: Estimate) -> dict[str, int]:
    """Return the family's counters that the estimate covers: it has neither idle time nor weight decoding time."""
    accelerator = ACCELERATORS[estimate.accelerator]

    def count(inner: bool, direction: str) -> int:
        moved = (getattr(t, direction) for name, t in estimate.traffic.items() if (name == _INNER) == inner)
        return -(-sum(moved) // accelerator.port_bytes)

    known = {
        "AXI0_RD_DATA_BEAT_RECEIVED": count(True, "read"),
        "AXI1_RD_DATA_BEAT_RECEIVED": count(False, "read"),
        "AXI0_WR_DATA_BEAT_WRITTEN": count(True, "written"),
        "SRAM_RD_DATA_BEAT_RECEIVED": count(True, "read"),
        "SRAM_WR_DATA_BEAT_WRITTEN": count(True, "written"),
        "EXT_RD_DATA_BEAT_RECEIVED": count(False, "read"),
        "EXT_WR_DATA_BEAT_WRITTEN": count(False, "written"),
        "MAC_ACTIVE": sum(row.mac_cycles for row in estimate.rows),
    }
    names = {name: name.removeprefix("ETHOSU_PMU_") for name in PMU_EVENTS[accelerator.family]}
    return {name: known[short] for name, short in names.items() if short in known}
