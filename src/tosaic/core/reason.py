"""Why a node is on the CPU, as the API, the reports and the .tosaic file have it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a node is not on the NPU.

    where, module, layer  the line it comes from, the path of its nn.Module, and the class of that
    is_io                 marks the quantize and dequantize around a delegate
    cause                 the node that this one follows to the CPU; empty if the reason is its own
    """

    node: str = ""
    op: str = ""
    why: str = ""
    fix: str = ""
    where: str = ""
    module: str = ""
    layer: str = ""
    is_io: bool = False
    cause: str = ""
