"""The .tosaic file of a .pte that ExecuTorch's own API has written, and one made of .tosa files from anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tosaic
from tosaic.backends.registry import BACKENDS
from tosaic.core import input_file
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.core.output import write_files
from tosaic.core.tensor_info import TensorInfo
from tosaic.driver.kept import Kept, find_kept
from tosaic.engines.interpreter import Method
from tosaic.formats import pte as pte_file
from tosaic.formats.pte import DelegateCall, Plan, Pte, Tensor
from tosaic.formats.sidecar import DelegateFiles, Sidecar, write
from tosaic.formats.tensors import TensorType, order_in_memory
from tosaic.formats.tosa_writer import read as read_tosa
from tosaic.ir.graph import NUMPY, Value

#: in place of the files of a delegate that Tosaic knows nothing about, such as one of XNNPACK
_NO_FILES = DelegateFiles(tosa=b"")
_SIDES = ("inputs", "outputs")


def write_sidecar(path: str | Path) -> Path:
    """Write the .tosaic file next to a .pte that was lowered with a partitioner of Tosaic in this process.

    `tosaic verify`, `inspect` and engine `tosa` read it. The delegates are found by the hash of their blobs, so the
    .pte may have been written by any API. The path of the .tosaic file is returned.
    """
    path = Path(path)
    data = bytes(input_file.read(path, None)[0])
    plan = pte_file.read(data).find("forward")
    kept = [_require(plan, index) if d.id in BACKENDS else None for index, d in enumerate(plan.delegates)]
    known = [one for one in kept if one is not None]
    if not known:
        raise Invalid(f"`{path.name}` has no delegate of Tosaic", fix="lower it with a partitioner of Tosaic")
    files = tuple(_NO_FILES if one is None else one.files for one in kept)
    beside = path.with_suffix(".tosaic")
    write_files({beside: write(_describe(data, plan, files, known[0]))})
    return beside


def _require(plan: Plan, index: int) -> Kept:
    kept = find_kept(plan.delegates[index].blob)
    if kept is None:
        raise Invalid(
            f"the TOSA graph of delegate {index} is unknown",
            why="this process has not compiled it, or has dropped it after many other compiles",
            fix="call `tosaic.write_sidecar` right after the .pte is saved, in the process that lowered the model",
        )
    return kept


def _describe(pte: bytes, plan: Plan, files: Sequence[DelegateFiles], kept: Kept | None) -> Sidecar:
    return Sidecar(
        pte_sha256=hashlib.sha256(pte).hexdigest(),
        tosaic_version=tosaic.__version__,
        target="" if kept is None else kept.target,
        options={} if kept is None else dict(kept.options),
        inputs=list_tensors(plan, plan.inputs, "input"),
        outputs=list_tensors(plan, plan.outputs, "output"),
        delegates=tuple(files),
    )


def list_tensors(plan: Plan, indices: Sequence[int], name: str) -> tuple[TensorInfo, ...]:
    """Describe inputs or outputs of a program by what the .pte says of them."""
    values = [plan.values[index] for index in indices]
    return tuple(TensorInfo(f"{name}_{i}", v.shape, v.dtype) for i, v in enumerate(values) if isinstance(v, Tensor))


def match_tosa(pte: bytes, program: Pte, tosa: Sequence[bytes], max_memory: int | None = None) -> Sidecar:
    """Make the sidecar of a program from the .tosa files of its delegates, in their order."""
    plan = program.find("forward")
    known = [index for index, delegate in enumerate(plan.delegates) if delegate.id in BACKENDS]
    if len(known) != len(tosa):
        raise Invalid(
            f"{len(tosa)} .tosa files were given, but the program has {len(known)} delegates to compare",
            fix="pass one .tosa file for each delegate, in the order of `tosaic inspect`",
        )
    method = Method(program, executors={}, max_memory=max_memory)
    for index, data in zip(known, tosa, strict=True):
        _check_types(method, index, data, Budget(len(data), max_memory))
    files = [_NO_FILES] * len(plan.delegates)
    for index, data in zip(known, tosa, strict=True):
        files[index] = DelegateFiles(tosa=data)
    return _describe(pte, plan, files, None)


def _check_types(method: Method, index: int, tosa: bytes, budget: Budget) -> None:
    """Check that a .tosa file has the inputs and outputs of a delegate."""
    plan = method.plan
    call = next((s for s in plan.instructions if isinstance(s, DelegateCall) and s.delegate == index), None)
    if call is None:
        return
    graph = read_tosa(tosa, budget)
    for side, indices, values in zip(_SIDES, method.split(call), (graph.inputs, graph.outputs), strict=True):
        wanted = [order_in_memory(v) for i in indices if isinstance(v := plan.values[i], Tensor)]
        if len(wanted) != len(values) or not all(map(_fits, wanted, values)):
            raise Invalid(
                f"the .tosa file does not belong to delegate {index}",
                why=f"its {side} are {', '.join(str(v.type) for v in values)}; "
                f"the delegate has {', '.join(map(str, wanted))}",
                fix="pass one .tosa file for each delegate, in the order of `tosaic inspect`",
            )


def _fits(wanted: TensorType, value: Value) -> bool:
    return wanted.shape == value.shape and wanted.dtype.itemsize == np.dtype(NUMPY[value.dtype]).itemsize
