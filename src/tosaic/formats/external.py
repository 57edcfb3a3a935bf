"""Programs whose Ethos-U delegates have their weights or commands in .ptd files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import blob, plain_json, ptd, pte
from tosaic.formats.pte import Delegate, Pte

#: The compile spec with the placement of each block outside the blob, under the name that ExecuTorch gives it.
PLACEMENTS = "external_block_placements"
SUFFIX = ".ptd"
#: Names of files next to a .pte, which it cannot have itself.
_RESERVED = {
    ".tosaic": "a sidecar",
    SUFFIX: "a data file",
    ".bpte": "a program with its test cases",
    ".etrecord": "an ETRecord",
}
#: Placements that are also file names.
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def check_name(path: Path, others: Mapping[str, str] = MappingProxyType({})) -> None:
    """Reject a file name for a program that says something else."""
    kind = {**_RESERVED, **others}.get(path.suffix)
    if kind is not None:
        why = f"a name ending in {path.suffix} is for {kind}"
        raise Invalid(f"cannot write a program to `{path}`", why=why, fix="use a file name ending in .pte")


def read(data: bytes, files: Sequence[bytes] = (), *, max_memory: int | None = None) -> Pte:
    """Read an untrusted .pte with its .ptd files."""
    return join(pte.read(data, max_memory=max_memory), files, max_memory=max_memory)


def join(program: Pte, files: Sequence[bytes], *, max_memory: int | None = None) -> Pte:
    """Return the program with complete delegates: data outside a blob is looked up by its key, and put into it."""
    budget = Budget(program.size + sum(map(len, files)), max_memory)
    budget.take(program.taken, "the .pte file")
    named = dict(program.named_data)
    for data in files:
        found = ptd.read(data, max_memory=max_memory)
        budget.take(found.taken, "the .ptd file")
        for key, value in found.named.items():
            if named.setdefault(key, value) != value:
                raise Invalid("two data files disagree", why=f"they have different data under the key `{key[:80]}`")
    plans = tuple(
        replace(plan, delegates=tuple(_complete(delegate, named, budget) for delegate in plan.delegates))
        for plan in program.plans
    )
    taken = budget.limit - budget.left
    return replace(program, plans=plans, named_data=named, taken=taken, data_size=sum(map(len, files)))


def _complete(delegate: Delegate, named: Mapping[str, bytes], budget: Budget) -> Delegate:
    if not blob.detect(delegate.blob):
        return delegate
    keys = blob.list_keys(delegate.blob)
    if not keys:
        return delegate
    placements = _read_placements(delegate, budget)
    for name, key in keys.items():
        if key not in named or name not in placements:
            continue
        if blob.Payload(name, placements[name], named[key]).key != key:
            raise Invalid(
                f"the {blob.EXTERNAL[name]} of an Ethos-U delegate are damaged",
                why=f"the hash of the data under the key `{key}` is different",
                fix="compile again, or copy the .ptd file again",
            )
    budget.take(2 * sum(len(named[key]) for key in keys.values() if key in named), "the data of a delegate")
    return replace(delegate, blob=blob.pack(blob.unpack(delegate.blob, named=named)))


def _read_placements(delegate: Delegate, budget: Budget) -> dict[str, str]:
    """Read the placement of each block from the settings of a delegate; empty if they do not have it."""
    text = dict(delegate.compile_specs).get(PLACEMENTS)
    found = {} if text is None else plain_json.loads(text, f"the compile spec `{PLACEMENTS}`", budget)
    items = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in items if isinstance(value, str) and value.isascii()}


def list_file_names(program: Pte, stem: str) -> Iterator[tuple[str, ...]]:
    """List the data files of a program by what they may be called: as Tosaic names them, or ExecuTorch."""
    budget = Budget(program.size)
    tags = {tag: None for p in program.plans for d in p.delegates for tag in _read_placements(d, budget).values()}
    # A name from an untrusted file must not lead to another folder.
    return ((name_file(stem, tag), name_file("", tag)) for tag in tags if _NAME.fullmatch(tag))


def name_file(stem: str, placement: str) -> str:
    """Name the .ptd file of a placement, next to the .pte with this stem."""
    if not _NAME.fullmatch(placement):
        raise Invalid(
            f"the placement `{placement}` cannot be a file name", fix="use letters, digits, `_`, `-` and `.` only"
        )
    return f"{stem}{'.' if stem else ''}{placement.removesuffix(SUFFIX)}{SUFFIX}"
