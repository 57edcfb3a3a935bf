"""Calibration data: from an iterable, a file or a folder, checked before it can degrade quantization."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch.utils.data import Dataset

from tosaic.core.budget import DEFAULT
from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.engines.inputs import read_content
from tosaic.fx.torch_compat import pytree
from tosaic.lower.arguments import is_sequence
from tosaic.lower.convert import is_list

Sample: TypeAlias = tuple[torch.Tensor, ...]

SUFFIXES = (".npz", ".npy", ".pt")
#: memory of a sample besides its numbers, in bytes
SAMPLE_COST = 1024


def read(
    calibration: Iterable[Any] | str | Path,
    example: Sequence[torch.Tensor],
    max_memory: int | None = None,
    *,
    names: Sequence[str] = (),
    notes: list[str] | None = None,
) -> list[Sample]:
    """Read all samples and check each against the example inputs.

    names  the names of the inputs, by which they are found in a sample that is a dict
    notes  gets what a user should know: elements and images that were not used
    """
    data: Any = calibration
    if isinstance(calibration, (str, Path)):
        origin = str(calibration)
        found = list(_limit_samples(_read_path(Path(calibration), example, max_memory, names), origin, max_memory))
    elif isinstance(data, torch.Tensor):
        raise Invalid("calibration is a single tensor", fix="pass a list of samples: calibration=[x1, x2, ...]")
    elif not _is_dataset(data) and not _is_iterable(data):
        raise Invalid(
            f"calibration is of type `{type(data).__name__}`", fix="pass a list of samples, a file or a folder"
        )
    else:
        found = [(_as_sample(item, names), f"sample {i}") for i, item in enumerate(_list_items(calibration))]
        origin = "calibration"
        found = _split_batches(_drop_labels(found, example, notes), example, notes)
    if not found:
        raise Invalid("the calibration data is empty", where=origin, fix="pass at least one sample")
    samples = [check(sample, example, where) for sample, where in found]
    _check_spread(samples, origin)
    return samples


def check(sample: Sequence[Any], example: Sequence[torch.Tensor], where: str, *, finite: bool = True) -> Sample:
    """Check that a sample has the count, shapes and dtypes of the example inputs, and is finite where asked."""
    if len(sample) != len(example):
        raise Invalid(
            f"{where} has {len(sample)} inputs, the model takes {len(example)}",
            where=where,
            fix="pass one tensor per model input, as a tuple",
        )
    out: list[torch.Tensor] = []
    for i, (got, want) in enumerate(zip(sample, example, strict=True)):
        tensor = as_tensor(got, f"input {i} of {where}")
        if tuple(tensor.shape) != tuple(want.shape):
            raise Invalid(
                f"input {i} of {where} has shape {list(tensor.shape)}, the model takes {list(want.shape)}",
                where=where,
                fix=_suggest_shape(tuple(tensor.shape), tuple(want.shape)),
            )
        if tensor.dtype != want.dtype:
            if tensor.dtype == torch.float64 and want.dtype == torch.float32:
                tensor = tensor.to(torch.float32)
            else:
                raise Invalid(
                    f"input {i} of {where} is {_name(tensor.dtype)}, the model takes {_name(want.dtype)}",
                    where=where,
                    fix=_suggest_dtype(got, want.dtype),
                )
        if finite and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Invalid(
                f"input {i} of {where} contains NaN or infinity",
                where=where,
                fix="remove NaN and infinity from the calibration data",
            )
        out.append(tensor)
    return tuple(out)


def as_tensor(value: Any, what: str) -> torch.Tensor:
    """Return a tensor, converting anything that torch can convert."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value).__name__
        raise Invalid(f"{what} is of type `{kind}`, not a tensor", fix="pass tensors or numpy arrays") from error


def _check_spread(samples: Sequence[Sample], origin: str) -> None:
    """Check that no float input is constant everywhere: its scale would fit nothing else."""
    for i, first in enumerate(samples[0]):
        if not first.is_floating_point() or first.numel() == 1:
            continue
        number = first.reshape(-1)[0]
        if all(bool((s[i] == number).all()) for s in samples):
            raise Invalid(
                f"input {i} of the calibration data is {float(number):g} everywhere",
                where=origin,
                why="ranges measured on a constant do not fit real inputs",
                fix="calibrate with real samples",
            )


