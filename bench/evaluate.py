"""What a compiled program is worth: NPU figures by our own Vela, and how close its numbers are to the float model.

Both sides go through this one file. It takes TOSA, whoever made it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.exir.delegate import executorch_call_delegate
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tosaic.core.targets import Target
from tosaic.formats import blob, pte
from tosaic.formats.flatbuffer import Buffer
from tosaic.npu import perf
from tosaic.tools import vela

Tensors = Sequence[torch.Tensor]
#: Kernels that only stand at the border of a delegate.
BORDER = ("quantized_decomposed::quantize_per_tensor", "quantized_decomposed::dequantize_per_tensor")


def describe_file(data: bytes) -> dict[str, Any]:
    """What a .pte holds, by our checked reader."""
    plan = pte.read(data).find()
    calls = [i for chain in plan.chains for i in chain.instructions]
    kernels = Counter(str(plan.operators[i.operator]) for i in calls if isinstance(i, pte.KernelCall))
    return {
        "pte_bytes": len(data),
        "delegates": sum(isinstance(i, pte.DelegateCall) for i in calls),
        "cpu_ops": dict(sorted(kernels.items())),
        "cpu_compute": sum(count for name, count in kernels.items() if not name.startswith(BORDER)),
        "planned_bytes": sum(plan.planned_sizes),
    }


def describe_npu(delegates: Sequence[tuple[bytes, bytes]], target: Target) -> dict[str, Any]:
    """NPU figures of (.tosa, blob) pairs, compiled here with the target's defaults, whoever compiled the blob."""
    options = vela.VelaOptions(target.name, target.system_config, target.memory_mode)
    compiled = [vela.compile(tosa, options) for tosa, _ in delegates]
    summaries = [one.summary for one in compiled]
    shipped = [blob.unpack(data) for _, data in delegates]
    return {
        "cycles": int(sum(s["cycles_total"] for s in summaries)),
        "cycles_commands": sum(perf.estimate(one.cmd_data, options).cycles for one in compiled),
        "cycles_npu": int(sum(s["cycles_npu"] for s in summaries)),
        "macs": int(sum(s["nn_macs"] for s in summaries)),
        # Delegates run one after the other, so their memory can be the same.
        "sram_bytes": int(max((s["sram_memory_used"] * 1024 for s in summaries), default=0)),
        "scratch_bytes": max((c.scratch_size for c in compiled), default=0),
        "weight_bytes": sum(len(c.weight_data) for c in compiled),
        "command_bytes": sum(len(c.cmd_data) for c in compiled),
        # Whether the figures are those of the shipped blob, or only of a blob from the same TOSA.
        "same_commands": all(a.cmd_data == b.cmd_data for a, b in zip(shipped, compiled, strict=True)),
        "tosa": [hashlib.sha256(tosa).hexdigest() for tosa, _ in delegates],
    }


class ReferenceRun(torch.fx.Interpreter):
    """Runs a program as exir has finished it; the TOSA reference model computes the delegates, torch the rest."""

    def __init__(self, program: ExportedProgram, tosa: Mapping[bytes, bytes]) -> None:
        super().__init__(program.graph_module)
        self.program, self.tosa = program, tosa

    def call(self, inputs: Tensors) -> list[torch.Tensor]:
        given = iter(inputs)
        bound: list[Any] = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                bound.append(next(given))
            else:
                held = self.program.state_dict.get(str(spec.target))
                bound.append(self.program.constants[str(spec.target)] if held is None else held)
        return tensors(self.run(*bound, enable_io_processing=False))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "dequantize_per_channel" in str(target):
            # torch takes zero points of 64 bits only; ExecuTorch takes those of 32, too.
            args = (*args[:2], args[2].long(), *args[3:])
        if target is not executorch_call_delegate:
            return super().call_function(target, args, kwargs)
        module, *values = args
        return tuple(run_tosa(self.tosa[module.processed_bytes], values))


def run_tosa(tosa: bytes, values: Tensors) -> list[torch.Tensor]:
    """The outputs of a .tosa file by the reference model.

    tosaic.engines.reference is not used: it reads the file with our checked reader, which refuses the peer's (a zero
    point of one element that carries the bytes of many).
    """
    program = importlib.metadata.distribution("tosa-tools").locate_file("bin/tosa_reference_model")
    (main,) = Buffer(tosa).root().get_tables(1, "region")
    (block,) = main.get_tables(1, "block")
    inputs, outputs = block.get_texts(3, "an input's name"), block.get_texts(4, "an output's name")
    with tempfile.TemporaryDirectory(prefix="tosaic-bench-") as name:
        folder = Path(name)
        (folder / "model.tosa").write_bytes(tosa)
        for index, value in enumerate(values):
            np.save(folder / f"in{index}.npy", value.contiguous().numpy())
        description = {
            "tosa_file": "model.tosa",
            "ifm_name": inputs,
            "ifm_file": [f"in{index}.npy" for index in range(len(values))],
            "ofm_name": outputs,
            "ofm_file": [f"out{index}.npy" for index in range(len(outputs))],
            "expected_failure": False,
        }
        (folder / "description.json").write_text(json.dumps(description))
        # Without the variable the model starts a debugger when a check fails.
        environment = {**os.environ, "TOSA_MODEL_NO_BACKTRACE": "1"}
        arguments = [str(program), "--test_desc=description.json", "--tosa_level=NONE"]
        subprocess.run(arguments, cwd=folder, env=environment, check=True, timeout=600, stdout=subprocess.DEVNULL)
        return [torch.from_numpy(np.load(folder / f"out{index}.npy")) for index in range(len(outputs))]


def list_delegates(program: ExportedProgram, tosa: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """(.tosa, blob) of every delegate, in the order of execution. `tosa` finds the one by the other."""
    calls = [n for n in program.graph.nodes if n.target is executorch_call_delegate]
    blobs = [getattr(program.graph_module, str(n.args[0].target)).processed_bytes for n in calls]
    return [(tosa[data], data) for data in blobs]


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def measure_sqnr(
    exact: Callable[..., Any], other: Callable[[Tensors], Any], inputs: Sequence[Tensors]
) -> dict[str, Any]:
    """Decibels of signal over error, mean and lowest over the inputs. Inputs without any error are counted apart."""
    found: list[float] = []
    with torch.no_grad():
        for one in inputs:
            wanted, got = tensors(exact(*one)), tensors(other(one))
            signal = sum(float((a.double() ** 2).sum()) for a in wanted)
            noise = sum(float(((a.double() - b.double()) ** 2).sum()) for a, b in zip(wanted, got, strict=True))
            if noise:
                found.append(10 * math.log10(signal / noise))
    return {
        "mean_db": sum(found) / len(found) if found else None,
        "lowest_db": min(found, default=None),
        "exact": len(inputs) - len(found),
        "inputs": len(inputs),
    }
