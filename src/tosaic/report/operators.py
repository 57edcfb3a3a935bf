"""What an operator can do on each family of targets: from its record, its constraints and its samples."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from tosaic.core.errors import Invalid
from tosaic.core.targets import VGF, Target, find
from tosaic.lower.arguments import is_sequence
from tosaic.lower.registry import Constraint, Record
from tosaic.ops import registry

#: the families of a table: a target of each, and the samples that the tests run on it
FAMILIES: dict[str, tuple[Target, frozenset[str]]] = {
    "u55": (find("ethos-u55-128"), frozenset({"INT"})),
    "u65": (find("ethos-u65-512"), frozenset({"INT"})),
    "u85": (find("ethos-u85-256"), frozenset({"INT"})),
    "vgf": (VGF, frozenset({"INT", "FP"})),
    "TOSA INT": (find("TOSA-1.0+INT"), frozenset({"INT"})),
    "TOSA FP": (find("TOSA-1.0+FP"), frozenset({"FP"})),
}
#: what torch calls the operators of aten
_PREFIXES = ("torch.ops.", "torch.nn.functional.", "torch.nn.", "torch.Tensor.", "torch.", "nn.", "F.", "aten.")


@dataclass(frozen=True, slots=True)
class Support:
    """An operator on one family of targets.

    samples   how many of its samples are meant for the family, and how many of these the tests execute there
    how       how it runs: `lowered`, `a lookup table` (with one int8 input), `fused, or a lookup table` (into the
              operator before it), `decomposed`; empty if it does not
    """

    family: str
    how: str
    executed: int
    samples: int
    constraints: tuple[Constraint, ...]

    @property
    def verdict(self) -> str:
        """A few words for a report."""
        if not self.samples:
            return "no sample of its own"
        if not self.executed:
            return "not available"
        return f"verified by execution ({self.executed} of {self.samples} samples)"


def find_record(name: str) -> Record | None:
    """Find a record by its name, by an overload, or by a name of the operator in torch."""
    records, found = registry().records, registry().find(name)
    if found is not None or name in records:
        return found or records[name]
    short = name
    for prefix in _PREFIXES:
        short = short.removeprefix(prefix)
    full = registry().find(f"aten.{short}")
    if full is not None or short in records:
        return full or records[short]
    named = (r for r in records.values() if any(o.split(".")[1] == short for o in r.overloads))
    return next(named, None) or records.get(short.lower())


def refuse_name(name: str) -> Invalid:
    """Make the error for a name that is neither an operator nor a target, with the names that are close to it."""
    short = name.rpartition("aten.")[2].rpartition("functional.")[2].lower()
    near = difflib.get_close_matches(short, registry().records, n=3, cutoff=0.5)
    part = [known for known in registry().records if short in known or known in short]
    close = ", ".join(f"`{known}`" for known in dict.fromkeys([*near, *part[:3]]))
    fix = f"did you mean {close}? " if close else ""
    return Invalid(f"unknown operator or target `{name}`", fix=f"{fix}`tosaic ops` lists all operators")


def list_support(record: Record) -> list[Support]:
    """List what an operator can do on each family."""
    return [_describe(record, family, *of) for family, of in FAMILIES.items()]


def _describe(record: Record, family: str, target: Target, flavors: frozenset[str]) -> Support:
    meant = [sample for sample in record.samples() if flavors.intersection(sample.flavors)]
    executed = sum(sample.targets(target) for sample in meant)
    constraints = tuple(one for one in record.constraints if one.targets(target))
    how = _describe_lowering(record, "INT" in flavors) if executed or not meant else ""
    return Support(family, how, executed, len(meant), constraints)


def _describe_lowering(record: Record, quantized: bool) -> str:
    if quantized and record.pointwise:
        return "fused, or a lookup table" if record.bounds else "a lookup table"
    # A decomposition of data movement only narrows its indices; batch norm has one only without statistics.
    inner = quantized and not (record.moves or record.looks_up or record.quant == "exact")
    return "decomposed" if record.decompose is not None and (inner or record.lower is None) else "lowered"


def list_parts(record: Record) -> list[str]:
    """List the ATen operators that a decomposition may consist of; empty without one.

    They are the names of operators in its code: it takes a model to decompose one, and torch to make a model.
    """
    if record.decompose is None:
        return []
    known = dict.fromkeys(_find_operators(record.decompose))
    return [name for name in known if name not in record.overloads]


def _find_operators(function: Callable[..., Any]) -> Iterator[str]:
    seen: set[CodeType] = set()
    todo: list[Any] = [function]
    while todo:
        item = todo.pop(0)
        item = getattr(item, "__wrapped__", item)
        if not isinstance(item, FunctionType) or item.__code__ in seen:
            continue
        seen.add(item.__code__)
        names, texts = _read(item.__code__)
        todo += [item.__globals__[name] for name in names if name in item.__globals__]
        todo += [cell.cell_contents for cell in item.__closure__ or ()]
        for text in texts:
            full = next((f"aten.{text}{end}" for end in _ends(texts) if registry().find(f"aten.{text}{end}")), None)
            if full is not None:
                yield full


def _ends(texts: Sequence[str]) -> tuple[str, ...]:
    """List what may follow the text of a name: an overload that the code adds to several names."""
    return ("", *(text for text in texts if text.startswith(".")))


def _read(code: CodeType) -> tuple[list[str], list[str]]:
    """Read the global names and the texts in a function, and in the functions inside it."""
    names, texts = list(code.co_names), list[str]()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _read(constant)
            names, texts = names + inner[0], texts + inner[1]
        elif isinstance(constant, str):
            texts.append(constant)
        elif is_sequence(constant):
            texts += [text for text in constant if isinstance(text, str)]
    return names, texts
