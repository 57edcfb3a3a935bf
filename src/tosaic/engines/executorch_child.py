"""The worker that runs .pte files in ExecuTorch's C++ runtime with our NPU as `EthosUBackend`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic.core.errors import TosaicError
from tosaic.core.hints import get_cli_form
from tosaic.engines.interpreter import Executor, Method, Npu
from tosaic.engines.runtime_backend import connect, load_runtime
from tosaic.formats import ptd
from tosaic.formats.blob import ALIGNMENT
from tosaic.formats.external import read
from tosaic.formats.npy import Array
from tosaic.formats.pte import Tensor
from tosaic.formats.tensors import from_array, lay_out, to_array, type_of
from tosaic.tools import wire
from tosaic.tools.serve import serve


class _Runner:
    """ExecuTorch's runtime with the backend in it."""

    def __init__(self) -> None:
        self._portable, library = load_runtime()
        self.backend = connect(self._portable, library, Npu)

    def run(
        self,
        data: bytes,
        files: Sequence[bytes],
        name: str,
        arrays: Sequence[Array],
        executor: Executor,
        max_memory: int | None,
    ) -> list[Array]:
        method = Method(read(data, files, max_memory=max_memory), name, max_memory=max_memory)
        self.backend.open, self.backend.error = lambda: executor, None
        method.check_inputs(arrays)
        values = method.plan.values
        specs = [spec for index in method.plan.inputs if isinstance(spec := values[index], Tensor)]
        inputs = [lay_out(from_array(array, spec.dtype), spec) for array, spec in zip(arrays, specs, strict=True)]
        # The runtime does not copy it: it has to exist until the program has run.
        data_map = _merge(files, max_memory)
        try:
            # With the runtime's own check of the file.
            program: Any = self._portable._load_for_executorch_from_buffer(
                data,
                data_map_buffer=data_map,
                program_verification=self._portable.Verification.InternalConsistency,
            )
            results: list[Any] = program.run_method(name, inputs)
        except Exception as error:
            raise (self.backend.error or error) from error
        outputs = [spec for index in method.plan.outputs if isinstance(spec := values[index], Tensor)]
        return [to_array(result, type_of(spec).dtype) for result, spec in zip(results, outputs, strict=True)]


def _merge(files: Sequence[bytes], max_memory: int | None) -> bytes | None:
    """Make one .ptd file of several, since the Python bindings of the runtime take only one."""
    if len(files) < 2:
        return files[0] if files else None
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

    from tosaic.core.exir_compat import DataEntry, DataPayload

    named = {key: value for file in files for key, value in ptd.read(file, max_memory=max_memory).named.items()}
    entries = {key: DataEntry(index, ALIGNMENT, None) for index, key in enumerate(named)}
    return bytes(FlatTensorSerializer().serialize(DataPayload(list(named.values()), entries)))


class _Handler:
    def __init__(self) -> None:
        self._runner: _Runner | None = None
        self._executors: dict[str, Executor] = {}

    def _find(self, name: str) -> Executor:
        """Return the executor of that name; it is made once, since it may keep decoded weights."""
        if name not in self._executors:
            module, _, function = name.partition(":")
            self._executors[name] = getattr(importlib.import_module(module), function)()
        return self._executors[name]

    def __call__(self, body: wire.Header, parts: list[bytes]) -> tuple[wire.Header, Sequence[bytes]]:
        try:
            if self._runner is None:
                self._runner = _Runner()
            first_file = 1 + len(body["inputs"])
            arrays, files = parts[1:first_file], parts[first_file:]
            inputs = [_parse(data, each) for data, each in zip(arrays, body["inputs"], strict=True)]
            executor = self._find(body["executor"])
            outputs = self._runner.run(parts[0], files, body["method"], inputs, executor, body["max_memory"])
        except TosaicError as error:
            fields = {name: getattr(error, name) for name in ("what", "where", "why", "fix")}
            fields["cli_fix"] = get_cli_form(error.fix)
            return {"error": fields, "code": error.exit_code}, ()
        types = [{"dtype": array.dtype.str, "shape": list(array.shape)} for array in outputs]
        return {"outputs": types}, [array.tobytes() for array in outputs]


def _parse(data: bytes, each: wire.Header) -> Array:
    flat: Array = np.frombuffer(data, np.dtype(each["dtype"]))
    return flat.reshape(each["shape"])


if __name__ == "__main__":
    serve(_Handler())
