"""The worker that runs .pte files with ExecuTorch's runtime on Vulkan. A driver crash ends only this process."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tosaic.core.errors import ToolFailed
from tosaic.engines import vulkan_device, vulkan_env
from tosaic.engines.vulkan_choice import choose_driver
from tosaic.tools import wire
from tosaic.tools.process import run_tool
from tosaic.tools.serve import serve

#: Set in the process that has its final environment: the dynamic loader reads it only at startup.
_READY = "TOSAIC_VULKAN_READY"
#: Why this process cannot run anything, and what to do: the answer to every request.
_TROUBLE, _FIX = "TOSAIC_VULKAN_TROUBLE", "TOSAIC_VULKAN_FIX"
_MODULE = "tosaic.engines.vulkan_child"
_ASK = "from executorch.runtime import Runtime as R; print(R.get().backend_registry.is_available('VgfBackend'))"
_ASK_SECONDS = 60.0


def _prepare() -> dict[str, str]:
    """Return the environment to run in: the user's own, a native driver's, or the emulation on the best driver."""
    parts = vulkan_env.find()
    kept = {**os.environ, **vulkan_env.keep(parts)}
    if vulkan_env.mode() == "keep":
        return {**kept, _READY: "kept"}
    is_named = bool(os.environ.get(vulkan_env.DEVICE_VARIABLE))
    if not is_named and parts.others and _has_backend(kept):
        return {**kept, _READY: "native"}
    parts = choose_driver(parts, Path.cwd())
    if is_named and parts.driver in parts.others:
        only = {**os.environ, **vulkan_env.use_drivers(parts, Path.cwd(), [parts.driver])}
        if _has_backend(only):
            return {**only, _READY: "native"}
    return {**os.environ, **vulkan_env.emulate(parts, Path.cwd()), _READY: "emulated"}


def _prepare_or_explain() -> dict[str, str]:
    """Return the environment; if there is none, one in which every request gets the reason."""
    try:
        return _prepare()
    except vulkan_env.NoVulkan as error:
        return {**os.environ, _READY: "none", _TROUBLE: error.why, _FIX: error.fix}


def _has_backend(environment: dict[str, str]) -> bool:
    """Tell whether the backend works without layers: then the driver itself has Arm's extensions."""
    try:
        done = run_tool("ExecuTorch", [sys.executable, "-c", _ASK], timeout=_ASK_SECONDS, environment=environment)
    except ToolFailed:
        return False
    return done.code == 0 and "True" in done.output


class _Programs:
    """Runs programs; the last one stays loaded, since loading costs far more than running."""

    def __init__(self) -> None:
        # Imports that can print or fail come here, after the pipes are safe.
        import torch

        # Its warnings about components that cannot be loaded would appear in the log of every error.
        for name in ("torch", "torchao"):
            logging.getLogger(name).setLevel(logging.ERROR)
        from executorch.runtime import Runtime

        # Registers the kernels of quantize and dequantize.
        importlib.import_module("executorch.kernels.quantized")
        self._torch: Any = torch
        self._runtime: Any = Runtime.get()
        self._key = ""
        self._method: Any = None
        self._program: Any = None

    def has_backend(self) -> bool:
        return bool(self._runtime.backend_registry.is_available("VgfBackend"))

    def run(self, body: wire.Header, parts: list[bytes]) -> tuple[wire.Header, Sequence[bytes]]:
        pte, *inputs = parts
        tensors = [self._make(data, each) for data, each in zip(inputs, body["inputs"], strict=True)]
        results = [t.contiguous() for t in self._load(pte, body["method"]).execute(tensors)]
        types = [{"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)} for t in results]
        return {"outputs": types}, [self._dump(t) for t in results]

    def _load(self, pte: bytes, method: str) -> Any:
        key = f"{hashlib.sha256(pte).hexdigest()} {method}"
        if key != self._key:
            # The old one is freed first: a device has room for few.
            self._key, self._method, self._program = "", None, None
            self._program = self._runtime.load_program(pte)
            self._method = self._program.load_method(method)
            self._key = key
        return self._method

    def _make(self, data: bytes, kind: dict[str, Any]) -> Any:
        torch = self._torch
        if not data:
            return torch.empty(kind["shape"], dtype=getattr(torch, kind["dtype"]))
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        tensor, order = raw.view(getattr(torch, kind["dtype"])).reshape(kind["shape"]), kind["order"]
        # The runtime reads the memory of a tensor, regardless of its strides.
        return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])

    def _dump(self, tensor: Any) -> bytes:
        return bytes(tensor.reshape(-1).view(self._torch.uint8).numpy().tobytes())


def _make_handler() -> Callable[[wire.Header, list[bytes]], tuple[wire.Header, Sequence[bytes]]]:
    programs: list[_Programs] = []
    about = {"driver": os.environ[_READY], "device": ""}

    def handle(body: wire.Header, parts: list[bytes]) -> tuple[wire.Header, Sequence[bytes]]:
        if os.environ.get(_TROUBLE):
            return {**about, "missing": True, "trouble": os.environ[_TROUBLE], "fix": os.environ[_FIX]}, ()
        if not programs:
            devices, trouble = vulkan_device.ask(os.environ)
            if trouble:
                return {**about, "missing": True, "trouble": trouble}, ()
            about["device"] = devices[0].name if devices else ""
            programs.append(_Programs())
        if not programs[0].has_backend():
            return {**about, "missing": True}, ()
        header, results = programs[0].run(body, parts)
        return {**about, **header}, results

    return handle


if __name__ == "__main__":
    if _READY not in os.environ:
        os.execve(sys.executable, [sys.executable, "-m", _MODULE], _prepare_or_explain())  # noqa: S606
    serve(_make_handler())
