"""Draws a random graph: templates of the registry on whatever tensors torch lets them take."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from support.fuzzer.graph import Graph, Leaf, Ref, Step, call, draw, find_op
from support.fuzzer.templates import DTYPES, MOST_ELEMENTS, Slot, Template, count, names, templates
from tosaic.ops import registry

#: numbers beyond these are of no interest: the ranges of quantization would be nothing but them
MOST_FLOAT, MOST_INTEGER = 300.0, 1 << 15
MOST_INPUTS = 6
#: torch.export takes minutes for the 200 parts of a tensor
MOST_OUTPUTS = 16
#: steps of a graph: about 8 in the mean, where most of a check's time is spent once per graph, not per step
SMALLEST, LARGEST = 3, 30
#: what gives other numbers at every call, or a tensor whose shape depends on numbers
_REFUSED = torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape


#: functions that are infinite at -1 and 1: next to them the last bit of the input decides the result
_POLES = frozenset({"erfinv", "special_erfinv", "atanh", "arctanh"})
#: the longest row that torch sorts without changing the order of equal numbers
MOST_STABLE = 16
#: operators that return where the largest or smallest number is
_PLACES = frozenset({"argmax", "argmin", "max", "min"})
_ORDERS = frozenset({"topk", "sort", "kthvalue", "median"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _has_tie(x: torch.Tensor, dim: Any, count: int = 1) -> bool:
    """Whether it is open which numbers are the largest along a dimension, or of all: some are equal but for rounding.

    Several numbers in order may be rounded to 8 bits before.
    """
    rows = x.reshape(1, -1) if dim is None or not x.dim() else x.movedim(int(dim), -1)
    largest = rows.sort(-1, descending=True).values[..., : count + 1]
    first, second = largest[..., :-1], largest[..., 1:]
    near = 1e-5 * first.abs().clamp(min=1.0) if count == 1 else 5e-3 * (x.max() - x.min())
    return bool((first - second <= near).any())


def _is_noise(step: Step, result: torch.Tensor, values: Mapping[Ref, torch.Tensor]) -> bool:
    """Whether torch's own rounding is more than a third of what is allowed, as float64 shows.

    That is so for equal numbers that are normalized, where nothing else is left, and for long rows of an image, whose
    positions torch computes in float32.
    """
    if result.dtype is not torch.float32 or not ("_norm" in step.op or "upsample" in step.op):
        return False
    try:
        exact = call(step, lambda r: values[r].double() if values[r].is_floating_point() else values[r].clone())
    except (RuntimeError, NotImplementedError):
        return False
    exact = exact[0] if isinstance(exact, (tuple, list)) else exact
    return float((exact - result).abs().max()) > 3e-6 * max(1.0, float(result.abs().max()))


def _is_odd(step: Step, values: Mapping[Ref, torch.Tensor]) -> bool:
    """Whether an image is resized by a factor that is not positive, or to another size than its factors say.

    Torch's kernels read any memory then, and its own decompositions have other numbers.
    """
    if "upsample" not in step.op:
        return False
    factors = [a for a in step.args if isinstance(a, float)]
    if any(isinstance(a, float) and a <= 0 for a in tree_leaves(step.args)):
        return True
    given, sizes = values[step.args[0]].shape[2:], step.args[1]
    return bool(factors) and [int(n * f) for n, f in zip(given, factors, strict=False)] != list(sizes)


def _writes_twice(step: Step, values: Mapping[Ref, torch.Tensor]) -> bool:
    """Whether a call writes two numbers to one place: torch keeps any of them."""
    name = step.op.split(".")[1].strip("_")
    if name == "scatter" and isinstance(step.args[3], Ref):
        dim, rows = int(step.args[1]), values[step.args[2]]
        return bool((rows.sort(dim).values.diff(dim=dim) == 0).any()) if rows.dim() else False
    if name == "index_copy":
        return _has_twins([values[step.args[2]]])
    if name == "index_put" and not any(a is True for a in step.args[3:]):
        return _has_twins([values[r] for r in step.args[1] if isinstance(r, Ref)])
    return False


def _has_twins(indices: list[torch.Tensor]) -> bool:
    """Whether some position occurs twice; a mask has every position once."""
    if any(i.dtype is torch.bool for i in indices):
        return False
    places = torch.stack([i.reshape(-1) for i in torch.broadcast_tensors(*indices)])
    return places.unique(dim=1).shape[1] < places.shape[1]


def _overlaps(x: torch.Tensor) -> bool:
    """Whether two elements share memory: a call that changes both in place has no defined result."""
    places = torch.zeros(x.shape)
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        places = places + (torch.arange(size) * stride).reshape(-1, *[1] * (x.dim() - dim - 1))
    return places.unique().numel() < x.numel()


class Generator:
    """The graph so far, with the tensors that torch computes for it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.leaves: list[Leaf] = []
        self.steps: list[Step] = []
        self.values: dict[Ref, torch.Tensor] = {}
        self.constants: set[int] = set()
        self.wanted = min(LARGEST, SMALLEST + int(self.random.expovariate(1 / 5.5)))

    def generate(self) -> Graph:
        tries = 0
        for _ in range(self.random.randint(1, 3)):
            self._add_leaf("input", self._any_shape(), self._any_dtype())
        while len(self.steps) < self.wanted and tries < 40 * self.wanted:
            tries += 1
            self._extend()
        if self.random.random() < 0.1:
            self._add_leaf("input", self._any_shape(), torch.float32)
        return Graph(tuple(self.leaves), tuple(self.steps), self._choose_outputs())

    def _any_dtype(self) -> torch.dtype:
        others = (torch.int32, torch.int64, torch.bool, torch.int8)
        return torch.float32 if self.random.random() < 0.85 else self.random.choice(others)

    def _any_shape(self) -> tuple[int, ...]:
        rank = self.random.choice((0, 1, 2, 2, 3, 3, 4, 4, 4, 4, 5, 6))
        largest = (0, 33, 17, 9, 8, 4, 3)[rank]
        return tuple(self.random.choice((1, 2, 3, self.random.randint(1, largest))) for _ in range(rank))

    def _add_leaf(
        self,
        kind: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        low: float = -2.0,
        high: float = 2.0,
        mask: bool = False,
    ) -> Ref:
        if dtype is torch.int8 and (low, high) == (-2.0, 2.0):
            low, high = -100.0, 100.0
        if kind == "piece" and not shape:
            kind = "parameter"
        last = len(shape) == 4 and kind != "piece" and self.random.random() < 0.15
        leaf = Leaf(kind, shape, dtype, low, high, self.random.randrange(1 << 16), last, mask)
        self.leaves.append(leaf)
        ref = Ref("x", len(self.leaves) - 1)
        self.values[ref] = draw(leaf)[1:] if kind == "piece" else draw(leaf)
        if kind != "input":
            self.constants.add(self.values[ref].untyped_storage().data_ptr())
        return ref

    def _extend(self) -> None:
        """Try to add one call; without effect if torch or the generator's own rules refuse it."""
        name = self.random.choice(names())
        found = templates(name, self.random.randrange(count(name)), self.random.random() < 0.15)
        own = [t for t in found if t.record == name]
        if not found:
            return
        template = self.random.choice(own if own and self.random.random() < 0.8 else found)
        if any(tag in find_op(template.op).tags for tag in _REFUSED):
            return
        mark = len(self.leaves), len(self.steps)
        step = self._fill(template)
        if step is None or not self._try(step):
            self._return_to(*mark)

    def _return_to(self, leaves: int, steps: int) -> None:
        del self.leaves[leaves:], self.steps[steps:]
        self.values = {r: v for r, v in self.values.items() if r.number < (leaves if r.kind == "x" else steps)}

    def _fill(self, template: Template) -> Step | None:
        loose = self.random.random() < 0.75
        mutate = self.random.random() < 0.15

        def put(value: Any) -> Any:
            if isinstance(value, Slot):
                return self._tensor(value, loose)
            if isinstance(value, list):
                return [put(v) for v in value]
            return self._mutate(value) if mutate else value

        op = self._variant(template)
        args, kwargs = tuple(put(a) for a in template.args), tuple((k, put(v)) for k, v in template.kwargs)
        return Step(op, args, kwargs)

    def _variant(self, template: Template) -> str:
        """The in-place form now and then, where the record has one."""
        packet, name, variant = template.op.split(".")
        twin = f"{packet}.{name}_.{variant}"
        if self.random.random() < 0.12 and registry().find(twin) is not None:
            return twin
        return template.op

    def _mutate(self, value: Any) -> Any:
        if self.random.random() < 0.5:
            return value
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self.random.choice((value + 1, value - 1, -1, -2, 0, 1, 2, 3))
        if isinstance(value, float):
            return self.random.choice((value, -value, value * 0.5, 0.0, 1.0))
        return value

    def _tensor(self, slot: Slot, loose: bool) -> Ref:
        """A tensor for a slot: one that is there, one that is there in another shape, or a new leaf."""
        same = [r for r, v in self.values.items() if v.dtype is slot.dtype and not self._is_constant(r)]
        fits = [r for r in same if tuple(self.values[r].shape) == slot.shape]
        dice = self.random.random()
        if slot.constant and dice < 0.85:
            return self._constant(slot)
        if loose and same and dice < 0.8:
            return self._recent(same)
        if fits and dice < 0.9:
            return self._recent(fits)
        if same and slot.dtype is torch.float32 and self.random.random() < 0.4:
            return self._reshape(self._recent(same), slot.shape)
        if len([x for x in self.leaves if x.kind == "input"]) < MOST_INPUTS:
            return self._add_leaf("input", slot.shape, slot.dtype, slot.low, slot.high, slot.mask)
        return self._constant(slot)

    def _constant(self, slot: Slot) -> Ref:
        kinds = ("parameter", "buffer", "piece") if slot.dtype is torch.float32 and not slot.mask else ("buffer",)
        kept = [
            r
            for r, v in self.values.items()
            if r.kind == "x" and self._is_constant(r) and (tuple(v.shape), v.dtype) == (slot.shape, slot.dtype)
        ]
        if kept and slot.dtype is torch.float32 and self.random.random() < 0.2:
            return self.random.choice(kept)
        return self._add_leaf(self.random.choice(kinds), slot.shape, slot.dtype, slot.low, slot.high, slot.mask)

    def _is_constant(self, ref: Ref) -> bool:
        return self.values[ref].untyped_storage().data_ptr() in self.constants

    def _recent(self, refs: list[Ref]) -> Ref:
        """Later results more often than early ones: chains, and still diamonds and reuse."""
        return refs[-1 - min(int(self.random.expovariate(0.4)), len(refs) - 1)]

    def _reshape(self, ref: Ref, shape: tuple[int, ...]) -> Ref:
        """A tensor cut or repeated to the shape that a template wants."""
        size, have = 1, self.values[ref].numel()
        for d in shape:
            size *= d
        steps: list[tuple[str, tuple[Any, ...]]] = []
        if have != size:
            steps.append(("aten.reshape.default", ([-1],)))
            if have < size:
                steps.append(("aten.repeat.default", ([-(-size // max(have, 1))],)))
            steps.append(("aten.slice.Tensor", (0, 0, size)))
        steps.append(("aten.reshape.default", (list(shape),)))
        for op, rest in steps:
            step = Step(op, (ref, *rest))
            if not self._try(step):
                return ref
            ref = Ref("v", len(self.steps) - 1)
        return ref

    def _try(self, step: Step) -> bool:
        """Add a call if torch takes it and its numbers are of use."""
        if _is_odd(step, self.values) or self._is_promoted(step):
            return False
        schema = find_op(step.op)._schema
        before = {r: v.clone() for r, v in self.values.items()}
        if schema.is_mutable:
            changed = step.args[0]
            if not isinstance(changed, Ref) or self._is_constant(changed) or _overlaps(self.values[changed]):
                return False
        try:
            with torch.no_grad():
                result = call(step, lambda r: self.values[r])
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
            self._restore(before)
            return False
        tensors = list(result) if isinstance(result, (tuple, list)) else [result]
        useful = bool(tensors) and all(isinstance(t, torch.Tensor) and self._is_useful(t) for t in tensors)
        # A norm in training changes its statistics, of which its schema says nothing.
        hidden = not schema.is_mutable and any(not _is_same(v, before[r]) for r, v in self.values.items())
        if not useful or hidden or self._is_vague(step, tensors[0], before):
            self._restore(before)
            return False
        self.steps.append(step)
        many = isinstance(result, (tuple, list))
        for i, tensor in enumerate(tensors):
            self.values[Ref("v", len(self.steps) - 1, i if many else None)] = tensor
        return True

    def _is_promoted(self, step: Step) -> bool:
        """Whether exir or torch itself gives another type: int64 for an integer without dimensions and a number."""
        tensors = [self.values[r] for r in step.refs()]
        if "index_select" in step.op and not tensors[0].dim():
            # Torch's own out variant gives it a dimension.
            return True
        numbers = any(type(a) is int for a in step.args)
        return numbers and all(not t.dim() and t.dtype in (torch.int32, torch.int8) for t in tensors)

    def _restore(self, before: dict[Ref, torch.Tensor]) -> None:
        """Undo what a refused call has changed, in place: constants are known by their memory."""
        for ref, value in self.values.items():
            if not _is_same(value, before[ref]):
                value.copy_(before[ref])

    def _is_vague(self, step: Step, result: torch.Tensor, before: Mapping[Ref, torch.Tensor]) -> bool:
        """Whether another right implementation may give other numbers."""
        return _is_noise(step, result, before) or self._is_close(step, before) or _writes_twice(step, before)

    def _is_close(self, step: Step, before: Mapping[Ref, torch.Tensor]) -> bool:
        """Whether floats are compared that are equal but for rounding, or a number is next to a pole."""
        operands = [a for a in step.args[:2] if isinstance(a, Ref)]
        name = step.op.split(".")[1].strip("_")
        if name in _POLES:
            return float(before[operands[0]].abs().max()) > 0.98
        if name == "tan":
            return float(before[operands[0]].cos().abs().min()) < 0.05
        if name in _PLACES and (name.startswith("arg") or step.op.endswith(".dim")):
            x = self.values[operands[0]]
            dim = step.args[1] if len(step.args) > 1 else None
            return x.is_floating_point() and _has_tie(x.double() if "max" in name else -x.double(), dim)
        if name in _ORDERS and self.values[operands[0]].dim():
            return self._is_order_open(name, step)
        if name not in _COMPARISONS or len(set(operands)) < 2:
            return False
        a, b = (self.values[r].double() for r in operands)
        near = (a - b).abs() <= 1e-5 * a.abs().clamp(min=1.0)
        return self.values[operands[0]].is_floating_point() and float(near.double().mean()) > 0.002

    def _is_order_open(self, name: str, step: Step) -> bool:
        """Whether a call returns positions of equal numbers: torch takes any of them."""
        x, numbers = self.values[step.refs()[0]].double(), [a for a in step.args[1:] if type(a) is int]
        count = numbers.pop(0) if name in ("topk", "kthvalue") else 0
        dim = numbers[0] if numbers else -1
        if name == "topk":
            return _has_tie(x, dim, count) or _has_tie(-x, dim, count)
        # It keeps the order of equal numbers in short rows.
        return (name != "sort" or x.shape[dim] > MOST_STABLE) and _has_tie(x, dim, x.shape[dim])

    def _is_useful(self, tensor: torch.Tensor) -> bool:
        if tensor.dtype not in DTYPES or not 0 < tensor.numel() <= MOST_ELEMENTS or tensor.dim() > 6:
            return False
        if tensor.dtype is torch.bool:
            return True
        if tensor.is_floating_point():
            finite = bool(torch.isfinite(tensor).all())
            spread = tensor.numel() == 1 or bool(tensor.max() - tensor.min() > 1e-3) or self.random.random() < 0.1
            return finite and float(tensor.abs().max()) <= MOST_FLOAT and spread
        return int(tensor.to(torch.int64).abs().max()) <= MOST_INTEGER

    def _is_mask(self, ref: Ref) -> bool:
        return self.values[ref].dtype is torch.bool

    def _choose_outputs(self) -> tuple[Ref, ...]:
        """What nothing reads, mostly; now and then a result that is read too, a leaf, or one result twice."""
        read = {r for step in self.steps for r in step.refs()}
        results = [r for r in self.values if r.kind == "v"]
        leaves = [r for r in results if r not in read]
        outputs = [r for r in leaves if self.random.random() < 0.9]
        # Masks that are used and returned have their own way through a compiler.
        outputs += [r for r in results if r in read and self.random.random() < (0.5 if self._is_mask(r) else 0.1)]
        if self.random.random() < 0.1:
            outputs.append(self.random.choice([r for r in self.values if r.kind == "x"]))
        if outputs and self.random.random() < 0.1:
            outputs.append(self.random.choice(outputs))
        self.random.shuffle(outputs)
        return tuple(outputs[:MOST_OUTPUTS] or leaves[:1] or list(self.values)[:1])


def generate(seed: int) -> Graph:
    """The graph of a seed, the same every time."""
    return Generator(seed).generate()
