"""The report of a compile as plain data. The schema is versioned: a field never changes its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tosaic.core.tensor_info import TensorInfo
from tosaic.npu.perf import Estimate

if TYPE_CHECKING:
    from tosaic.driver.reason import Reason

SCHEMA = "tosaic-report/2"


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
    model: str = ""
    #: the files that were written, with their size in bytes
    files: Mapping[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        """Return the report under its schema name, ready for json.dumps."""
        return {"schema": SCHEMA, **asdict(self)}
