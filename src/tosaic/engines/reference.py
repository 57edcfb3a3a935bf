"""The TOSA reference model: the bit-exact result of a .tosa file.

It runs as the program that comes with tosa-tools, a few milliseconds per run. The Python binding of the same package
returns empty results for int48 and in precise mode, accepts no int4 inputs, and a failed check in it exits the process.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tosaic.core.errors import Invalid, ToolFailed
from tosaic.formats.flatbuffer import Buffer
from tosaic.formats.npy import write_npy
from tosaic.formats.tosa_writer import read
from tosaic.ir.graph import NUMPY, Array, DType, Type
from tosaic.tools.process import run_tool

#: The types that the program expects in a .npy file where numpy would write the type of the bits.
_NPY_TYPES: Mapping[DType, str] = MappingProxyType({DType.BF16: "<V2", DType.F8E4M3: "<V1"})


class Undefined(ToolFailed):
    """A result that TOSA does not define: an overflow, an index out of range."""


@functools.cache
def version() -> str:
    """Return the version of the installed tosa-tools."""
    try:
        return importlib.metadata.version("tosa-tools")
    except importlib.metadata.PackageNotFoundError:
        raise ToolFailed("the TOSA reference model is not installed", fix="pip install tosa-tools") from None


def run(tosa: bytes, inputs: Sequence[Array], *, timeout: float | None = None, precise: bool = False) -> list[Array]:
    """Return the outputs of a .tosa file, in the types of `tosaic.ir.graph.NUMPY`; with `precise`, floats as float64.

    Raises Invalid if the file or an input is wrong, Undefined if TOSA does not define the result, ToolFailed if the
    model crashes or takes longer than `timeout` seconds.
    """
    graph = read(tosa)
    input_names, output_names = _read_names(tosa)
    arrays = _check_inputs(inputs, [value.type for value in graph.inputs])
    with tempfile.TemporaryDirectory(prefix="tosaic-") as name:
        folder = Path(name)
        (folder / "model.tosa").write_bytes(tosa)
        for index, (array, value) in enumerate(zip(arrays, graph.inputs, strict=True)):
            data = write_npy(array, _NPY_TYPES.get(value.dtype, ""))
            (folder / f"in{index}.npy").write_bytes(data)
        description = {
            "tosa_file": "model.tosa",
            "ifm_name": input_names,
            "ifm_file": [f"in{index}.npy" for index in range(len(input_names))],
            "ofm_name": output_names,
            "ofm_file": [f"out{index}.npy" for index in range(len(output_names))],
            "expected_failure": False,
        }
        (folder / "description.json").write_text(json.dumps(description), encoding="utf-8")
        _execute(folder, precise, timeout)
        return [_read_npy(folder / f"out{index}.npy", value.type, precise) for index, value in enumerate(graph.outputs)]


def _read_names(tosa: bytes) -> tuple[list[str], list[str]]:
    """Read the names of inputs and outputs. `read` has checked the file, so it has a main region with one block."""
    regions = Buffer(tosa).root().get_tables(1, "region")
    main = next(region for region in regions if region.get_text(0, "a region's name") == "main")
    (block,) = main.get_tables(1, "block")
    return block.get_texts(3, "an input's name"), block.get_texts(4, "an output's name")


def _check_inputs(inputs: Sequence[Array], types: Sequence[Type]) -> list[Array]:
    if len(inputs) != len(types):
        raise Invalid(f"the .tosa file has {len(types)} inputs, but {len(inputs)} were given")
    return [_check_input(index, array, type) for index, (array, type) in enumerate(zip(inputs, types, strict=True))]


def _check_input(index: int, array: Array, type: Type) -> Array:
    wanted = np.dtype(NUMPY[type.dtype])
    # TOSA has no unsigned tensors: uint8 is int8 with the same bits.
    signed = np.dtype(f"i{array.dtype.itemsize}") if array.dtype.kind == "u" and array.dtype.isnative else None
    if array.shape != type.shape or wanted not in (array.dtype, signed) or type.dtype is DType.SHAPE:
        given = f"{array.dtype}{list(array.shape)}"
        raise Invalid(f"input {index} of the .tosa file is {type} (as {wanted}), but {given} was given")
    return array


def _read_npy(path: Path, type: Type, precise: bool) -> Array:
    array: Array = np.load(path, allow_pickle=False)
    return array if precise and type.dtype.is_float else array.view(NUMPY[type.dtype])


def _execute(folder: Path, precise: bool, timeout: float | None) -> None:
    program = importlib.metadata.distribution("tosa-tools").locate_file("bin/tosa_reference_model")
    arguments = [
        str(program),
        "--test_desc=description.json",
        "--tosa_level=NONE",
        f"--precise_mode={int(precise)}",
        # Otherwise an overflow is reported for every element.
        "--terminate_early",
    ]
    # Without this the model starts a debugger when a check fails.
    environment = {**os.environ, "TOSA_MODEL_NO_BACKTRACE": "1"}
    done = run_tool("the TOSA reference model", arguments, folder=folder, timeout=timeout, environment=environment)
    text = done.output
    if done.signal:
        raise ToolFailed(f"the TOSA reference model crashed with {done.signal}", log=text, why=_find_reason(text))
    if "Graph result: UNPREDICTABLE" in text and done.code:
        raise Undefined("the TOSA reference model found the result to be undefined", log=text, why=_find_reason(text))
    if done.code:
        raise ToolFailed("the TOSA reference model rejected the graph", log=text, why=_find_reason(text))


def _find_reason(log: str) -> str:
    """Find the first informative line: the others hold locations in the model's own source."""
    lines = (line.strip() for line in log.splitlines() if " AT /" not in line and not line.startswith("WARNING"))
    return next((line for line in lines if line), "")
