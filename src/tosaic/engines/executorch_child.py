"""The worker that runs .pte files in ExecuTorch's C++ runtime with our NPU as `EthosUBackend`."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tosaic.core.dtypes import BY_SCALAR_TYPE, NUMPY
from tosaic.core.errors import Invalid, TosaicError
from tosaic.core.hints import get_cli_form
from tosaic.engines import shim
from tosaic.engines.interpreter import BACKEND, Executor, Method
from tosaic.formats import blob as ethosu_blob
from tosaic.formats import ptd
from tosaic.formats.blob import ALIGNMENT
from tosaic.formats.external import read
from tosaic.formats.npy import Array
from tosaic.formats.pte import Tensor
from tosaic.formats.tensors import TensorType, from_array, lay_out, to_array, type_of
from tosaic.tools import wire
from tosaic.tools.serve import serve

#: Mangled name of the runtime's `register_backend`.
_REGISTER = "_ZN10executorch7runtime16register_backendERKNS0_7BackendE"


class _Tensor(ctypes.Structure):
    """TosaicTensor of shim.cpp."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 16),
        ("order", ctypes.c_uint8 * 16),
    )
    data: int | None
    bytes: int
    dtype: int
    rank: int
    sizes: Sequence[int]
    order: Sequence[int]


class _Spec(ctypes.Structure):
    """TosaicSpec of shim.cpp."""

    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_void_p), ("bytes", ctypes.c_uint64))
    key: bytes
    value: int | None
    bytes: int


_U64 = ctypes.c_uint64
_INIT = ctypes.CFUNCTYPE(ctypes.c_int32, _U64, ctypes.c_void_p, _U64, ctypes.POINTER(_Spec), _U64, ctypes.c_void_p)
_EXECUTE = ctypes.CFUNCTYPE(ctypes.c_int32, _U64, ctypes.POINTER(_Tensor), _U64)
_DESTROY = ctypes.CFUNCTYPE(None, _U64)
_TAKE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _U64)


class _Callbacks(ctypes.Structure):
    """TosaicCallbacks of shim.cpp."""

    _fields_ = (("init", _INIT), ("execute", _EXECUTE), ("destroy", _DESTROY))


class Backend:
    """The delegates of the running program. An exception cannot pass through C++, so it is kept in `error`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.executor: Executor | None = None
        self.error: Exception | None = None
        self._delegates: dict[int, tuple[bytes, list[tuple[str, bytes]], int]] = {}
        # The C side copies neither the functions nor the name.
        self._name = BACKEND.encode()
        self._callbacks = _Callbacks(_INIT(self._init), _EXECUTE(self._execute), _DESTROY(self._destroy))

    def register(self, register: Any) -> None:
        """Register the backend in the runtime."""
        address = ctypes.cast(register, ctypes.c_void_p)
        code = self._library.tosaic_register(address, ctypes.c_char_p(self._name), ctypes.byref(self._callbacks))
        if code:
            raise RuntimeError(f"the runtime cannot register another backend (error {code:#x})")

    def _init(self, number: int, blob: int | None, size: int, specs: Any, count: int, names: int | None) -> int:
        try:
            data = ctypes.string_at(blob or 0, size)
            pairs = [_read_spec(specs[i]) for i in range(count)]
            keys = ethosu_blob.list_keys(data).values()
            parts = ethosu_blob.unpack(data, named=self._find(names, keys))
            self._delegates[number] = (ethosu_blob.pack(parts) if keys else data, pairs, len(parts.inputs))
        except Exception as error:
            self.error = error
            return 1
        return 0

    def _find(self, names: int | None, keys: Iterable[str]) -> dict[str, bytes]:
        """Look these keys up in the runtime's named data."""
        found: dict[str, bytes] = {}
        for key in keys:

            def take(data: int | None, size: int, key: str = key) -> None:
                found[key] = ctypes.string_at(data or 0, size)

            self._library.tosaic_find(ctypes.c_void_p(names), key.encode(), _TAKE(take))
        return found

    def _execute(self, number: int, tensors: Any, count: int) -> int:
        try:
            data, specs, inputs = self._delegates[number]
            arrays = [_view(tensors[i]) for i in range(count)]
            outputs = arrays[inputs:]
            wanted = [TensorType(array.dtype, array.shape) for array in outputs]
            assert self.executor is not None
            results = self.executor(data, specs, [array.copy() for array in arrays[:inputs]], wanted)
            given = [TensorType(array.dtype, array.shape) for array in results]
            if given != wanted:
                expected, found = (", ".join(map(str, types)) for types in (wanted, given))
                raise Invalid(f"the NPU returns {found}, but the program takes {expected}")
            for place, result in zip(outputs, results, strict=True):
                np.copyto(place, result)
        except Exception as error:
            self.error = error
            return 1
        return 0

    def _destroy(self, number: int) -> None:
        self._delegates.pop(number, None)


def _read_spec(spec: _Spec) -> tuple[str, bytes]:
    return spec.key.decode(), ctypes.string_at(spec.value or 0, spec.bytes)


def _view(tensor: _Tensor) -> Array:
    """View the memory of a tensor as an array, with the dimensions in memory order."""
    sizes, order = list(tensor.sizes)[: tensor.rank], list(tensor.order)[: tensor.rank]
    dtype = np.dtype(NUMPY[BY_SCALAR_TYPE[tensor.dtype].name])
    if tensor.bytes and not tensor.data:
        raise Invalid("the runtime passes a tensor without memory to a delegate")
    # An empty tensor still needs a valid address.
    raw = (ctypes.c_uint8 * tensor.bytes).from_address(tensor.data or ctypes.addressof(tensor))
    flat: Array = np.frombuffer(memoryview(raw), dtype)
    return flat.reshape([sizes[dim] for dim in order])


class _Runner:
    """ExecuTorch's runtime with the backend in it."""

    def __init__(self) -> None:
        # In this order: torch, the runtime, its symbols made global, the quantized kernels, then their users. Not via
        # `executorch.runtime`: that also imports all of exir, which takes longer than everything else here.
        importlib.import_module("torch")
        self._portable: Any = importlib.import_module("executorch.extension.pybindings._portable_lib")
        handle = ctypes.CDLL(self._portable.__file__, ctypes.RTLD_GLOBAL)
        importlib.import_module("executorch.kernels.quantized")
        self.backend = Backend(ctypes.CDLL(str(shim.build())))
        # By this handle, not by global name: other libraries have their own registries.
        self.backend.register(getattr(handle, _REGISTER))

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
        self.backend.executor, self.backend.error = executor, None
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
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

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
