"""The report of a compile as plain data. The schema is versioned: a field never changes its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tosaic.core.reason import Reason
from tosaic.core.tensor_info import TensorInfo
from tosaic.npu.perf import Estimate

SCHEMA = "tosaic-report/3"
#: Vela's names of memories; all others are flash.
_MEMORIES = {"Sram": "SRAM", "Dram": "DRAM"}


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes per logical region, and the memory it is in. Several delegates share scratch, not network."""

    planned: tuple[int, ...] = ()
    network: int = 0
    network_in: str = ""
    scratch: int = 0
    scratch_in: str = ""
    fast_scratch: int = 0
    fast_scratch_in: str = ""
    commands: int = 0

    def list_uses(self, program: int) -> dict[str, dict[str, int]]:
        """List what SRAM, DRAM and flash hold, in bytes; `program` is the size of the .pte and its .ptd files.

        The records that the runtime makes of a method are not counted: they depend on the runtime.
        """
        uses: dict[str, dict[str, int]] = {"SRAM": {}, "DRAM": {}, "flash": {}}
        for what, size, memory in (
            ("scratch", self.scratch, self.scratch_in),
            ("fast scratch", self.fast_scratch, self.fast_scratch_in),
            ("tensors of the CPU", sum(self.planned), "Sram"),
            ("the program", program, self.network_in),
        ):
            if size:
                uses[_MEMORIES.get(memory, "flash")][what] = size
        return {memory: held for memory, held in uses.items() if held}


@dataclass(frozen=True, slots=True)
class DelegateReport:
    """One delegate: its share of the model, Vela's figures, and the estimate from its commands."""

    nodes: int
    tosa_ops: Mapping[str, int]
    tosa_bytes: int
    blob_bytes: int
    vela: Mapping[str, float] = field(default_factory=dict[str, float])
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything about a compiled program."""

    target: str
    options: Mapping[str, str]
    pte_bytes: int
    delegates: tuple[DelegateReport, ...]
    cpu_ops: Mapping[str, int]
    reasons: tuple[Reason, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    memory: MemoryReport
    seconds: Mapping[str, float]
    warnings: tuple[str, ...]
    #: bytes of the .ptd files
    data_bytes: int = 0
    model: str = ""
    #: the files that were written, with their size in bytes
    files: Mapping[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        """Return the report under its schema name, ready for json.dumps."""
        return {"schema": SCHEMA, "memory_uses": self.memory_uses, **asdict(self)}

    @property
    def memory_uses(self) -> dict[str, dict[str, int]]:
        """What an Ethos-U system holds in SRAM, DRAM and flash; empty for other targets."""
        return self.memory.list_uses(self.pte_bytes + self.data_bytes) if self.memory.scratch_in else {}
