"""Models as a user names them: a zoo name, a .py file (which is executed), or an exported .pt2 file."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

from tosaic import zoo
from tosaic.core.errors import Invalid, TosaicError
from tosaic.core.input_file import find_near
from tosaic.core.location import find_line
from tosaic.formats import foreign
from tosaic.formats import pt2 as model_archive
from tosaic.formats.pt2 import Archive

#: accepted names of the model and its inputs in a .py file; the first match wins
MODEL_NAMES = ("model", "ModelUnderTest")
INPUT_NAMES = ("inputs", "example_inputs", "ModelInputs")
#: that of its calibration samples, which it need not have
CALIBRATION_NAME = "calibration"
_COMPILED = (".pte", ".ptd", ".bpte", ".tosa", ".vgf", ".tosaic", ".elf")
#: what is read of the start and of the end of a file to recognize it
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, its example inputs (None if it contains its own), and calibration samples if its file has some."""

    model: Any
    inputs: tuple[Any, ...] | None
    calibration: Iterable[Any] | str | Path | None = None


def check(name: str, max_memory: int | None = None) -> Archive | None:
    """Reject what cannot be a model, without importing torch; a .pt2 is read here, and only here."""
    path = Path(name)
    if path.suffix or "/" in name or path.name in ("", ".."):
        if not path.is_file():
            raise Invalid(
                f"cannot compile `{name}`: it is a folder" if path.is_dir() else f"there is no file `{name}`",
                fix=_suggest(path) or "pass the name of a built-in model, a .py file or a .pt2 file",
            )
        if path.suffix == ".pt2":
            return model_archive.read(path, max_memory)
        if path.suffix != ".py":
            raise _refuse(path)
    else:
        try:
            zoo.require(name)
        except Invalid as error:
            error.fix = _suggest(path) or error.fix
            raise
    return None


def _suggest(path: Path) -> str:
    """Suggest the model file that a name without or with another suffix may mean."""
    if path.name in ("", ".."):
        return ""
    near = next((path.with_suffix(end) for end in (".py", ".pt2") if path.with_suffix(end).is_file()), None)
    if near is None and path.suffix:
        near = find_near(path)
    return f"did you mean the file `{near}`?" if near is not None and near.suffix in (".py", ".pt2") else ""


def _refuse(path: Path) -> Invalid:
    """Say what a file is that is neither a .py nor a .pt2 file."""
    if path.suffix in _COMPILED:
        return Invalid(f"cannot compile `{path}`: it is compiled already", fix=f"`tosaic inspect {path}` shows it")
    with path.open("rb") as file:
        start = file.read(_PIECE)
        file.seek(max(len(start), path.stat().st_size - _PIECE))
        foreign.refuse_to_compile(start + file.read(_PIECE), str(path))
    return Invalid(
        f"cannot compile `{path}`: unknown file type",
        fix="pass the name of a built-in model, a .py file or a .pt2 file",
    )


def load(
    name: str, *, checked: Archive | None = None, allow_ops: Collection[str] = (), max_memory: int | None = None
) -> tuple[Any, tuple[Any, ...] | None]:
    """Load the model and its example inputs, as `load_with_samples`."""
    found = load_with_samples(name, checked=checked, allow_ops=allow_ops, max_memory=max_memory)
    return found.model, found.inputs


def load_with_samples(
    name: str, *, checked: Archive | None = None, allow_ops: Collection[str] = (), max_memory: int | None = None
) -> Loaded:
    """Load the model, its example inputs, which a .pt2 contains, and calibration samples that a .py file may have.

    checked     what `check` returned for this name
    allow_ops   operators that a .pt2 may call besides those that only compute, such as `aten.from_file`
    max_memory  limit for reading a .pt2 in bytes; default: 1 GiB more than its size
    """
    archive = check(name, max_memory) if checked is None else checked
    if archive is not None:
        return Loaded(_load_exported(archive, allow_ops), None)
    return _load_python(Path(name)) if name.endswith(".py") else Loaded(*zoo.load(name))


def _load_python(path: Path) -> Loaded:
    import torch

    module = _import(path)
    model = _get(module, MODEL_NAMES, path)
    if not isinstance(model, torch.nn.Module):
        raise Invalid(
            f"the model in `{path}` is of type `{type(model).__name__}`", fix="define `model` as an nn.Module"
        )
    inputs = _get(module, INPUT_NAMES, path)
    calibration = _get_samples(module, path)
    if isinstance(inputs, torch.Tensor):
        # A tensor is iterable too, but its rows are not the inputs.
        return Loaded(model, (inputs,), calibration)
    kind = type(inputs).__name__
    if kind not in ("tuple", "list"):
        raise Invalid(f"the inputs in `{path}` are of type `{kind}`", fix="define `inputs` as a tuple of tensors")
    return Loaded(model, tuple(inputs), calibration)


def _get_samples(module: ModuleType, path: Path) -> Any:
    """Get the calibration samples of a file: what `compile` takes, or a path relative to the file."""
    if not hasattr(module, CALIBRATION_NAME) or isinstance(getattr(module, CALIBRATION_NAME), ModuleType):
        return None
    found = _get(module, (CALIBRATION_NAME,), path)
    if isinstance(found, str | Path):
        return path.parent / found
    # A command that compiles in several ways needs the samples several times.
    return list[Any](found) if _is_iterator(found) else found


def _is_iterator(value: object) -> TypeGuard[Iterator[Any]]:
    return isinstance(value, Iterator)


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tosaic_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise Invalid(f"`{path}` cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # As for `python FILE`: the file may import its neighbors, now or later.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    _run(functools.partial(spec.loader.exec_module, module), path, "it is imported")
    return module


def _run(job: Callable[[], Any], path: Path, moment: str) -> Any:
    """Run the user's code and report any exception as an error of the file."""
    try:
        return job()
    except (Exception, SystemExit) as error:
        what = f"`{path}` raises {type(error).__name__} while {moment}"
        raise Invalid(what, where=find_line(error), why=str(error)) from error


def _get(module: ModuleType, names: tuple[str, ...], path: Path) -> Any:
    """Get the first of these names; call a class or function without arguments."""
    for name in names:
        if hasattr(module, name):
            value = getattr(module, name)
            is_factory = isinstance(value, type | FunctionType)
            made = _run(value, path, f"`{name}()` is called") if is_factory else value
            # Nobody could have called eval() on an instance that is made here.
            return made.eval() if isinstance(value, type) and hasattr(made, "eval") else made
    raise Invalid(
        f"`{path}` defines none of {', '.join(f'`{n}`' for n in names)}",
        fix="define `model` (an nn.Module in eval mode) and `inputs` (a tuple of tensors)",
    )


def _load_exported(archive: Archive, allow_ops: Collection[str]) -> Any:
    from tosaic.api import model_program

    try:
        return model_program.load(archive, allow_ops)
    except TosaicError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()
        raise Invalid(
            f"`{archive.path}` is not an exported program",
            why=first[0] if first else type(error).__name__,
            fix="write it with torch.export.save",
        ) from error
