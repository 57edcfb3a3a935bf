"""Prints the contents of a file as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tosaic.report import vgf
from tosaic.report.contents import (
    IO_METHOD,
    BlobContents,
    Contents,
    DelegateContents,
    MethodContents,
    PteContents,
    SidecarContents,
    TosaContents,
)
from tosaic.report.cycles import COLUMNS, describe_total, describe_traffic, list_rows
from tosaic.report.terminal import Page, count, describe_counts, describe_sizes, pair_tensors
from tosaic.tools.vela import Slot

Pairs = Iterator[tuple[str, str]]
_KINDS = {
    "pte": "ExecuTorch program",
    "bpte": "ExecuTorch program with test cases",
    "ptd": "data of an ExecuTorch program",
    "tosa": "TOSA graph",
    "blob": "Ethos-U delegate",
    "vgf": "VGF file",
    "sidecar": "Tosaic sidecar",
}


def show_contents(page: Page, found: Contents, file: str, *, verbose: bool = False) -> None:
    """Print the output of `tosaic inspect`; if it is verbose, with Vela's own figures."""
    page.title(f"{_KINDS[found.kind]}, {found.bytes:,} bytes: `{file}`", gap=False)
    if found.bpte is not None:
        cases = [(f"tests of `{method}`", count(number, "case")) for method, number in found.bpte.cases.items()]
        page.pairs([("program", f"{found.bpte.pte_bytes:,} bytes"), *cases])
    if found.pte is not None:
        _show_pte(page, found.pte, verbose)
    elif found.ptd is not None:
        page.rows(("bytes", "key"), [(f"{size:,}", key) for key, size in found.ptd.data.items()])
    elif found.tosa is not None:
        page.pairs(_pair_tosa(found.tosa))
    elif found.blob is not None:
        _show_blob(page, found.blob, 0)
    elif found.vgf is not None:
        page.pairs(vgf.pair(found.vgf))
    elif found.sidecar is not None:
        _show_sidecar(page, found.sidecar)


def _show_pte(page: Page, found: PteContents, verbose: bool) -> None:
    pairs = [("sidecar", found.sidecar)]
    if any(found.segments):
        pairs.append(("segments", describe_sizes(found.segments)))
    methods = found.constant_methods.items()
    pairs += [(f"`{name}()`", f"returns {value!r}") for name, value in methods if name != IO_METHOD]
    page.pairs(pairs)
    for method in found.methods:
        page.title(f"method `{method.name}`")
        page.pairs(_pair_method(method))
        for i, delegate in enumerate(method.delegates):
            page.title(f"delegate {i} of `{method.name}`")
            page.pairs(_pair_delegate(delegate))
            if delegate.blob is not None:
                _show_blob(page, delegate.blob, 2, delegate.vela_cycles if verbose else None)
            if delegate.vgf is not None:
                page.pairs(vgf.pair(delegate.vgf), indent=2)
            if delegate.tosa is not None:
                page.pairs(_pair_tosa(delegate.tosa), indent=2)


def _pair_method(method: MethodContents) -> Pairs:
    yield from pair_tensors("input", method.inputs)
    yield from pair_tensors("output", method.outputs)
    yield "on the CPU", describe_counts(method.operators)
    yield "instructions", f"{method.instructions:,}"
    yield "planned", describe_sizes(method.planned)
    yield "constants", f"{method.constant_bytes:,} bytes"


def _pair_delegate(delegate: DelegateContents) -> Pairs:
    yield "backend", f"`{delegate.backend}`"
    yield "data", f"{delegate.bytes:,} bytes, {delegate.location}, at offset {delegate.offset:,}"
    yield from _pair_values(delegate.settings)


def _pair_values(values: Mapping[str, Any]) -> Pairs:
    yield from ((name, str(value)) for name, value in values.items() if value != "")


def _pair_tosa(tosa: TosaContents) -> Pairs:
    yield "TOSA", f"{tosa.bytes:,} bytes: {count(sum(tosa.ops.values()), 'operator')}"
    yield "operators", describe_counts(tosa.ops)
    yield "constants", f"{tosa.constants:,} with {tosa.constant_bytes:,} bytes"
    yield "inputs", ", ".join(tosa.inputs) or "none"
    yield "outputs", ", ".join(tosa.outputs) or "none"


def _show_blob(page: Page, blob: BlobContents, indent: int, vela: float | None = None) -> None:
    pairs = [(name, f"{size:,} bytes") for name, size in blob.blocks.items()]
    pairs += [("scratch", f"{blob.scratch:,} bytes"), ("commands", f"format {blob.commands}")]
    if blob.estimate is not None:
        pairs += [("NPU cycles", describe_total(blob.estimate, vela)), ("MACs", f"{blob.estimate.macs:,}")]
        pairs.append(("bytes read and written", describe_traffic(blob.estimate.traffic)))
    page.pairs(pairs, indent=indent)
    rows = [*_list_slots("input", blob.inputs), *_list_slots("output", blob.outputs)]
    page.rows(("tensor", "shape", "element", "offset", "region"), rows, indent=indent)
    if blob.estimate is not None:
        page.rows(COLUMNS, list_rows(blob.estimate), indent=indent)


def _list_slots(what: str, slots: Sequence[Slot]) -> Iterator[tuple[str, ...]]:
    for i, slot in enumerate(slots):
        size = count(slot.element_bytes, "byte")
        yield f"{what} {i}", str(list(slot.shape)), size, f"{slot.offset:,}", str(slot.region)


def _show_sidecar(page: Page, found: SidecarContents) -> None:
    pairs = [
        ("made by", f"tosaic {found.tosaic_version}"),
        ("target", found.target),
        *_pair_values(found.options),
        ("belongs to", f"a .pte with sha256 {found.pte_sha256}"),
        *pair_tensors("input", found.inputs),
        *pair_tensors("output", found.outputs),
        ("samples", str(found.samples)),
    ]
    page.pairs(pairs)
    for i, (tosa, summary) in enumerate(zip(found.delegates, found.summaries, strict=True)):
        page.title(f"delegate {i}")
        cycles = int(summary.get("cycles_total", 0.0))
        pairs = [("TOSA", "none: the delegate is for another backend")] if tosa is None else _pair_tosa(tosa)
        page.pairs([*pairs, *([("NPU cycles", f"{cycles:,}, Vela's estimate")] if cycles else [])])
