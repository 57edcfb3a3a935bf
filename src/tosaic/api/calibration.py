"""Calibration data: from an iterable, a file or a folder, checked before it can degrade quantization."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import torch

from tosaic.core.budget import DEFAULT
from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.engines.inputs import read_content
from tosaic.lower.arguments import is_sequence
from tosaic.lower.convert import is_list

Sample: TypeAlias = tuple[torch.Tensor, ...]

SUFFIXES = (".npz", ".npy", ".pt")
#: memory of a sample besides its numbers, in bytes
SAMPLE_COST = 1024


def read(
    calibration: Iterable[Any] | str | Path, example: Sequence[torch.Tensor], max_memory: int | None = None
) -> list[Sample]:
    """Read all samples and check each against the example inputs."""
    data: Any = calibration
    if isinstance(calibration, (str, Path)):
        origin = str(calibration)
        found = list(_limit_samples(_read_path(Path(calibration), example, max_memory), origin, max_memory))
    elif isinstance(data, torch.Tensor):
        raise Invalid("calibration is a single tensor", fix="pass a list of samples: calibration=[x1, x2, ...]")
    elif not isinstance(data, Iterable):
        raise Invalid(
            f"calibration is of type `{type(data).__name__}`", fix="pass a list of samples, a file or a folder"
        )
    else:
        found = [(_as_sample(item), f"sample {i}") for i, item in enumerate(calibration)]
        origin = "calibration"
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
                fix="reshape the sample, one sample per batch of the example input",
            )
        if tensor.dtype != want.dtype:
            if tensor.dtype == torch.float64 and want.dtype == torch.float32:
                tensor = tensor.to(torch.float32)
            else:
                raise Invalid(
                    f"input {i} of {where} is {_name(tensor.dtype)}, the model takes {_name(want.dtype)}",
                    where=where,
                    fix=f"convert it with .to(torch.{_name(want.dtype)})",
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


def _is_dict(value: object) -> TypeGuard[dict[object, object]]:
    return isinstance(value, dict)


def _as_sample(item: Any) -> tuple[Any, ...]:
    if _is_dict(item):
        return tuple(item.values())
    return tuple(item) if is_sequence(item) else (item,)


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
    path: Path, example: Sequence[torch.Tensor], max_memory: int | None
) -> Iterator[tuple[tuple[Any, ...], str]]:
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
        if not files:
            raise Invalid(f"`{path}` contains no {', '.join(SUFFIXES)} file", fix="put one sample into each file")
        for file in files:
            yield from _read_file(file, example, max_memory)
    elif path.is_file():
        yield from _read_file(path, example, max_memory)
    else:
        raise Invalid(f"there is no calibration data at `{path}`", fix="pass an existing file or folder")


def _read_file(
    path: Path, example: Sequence[torch.Tensor], max_memory: int | None
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
    yield from _unroll(loaded, example, path.name)


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
