"""Makes a failing graph small: fewer outputs, fewer steps, fewer leaves, plainer leaves, the same failure."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from support.fuzzer.graph import Graph, Leaf, Model, Ref, Step, example, map_refs, prune, rewire

#: whether a graph still shows the failure
Fails = Callable[[Graph], bool]


def shrink(graph: Graph, fails: Fails, seconds: float = 120.0) -> Graph:
    """The smallest graph that was found in the CPU time given."""
    end = time.process_time() + seconds
    best = graph
    changed = True
    while changed and time.process_time() < end:
        changed = False
        for candidate in _candidates(best):
            if time.process_time() > end:
                break
            if candidate != best and _runs(candidate) and fails(candidate):
                best, changed = candidate, True
                break
    return best


def _runs(graph: Graph) -> bool:
    try:
        with torch.no_grad():
            Model(graph).eval()(*example(graph))
    except Exception:
        return False
    return True


def _candidates(graph: Graph) -> Iterator[Graph]:
    """Smaller graphs, the boldest first."""
    yield prune(graph)
    yield from _windows(graph)
    for size in _sizes(len(graph.outputs)):
        for start in range(0, len(graph.outputs), size):
            rest = graph.outputs[:start] + graph.outputs[start + size :]
            if rest:
                yield prune(replace(graph, outputs=rest))
    yield from _shorter(graph)
    for size in _sizes(len(graph.steps)):
        for start in range(0, len(graph.steps), size):
            smaller = _without(graph, set(range(start, min(start + size, len(graph.steps)))))
            if smaller is not None:
                yield smaller
    yield from _plainer(graph)


def _windows(graph: Graph) -> Iterator[Graph]:
    """A few neighboring steps alone, all that they give as outputs: most failures need no more."""
    count = len(graph.steps)
    for size in (s for s in (1, 2, 4, 8) if s < count):
        for start in range(0, count - size + 1, max(1, size // 2)):
            window = range(start, start + size)
            outputs = tuple(r for r in _values(graph) if r.number in window)
            smaller = _without(replace(graph, outputs=outputs), set(range(count)) - set(window))
            if smaller is not None:
                yield smaller


def _sizes(count: int) -> Iterator[int]:
    size = count // 2
    while size >= 1:
        yield size
        size //= 2


def _shorter(graph: Graph) -> Iterator[Graph]:
    """Only one of the intermediate results as output."""
    if len(graph.steps) < 2:
        return
    shapes = _values(graph)
    for ref in shapes:
        if ref.kind == "v" and ref.number < len(graph.steps) - 1:
            yield prune(replace(graph, outputs=(ref,)))


def _values(graph: Graph) -> dict[Ref, torch.Tensor]:
    """Every tensor of the graph."""
    found: dict[Ref, torch.Tensor] = {}

    class Recorder(Model):
        pass

    refs = [Ref("v", i) for i in range(len(graph.steps))]
    with torch.no_grad():
        model = Recorder(replace(graph, outputs=tuple(refs)))
        results = model(*example(graph))
    for ref, result in zip(refs, results, strict=True):
        if isinstance(result, torch.Tensor):
            found[ref] = result.clone()
        else:
            found.update({replace(ref, item=i): t.clone() for i, t in enumerate(result)})
    return found


def _without(graph: Graph, gone: set[int]) -> Graph | None:
    """The graph without some steps: fresh inputs stand for their results."""
    try:
        values = _values(graph)
    except Exception:
        return None
    kept = [i for i in range(len(graph.steps)) if i not in gone]
    place = {old: new for new, old in enumerate(kept)}
    leaves = list(graph.leaves)
    fresh: dict[Ref, Ref] = {}

    def move(ref: Ref) -> Ref:
        if ref.kind == "x":
            return ref
        if ref.number in place:
            return replace(ref, number=place[ref.number])
        if ref not in fresh:
            leaves.append(_leaf(values[ref], len(leaves)))
            fresh[ref] = Ref("x", len(leaves) - 1)
        return fresh[ref]

    steps: list[Step] = [rewire(graph.steps[i], move) for i in kept]
    outputs = tuple(move(r) for r in graph.outputs if r.kind == "x" or r.number in place)
    if not outputs:
        return None
    return prune(Graph(tuple(leaves), tuple(steps), outputs))


def _leaf(value: torch.Tensor, seed: int) -> Leaf:
    low, high = -2.0, 2.0
    if value.dtype is not torch.bool and value.numel():
        low, high = float(value.min()), float(value.max())
    last = value.dim() == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)
    return Leaf("input", tuple(value.shape), value.dtype, low, high, seed, last)


def _plainer(graph: Graph) -> Iterator[Graph]:
    for i, leaf in enumerate(graph.leaves):
        plainer = [replace(leaf, channels_last=False), replace(leaf, seed=0)]
        if leaf.kind == "piece":
            plainer.append(replace(leaf, kind="parameter"))
        for one in plainer:
            if one != leaf:
                yield replace(graph, leaves=(*graph.leaves[:i], one, *graph.leaves[i + 1 :]))
    for a, b in itertools.combinations(range(len(graph.leaves)), 2):
        x, y = graph.leaves[a], graph.leaves[b]
        if (x.kind, x.shape, x.dtype) == (y.kind, y.shape, y.dtype):
            same = Ref("x", a)
            steps = tuple(rewire(s, lambda r, b=b, same=same: same if r == Ref("x", b) else r) for s in graph.steps)
            outputs = map_refs(graph.outputs, lambda r, b=b, same=same: same if r == Ref("x", b) else r)
            yield prune(replace(graph, steps=steps, outputs=outputs))