def _as_sample(item: Any, names: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return the tensors of a sample in the order of the inputs; a dict may have more than the model takes."""
    if _is_mapping(item):
        by_name = item
        if names and all(name in by_name for name in names):
            return tuple(by_name[name] for name in names)
        return tuple(pytree.tree_leaves(dict(by_name)))
    if not is_sequence(item):
        return (item,)
    parts = list(item)
    nested = any(_is_mapping(part) for part in parts)
    return tuple(pytree.tree_leaves([dict(p) if _is_mapping(p) else p for p in parts]) if nested else parts)


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    return isinstance(value, Iterable)


def _is_dataset(value: object) -> TypeGuard[Sequence[Any]]:
    """Tell whether the samples are found by their number, as in a Dataset of torch, which need not be iterable."""
    return hasattr(value, "__len__") and isinstance(value, Dataset)


def _list_items(calibration: Iterable[Any]) -> Iterator[Any]:
    if _is_dataset(calibration):
        yield from (calibration[i] for i in range(len(calibration)))
    else:
        yield from calibration


def _drop_labels(
    found: list[tuple[tuple[Any, ...], str]], example: Sequence[torch.Tensor], notes: list[str] | None
) -> list[tuple[tuple[Any, ...], str]]:
    """Drop what follows the inputs in each sample, such as the label, if the inputs themselves fit."""
    extra = [sample for sample, _ in found if len(sample) > len(example)]
    if not extra or not all(
        isinstance(part, torch.Tensor) and part.dtype == want.dtype and _count_rows(part, want) is not None
        for sample in extra
        for part, want in zip(sample, example, strict=False)
    ):
        return found
    if notes is not None:
        used = "first" if len(example) == 1 else f"first {len(example)}"
        notes.append(f"calibration samples have {len(extra[0])} elements: the model takes the {used}")
    return [(sample[: len(example)], where) for sample, where in found]


def _split_batches(
    found: list[tuple[tuple[Any, ...], str]], example: Sequence[torch.Tensor], notes: list[str] | None
) -> list[tuple[tuple[Any, ...], str]]:
    """Cut batches into samples of the model's own batch size, and give an image without a batch one."""
    samples: list[tuple[tuple[Any, ...], str]] = []
    dropped = 0
    for sample, where in found:
        rows = {_count_rows(part, want) for part, want in zip(sample, example, strict=False)}
        count = rows.pop() if len(rows) == 1 and len(sample) == len(example) else None
        if count is None:
            samples.append((sample, where))
            continue
        sizes = [int(want.shape[0]) if want.ndim else 1 for want in example]
        cut = count // sizes[0]
        dropped += count - cut * sizes[0]
        for i in range(cut):
            parts = zip(sample, example, sizes, strict=True)
            pieces = tuple(
                part.reshape(want.shape) if part.ndim < want.ndim else part[i * n : (i + 1) * n]
                for part, want, n in parts
            )
            samples.append((pieces, f"{where}[{i}]" if cut > 1 else where))
    if dropped and notes is not None:
        notes.append(f"{dropped:,} calibration samples were not used: they do not fill a batch of the model")
    # Batches that are all too small are refused by their shape.
    return samples or found


def _count_rows(part: Any, want: torch.Tensor) -> int | None:
    """Count the rows of a batch that can be cut into inputs of this shape; None if it cannot."""
    shape, wanted = tuple(getattr(part, "shape", ())), tuple(want.shape)
    if not wanted:
        return None
    if wanted[0] == 1 and shape == wanted[1:]:
        return 1
    return shape[0] if shape and shape[1:] == wanted[1:] else None


def _suggest_shape(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    last = (*wanted[2:], *wanted[1:2])
    for start, axes in (((), "2, 0, 1"), (shape[:1], "0, 3, 1, 2"), (shape[:2], "0, 1, 4, 2, 3")):
        if len(wanted) == 4 and shape == (*start, *last):
            return f"channels are last: use `x.permute({axes})` (numpy: `x.transpose({axes})`)"
    return "reshape the sample, one sample per batch of the example input"


def _suggest_dtype(given: Any, wanted: torch.dtype) -> str:
    name = _name(wanted)
    how = f".to(torch.{name})" if isinstance(given, torch.Tensor) else f".astype({name!r})"
    pixels = getattr(given, "dtype", None) in (torch.uint8, np.dtype(np.uint8)) and wanted.is_floating_point
    return f"convert it with {how}" + (", and scale pixels as in training (often `/ 255`)" if pixels else "")


def _limit_samples(
    samples: Iterator[tuple[tuple[Any, ...], str]], origin: str, max_memory: int | None
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield samples from files, up to what memory is likely to hold."""
    limit = DEFAULT if max_memory is None else max_memory
    size = 0
    for sample, where in samples:
        size += SAMPLE_COST + sum(getattr(x, "nbytes", 0) for x in sample)
        if size > limit:
            raise Invalid(
                f"the calibration data is larger than {limit:,} bytes",
                where=origin,
                fix=Hint(
                    "pass fewer samples (a few hundred are enough), or allow more memory with `max_memory`",
                    "pass fewer samples (a few hundred are enough), or allow more memory with `--max-memory`",
                ),
            )
        yield sample, where


def _read_path(
    path: Path, example: Sequence[torch.Tensor], max_memory: int | None, names: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], str]]:
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
        if not files:
            raise Invalid(f"`{path}` contains no {', '.join(SUFFIXES)} file", fix="put one sample into each file")
        for file in files:
            yield from _read_file(file, example, max_memory, names)
    elif path.is_file():
        yield from _read_file(path, example, max_memory, names)
    else:
        raise Invalid(f"there is no calibration data at `{path}`", fix="pass an existing file or folder")


def _read_file(
    path: Path, example: Sequence[torch.Tensor], max_memory: int | None, names: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], str]]:
    if path.suffix not in SUFFIXES:
        raise Invalid(f"unknown calibration file type: `{path.name}`", fix=f"use {', '.join(SUFFIXES)}")
    try:
        loaded, _ = read_content(path, max_memory)
    except Invalid as error:
        why = ": ".join(text for text in (error.what, error.why) if text)
        raise Invalid(
            f"`{path.name}` cannot be read as calibration data", where=str(path), why=why, fix=error.fix
        ) from error
    if _is_mapping(loaded):
        loaded = _choose_arrays(loaded, example, names, path)
    yield from _unroll(loaded, example, path.name)


def _choose_arrays(loaded: Mapping[str, Any], example: Sequence[torch.Tensor], names: Sequence[str], path: Path) -> Any:
    """Choose the arrays of a file that are inputs: by their names, or all of them."""
    if names and all(name in loaded for name in names):
        return tuple(loaded[name] for name in names)
    if len(loaded) != len(example):
        inputs = f" ({', '.join(f'`{name}`' for name in names)})" if names else ""
        raise Invalid(
            f"`{path.name}` has the arrays {', '.join(f'`{name}`' for name in loaded)}, "
            f"the model takes {len(example)} input{'' if len(example) == 1 else 's'}{inputs}",
            where=str(path),
            fix="give the arrays the names of the inputs, or keep only the inputs in the file",
        )
    return tuple(loaded.values())


def _unroll(loaded: Any, example: Sequence[torch.Tensor], name: str) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the samples in one sample, a list of samples, or tensors with an additional leading sample dimension."""
    if is_list(loaded) and loaded and is_sequence(loaded[0]):
        yield from ((_as_sample(item), f"{name}[{i}]") for i, item in enumerate(loaded))
        return
    sample = _as_sample(loaded)
    if is_list(loaded) and len(example) == 1:
        yield from (((item,), f"{name}[{i}]") for i, item in enumerate(loaded))
        return
    counts = {_count(t, want) for t, want in zip(sample, example, strict=False)}
    count = counts.pop() if len(counts) == 1 and len(sample) == len(example) else None
    if count is None:
        yield sample, name
        return
    for i in range(count):
        yield tuple(t[i].reshape(want.shape) for t, want in zip(sample, example, strict=True)), f"{name}[{i}]"


def _count(tensor: Any, want: torch.Tensor) -> int | None:
    """Count the samples that a tensor stacks: [n, *shape], or [n, ...] where the model's batch is 1."""
    shape: tuple[int, ...] = tuple(getattr(tensor, "shape", ()))
    wanted = tuple(want.shape)
    if shape == wanted:
        return None
    stacks = shape[1:] == wanted or (wanted[:1] == (1,) and shape[1:] == wanted[1:])
    return shape[0] if stacks and shape else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
