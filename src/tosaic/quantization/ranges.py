"""Detects nearly empty calibration ranges: a few outliers leave hardly any quantized values to the others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import GraphModule, Node

from tosaic.fx.arrays import to_numpy
from tosaic.fx.source import overload, source_line
from tosaic.quantization.observer import HistogramObserver
from tosaic.quantization.prepare import CONSTANT

#: the share of numbers that is examined, and the part of a range that is too small for them
_MOST, _LITTLE = 0.99, 0.01
#: number of bins of a range, to see which parts of it are used
_PARTS = 1000
#: fewer distinct numbers than this prove nothing, and 8 bits can distinguish them
_FEWEST = 64
#: how many numbers of a tensor are kept for each sample, and in total
_PER_SAMPLE, _IN_ALL = 4096, 16384
_LEVELS = 256


@dataclass
class _Seen:
    """What an observer has seen: some of the numbers, and their range, unless the observer knows it."""

    observer: Any
    node: Node
    low: float = 0.0
    high: float = 0.0
    kept: list[torch.Tensor] = field(default_factory=list)
    count: int = 0

    def add(self, x: torch.Tensor) -> None:
        if not isinstance(self.observer, HistogramObserver):
            low, high = torch.aminmax(x.detach())
            self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        if self.count < _IN_ALL:
            flat = x.detach().reshape(-1)
            part = flat[:: -(-flat.numel() // _PER_SAMPLE)].clone()
            self.kept.append(part)
            self.count += part.numel()

    def find_range(self) -> tuple[float, float]:
        """Return the smallest and the largest number; zero is always between them."""
        known = isinstance(self.observer, HistogramObserver)
        low, high = (self.observer.min_val, self.observer.max_val) if known else (self.low, self.high)
        return min(0.0, float(low)), max(0.0, float(high))

    def measure(self, width: float) -> float:
        """Return the part of a range of this width that holds most of the distinct numbers; 1 if it is not little."""
        numbers: NDArray[np.float32] = to_numpy(torch.cat(self.kept)).astype(np.float32)
        low = self.find_range()[0]
        if width <= 0.0 or _is_spread(numbers, low, width):
            return 1.0
        numbers = np.unique(numbers)
        if numbers.size < _FEWEST:
            return 1.0
        parts = _find_parts(numbers, low, width)
        counts = np.sort(np.unique(parts, return_counts=True)[1])[::-1]
        sums = np.cumsum(counts)
        needed = int((sums < _MOST * numbers.size).sum()) + 1
        return needed / _PARTS


def _find_parts(numbers: NDArray[np.float32], low: float, width: float) -> NDArray[np.float32]:
    return np.floor((numbers - np.float32(low)) * np.float32(_PARTS / width))


def _is_spread(numbers: NDArray[np.float32], low: float, width: float) -> bool:
    """Tell whether so many parts are used that a few cannot hold most of the numbers: sooner than to sort them."""
    if not np.isfinite(width):
        return False
    used = np.zeros(_PARTS + 2, bool)
    used[np.clip(_find_parts(numbers, low, width), -1, _PARTS).astype(np.intp)] = True
    return int(used.sum()) - _LITTLE * _PARTS > (1 - _MOST) * numbers.size


@contextmanager
def watch(module: GraphModule, notes: list[str]) -> Generator[None]:
    """Watch what a prepared module observes while it is calibrated, and note the ranges that are nearly empty."""
    seen: dict[torch.nn.Module, _Seen] = {}
    for node in module.graph.find_nodes(op="call_module"):
        observer, observed = module.get_submodule(str(node.target)), node.args[0]
        if isinstance(observed, Node) and not observed.meta.get(CONSTANT, False) and _has_few_bits(observer):
            seen.setdefault(observer, _Seen(observer, observed))
    handles = [o.register_forward_pre_hook(_make_hook(s)) for o, s in seen.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    notes.extend(_describe(seen))


def _make_hook(seen: _Seen) -> Callable[[torch.nn.Module, tuple[object, ...]], None]:
    def hook(_: torch.nn.Module, inputs: tuple[object, ...]) -> None:
        if isinstance(inputs[0], torch.Tensor) and inputs[0].numel():
            seen.add(inputs[0])

    return hook


def _has_few_bits(observer: object) -> bool:
    """Tell whether an observer is for 8 bits or fewer: 16 bits have room for such a range."""
    low, high = getattr(observer, "quant_min", None), getattr(observer, "quant_max", None)
    return low is not None and high is not None and high - low < _LEVELS and hasattr(observer, "calculate_qparams")


def _describe(seen: dict[torch.nn.Module, _Seen]) -> Iterator[str]:
    empty: set[Node] = set()
    observed = {one.node for one in seen.values()}
    for observer, one in seen.items():
        if not one.kept:
            continue
        low, high = one.find_range()
        if one.measure(high - low) >= _LITTLE:
            continue
        # An observer may have ignored outliers.
        scale, _ = _get_scale(observer)
        used = one.measure(scale * (_LEVELS - 1))
        if used >= _LITTLE:
            continue
        known = any(n in empty for n in _list_producers(one.node, observed))
        empty.add(one.node)
        if not known:
            yield _describe_range(one, used)


def _get_scale(observer: Any) -> tuple[float, int]:
    scale, zero_point = observer.calculate_qparams()
    return float(scale.reshape(-1)[0]), int(zero_point.reshape(-1)[0])


def _list_producers(node: Node, observed: set[Node]) -> Iterator[Node]:
    """Yield the observed nodes that a node depends on, through observers and what is fused with the node."""
    found = set(node.all_input_nodes)
    left = list(found)
    while left:
        producer = left.pop()
        if producer in observed:
            yield producer
        else:
            left += [n for n in producer.all_input_nodes if n not in found]
            found.update(producer.all_input_nodes)


def _describe_range(seen: _Seen, used: float) -> str:
    name = overload(seen.node) or "an input"
    line = source_line(seen.node)
    low, high = seen.find_range()
    return (
        f"`{seen.node.name}` ({name}){f' at {line}' if line else ''}: its range with zero is {low:g} to "
        f"{high:g}, and {_MOST:.0%} of the numbers use {max(used, 1 / _PARTS):.1%} of that range, so 8 bits hardly "
        "tell them apart; mask with booleans (masked_fill, torch.where) or with a smaller constant such as -20, or "
        "clamp what is extreme"
    )
