"""Shapes and permutations of views: what a reshape of a permuted value means for the value itself."""

from __future__ import annotations

import itertools

Shape = tuple[int, ...]


def join(viewed: Shape, perm: Shape, shape: Shape) -> Shape | None:
    """Return the axes of `shape` in the order of the value's, if the value only has to split and merge its axes.

    `viewed` is the value's shape after `perm`. None if dimensions would be merged that are not neighbors in the value.
    """
    parts = _refine(viewed, shape)
    if parts is None:
        return None
    cuts, joints = parts
    stored = [part for axis in range(len(perm)) for part in cuts[perm.index(axis)]]
    place = {part: at for at, part in enumerate(stored)}
    for parts_of in joints:
        if any(place[b] != place[a] + 1 for a, b in itertools.pairwise(parts_of)):
            return None
    full = sorted((a for a, p in enumerate(joints) if p), key=lambda a: place[joints[a][0]])
    if full == sorted(full):
        return tuple(range(len(shape)))
    return tuple([a for a, p in enumerate(joints) if not p] + full)


def _refine(before: Shape, after: Shape) -> tuple[list[list[int]], list[list[int]]] | None:
    """Enumerate the common factors of two shapes of one size: those of each dimension before, and of each after."""
    cuts: list[list[int]] = [[] for _ in before]
    joints: list[list[int]] = [[] for _ in after]
    old = [(i, d) for i, d in enumerate(before) if d != 1]
    new = [(i, d) for i, d in enumerate(after) if d != 1]
    number = 0
    while old and new:
        (i, left), (j, right) = old.pop(0), new.pop(0)
        if max(left, right) % min(left, right):
            return None
        cuts[i].append(number)
        joints[j].append(number)
        number += 1
        if left > right:
            old.insert(0, (i, left // right))
        elif right > left:
            new.insert(0, (j, right // left))
    return cuts, joints


def simplify(shape: Shape, perm: Shape) -> tuple[Shape, Shape]:
    """Return the same transposition in as few dimensions as possible: without size one, neighbors merged."""
    runs: list[list[int]] = []
    for axis in (p for p in perm if shape[p] != 1):
        previous = runs[-1][-1] if runs else None
        if previous is not None and axis > previous and all(shape[a] == 1 for a in range(previous + 1, axis)):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    order = sorted(range(len(runs)), key=lambda r: runs[r][0])
    sizes = [1] * len(runs)
    for r, run in enumerate(runs):
        for axis in run:
            sizes[r] *= shape[axis]
    return tuple(sizes[r] for r in order), tuple(order.index(r) for r in range(len(runs)))
