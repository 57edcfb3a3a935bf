"""The NPU as a backend of ExecuTorch's C++ runtime: the shim's callbacks, and its registration in this process."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tosaic.core.dtypes import BY_SCALAR_TYPE, NUMPY
from tosaic.core.errors import Invalid
from tosaic.engines import shim
from tosaic.engines.interpreter import Executor
from tosaic.formats import blob as ethosu_blob
from tosaic.formats.blob import BACKEND
from tosaic.formats.npy import Array
from tosaic.formats.tensors import TensorType

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


@dataclass(frozen=True, slots=True)
class _Delegate:
    """A loaded delegate: what it is made of, how many of its arguments are inputs, and what computes it."""

    blob: bytes
    specs: list[tuple[str, bytes]]
    inputs: int
    executor: Executor

    def run(self, arrays: Sequence[Array]) -> None:
        """Compute the outputs, which are the last arrays, in place."""
        outputs = arrays[self.inputs :]
        wanted = [TensorType(array.dtype, array.shape) for array in outputs]
        results = self.executor(self.blob, self.specs, [array.copy() for array in arrays[: self.inputs]], wanted)
        given = [TensorType(array.dtype, array.shape) for array in results]
        if given != wanted:
            expected, found = (", ".join(map(str, types)) for types in (wanted, given))
            raise Invalid(f"the NPU returns {found}, but the program takes {expected}")
        for place, result in zip(outputs, results, strict=True):
            np.copyto(place, result)


class Backend:
    """The delegates that the runtime has loaded. `open` makes the executor of each, which ends with the delegate.

    An exception cannot pass through C++: it is kept in `error` and handed to `report`, and the runtime gets a number.
    """

    def __init__(
        self, library: ctypes.CDLL, open: Callable[[], Executor], report: Callable[[Exception], None] | None = None
    ) -> None:
        self._library = library
        self.open, self._report = open, report
        self.error: Exception | None = None
        self._delegates: dict[int, _Delegate] = {}
        # The C side copies neither the functions nor the name.
        self._name = BACKEND.encode()
        self._callbacks = _Callbacks(_INIT(self._init), _EXECUTE(self._execute), _DESTROY(self._destroy))

    def register(self, register: Any) -> None:
        """Register the backend in the runtime."""
        address = ctypes.cast(register, ctypes.c_void_p)
        code = self._library.tosaic_register(address, ctypes.c_char_p(self._name), ctypes.byref(self._callbacks))
        if code:
            raise RuntimeError(f"the runtime cannot register another backend (error {code:#x})")

    def _fail(self, error: Exception) -> int:
        self.error = error
        if self._report is not None:
            self._report(error)
        return 1

    def _init(self, number: int, blob: int | None, size: int, specs: Any, count: int, names: int | None) -> int:
        try:
            data = ctypes.string_at(blob or 0, size)
            pairs = [_read_spec(specs[i]) for i in range(count)]
            keys = ethosu_blob.list_keys(data).values()
            parts = ethosu_blob.unpack(data, named=self._find(names, keys))
            whole = ethosu_blob.pack(parts) if keys else data
            self._delegates[number] = _Delegate(whole, pairs, len(parts.inputs), self.open())
        except Exception as error:
            return self._fail(error)
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
            self._delegates[number].run([_view(tensors[i]) for i in range(count)])
        except Exception as error:
            return self._fail(error)
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


def load_runtime() -> tuple[Any, ctypes.CDLL]:
    """Load ExecuTorch's runtime with its quantized kernels; return its Python bindings and its library."""
    # In this order: torch, the runtime, its symbols made global, the quantized kernels, then their users. Not via
    # `executorch.runtime`: that also imports all of exir, which takes longer than everything else here.
    importlib.import_module("torch")
    bindings, file = _find_runtime()
    library = ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)
    importlib.import_module("executorch.kernels.quantized")
    return bindings, library


def _find_runtime() -> tuple[Any, Path]:
    """Find the Python bindings of the runtime, and the library that has the runtime in it."""
    package = "executorch.extension.pybindings"
    try:
        # ExecuTorch 1.4: one extension module with everything in it.
        bindings: Any = importlib.import_module(f"{package}._portable_lib")
        return bindings, Path(bindings.__file__)
    except ModuleNotFoundError:
        # 1.5: the bindings use a library that others share.
        bindings = importlib.import_module(f"{package}._C")
        return bindings, Path(bindings.__file__).parents[2] / "lib" / "libexecutorch.so"


def connect(
    bindings: Any, library: ctypes.CDLL, open: Callable[[], Executor], report: Callable[[Exception], None] | None = None
) -> Backend:
    """Register the NPU as a backend of the runtime in this process."""
    backend = Backend(ctypes.CDLL(str(shim.build())), open, report)
    # By handles, not by global name: other libraries have their own registries.
    backend.register(getattr(library, _REGISTER))
    if BACKEND not in bindings._get_registered_backend_names():
        # The quantized kernels were loaded first, so the runtime uses the registry of their library.
        backend.register(getattr(_load_kernels(), _REGISTER))
    return backend


def _load_kernels() -> ctypes.CDLL:
    """Return the library of the quantized kernels, which is loaded already."""
    package = importlib.import_module("executorch.kernels.quantized")
    (file,) = Path(str(package.__file__)).parent.glob("**/*quantized_ops_aot_lib.*")
    return ctypes.CDLL(str(file))
