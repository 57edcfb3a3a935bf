"""Models as a user names them: a zoo name, a .py file (which is code and is run), or an exported .pt2 file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from tosaic import zoo
from tosaic.errors import Invalid

#: what a .py file may call its model and its inputs, first match wins
MODEL_NAMES = ("model", "ModelUnderTest")
INPUT_NAMES = ("inputs", "example_inputs", "ModelInputs")


def load(name: str) -> tuple[Any, tuple[Any, ...] | None]:
    """The model and its example inputs; a .pt2 brings its own."""
    if name.endswith(".py"):
        return _load_python(Path(name))
    if name.endswith(".pt2"):
        return _load_exported(Path(name))
    if "/" in name or name.endswith((".pt", ".pth", ".pte", ".onnx", ".tflite")):
        raise Invalid(f"`{name}` is no model that can be compiled", fix="give a zoo name, a .py file or a .pt2 file")
    return zoo.load(name)


def _load_python(path: Path) -> tuple[Any, tuple[Any, ...]]:
    if not path.is_file():
        raise Invalid(f"there is no file `{path}`")
    spec = importlib.util.spec_from_file_location(f"tosaic_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise Invalid(f"`{path}` cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Invalid(f"`{path}` raises {type(error).__name__} when it is imported", why=str(error)) from error
    return _get(module, MODEL_NAMES, path), tuple(_get(module, INPUT_NAMES, path))


def _get(module: Any, names: tuple[str, ...], path: Path) -> Any:
    """The first of these names; a class or function is called without arguments."""
    for name in names:
        if hasattr(module, name):
            value = getattr(module, name)
            is_factory = isinstance(value, type) or type(value).__name__ == "function"
            return value() if is_factory else value
    raise Invalid(
        f"`{path}` defines none of {', '.join(f'`{n}`' for n in names)}",
        fix="define `model` (an nn.Module in eval mode) and `inputs` (a tuple of tensors)",
    )


def _load_exported(path: Path) -> tuple[Any, None]:
    import torch

    if not path.is_file():
        raise Invalid(f"there is no file `{path}`")
    try:
        return torch.export.load(path), None
    except Exception as error:
        first = str(error).strip().splitlines()
        raise Invalid(
            f"`{path}` is no exported program",
            why=first[0] if first else type(error).__name__,
            fix="write it with torch.export.save",
        ) from error
