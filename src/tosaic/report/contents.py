"""Contents of a compiled file, detected by its bytes: .pte, .bpte, .ptd, .tosa, .vgf, Ethos-U blob or .tosaic."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.core.tensor_info import TensorInfo
from tosaic.formats import blob, bpte, external, foreign, ptd, pte, sidecar
from tosaic.formats.tosa_reader import read as read_tosa
from tosaic.formats.vgf import MAGIC as VGF_MAGIC
from tosaic.ir.encode import count_bytes
from tosaic.ir.graph import Graph
from tosaic.ir.text import to_text
from tosaic.npu.perf import Estimate
from tosaic.report import vgf
from tosaic.report.cycles import estimate_delegate
from tosaic.tools.vela import Slot

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: The types in the contents of a file.
Part: TypeAlias = "DataclassInstance | Mapping[str, Part] | tuple[Part, ...] | str | float | None"

SCHEMA = "tosaic-inspect/2"
#: the constant method of a .pte that describes its inputs and outputs
IO_METHOD = "tosaic_io"
_CONSTANTS = ("CONST", "CONST_SHAPE")


@dataclass(frozen=True, slots=True)
class TosaContents:
    """Figures of a TOSA graph; `text` is its text form if requested."""

    bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: Mapping[str, int]
    constants: int
    constant_bytes: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class BlobContents:
    """An Ethos-U delegate: the bytes of its blocks, and its inputs and outputs."""

    bytes: int
    commands: str
    blocks: Mapping[str, int]
    scratch: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    #: from the commands; None if they are damaged or their system is not in Vela's own configuration file
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class DelegateContents:
    """A delegate of a .pte. `tosa` is its graph, from the delegate itself or from the sidecar; so are Vela's cycles."""

    backend: str
    bytes: int
    location: str
    offset: int
    settings: Mapping[str, str]
    blob: BlobContents | None = None
    tosa: TosaContents | None = None
    vela_cycles: float | None = None
    vgf: vgf.VgfContents | None = None


@dataclass(frozen=True, slots=True)
class MethodContents:
    """A method of a .pte."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operators: Mapping[str, int]
    instructions: int
    planned: tuple[int, ...]
    constant_bytes: int
    delegates: tuple[DelegateContents, ...]


@dataclass(frozen=True, slots=True)
class PteContents:
    """A .pte. Constant methods return the same on every call."""

    methods: tuple[MethodContents, ...]
    constant_methods: Mapping[str, Any]
    segments: tuple[int, ...]
    sidecar: str


@dataclass(frozen=True, slots=True)
class PtdContents:
    """A .ptd file: the bytes of its data by key."""

    data: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SidecarContents:
    """A .tosaic file. The delegates of backends that Tosaic does not know have no graph."""

    tosaic_version: str
    pte_sha256: str
    target: str
    options: Mapping[str, Any]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    delegates: tuple[TosaContents | None, ...]
    summaries: tuple[Mapping[str, float], ...]
    samples: int


@dataclass(frozen=True, slots=True)
class BundleContents:
    """What a .bpte has besides its program: the test cases of each method."""

    pte_bytes: int
    cases: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Contents:
    """One file; of the last seven fields one is set, under the name of its kind, and for a .bpte also its .pte."""

    kind: str
    bytes: int
    sha256: str
    pte: PteContents | None = None
    ptd: PtdContents | None = None
    tosa: TosaContents | None = None
    blob: BlobContents | None = None
    vgf: vgf.VgfContents | None = None
    sidecar: SidecarContents | None = None
    bpte: BundleContents | None = None

    def to_json(self, file: str) -> dict[str, Any]:
        """Return the contents under the schema name, ready for json.dumps."""
        known = {name: value for name, value in _to_plain(self).items() if value is not None}
        return {"schema": SCHEMA, "file": file, **known}

    def list_tosa(self) -> list[TosaContents]:
        """List every TOSA graph in the file."""
        if self.tosa is not None:
            return [self.tosa]
        if self.sidecar is not None:
            return [tosa for tosa in self.sidecar.delegates if tosa is not None]
        methods = self.pte.methods if self.pte is not None else ()
        return [delegate.tosa for method in methods for delegate in method.delegates if delegate.tosa is not None]


def _to_plain(value: Part) -> Any:
    """Return dataclasses as dicts, as `asdict` does, and tensors with their bytes."""
    if isinstance(value, TensorInfo):
        return {**asdict(value), "bytes": value.nbytes}
    if is_dataclass(value):
        return {field.name: _to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return value


def detect(data: bytes) -> str:
    """Detect the kind of a file by its first bytes, regardless of its name; empty if it is unknown."""
    if data[4:8] == b"ET12":
        return "pte"
    if bpte.detect(data):
        return "bpte"
    if data[4:8] == b"TOSA":
        return "tosa"
    if data[4:8] == ptd.IDENTIFIER:
        return "ptd"
    if blob.detect(data):
        return "blob"
    if data.startswith(VGF_MAGIC):
        return "vgf"
    return "sidecar" if data.startswith(b"PK\x03\x04") and not foreign.recognize(data) else ""


def read(
    data: bytes,
    *,
    beside: bytes | None = None,
    files: Sequence[bytes] = (),
    text: bool = False,
    max_memory: int | None = None,
) -> Contents:
    """Read an untrusted file. `beside` are the bytes of the .tosaic file next to a .pte, `files` its .ptd files."""
    kind = detect(data)
    contents = Contents(kind, len(data), hashlib.sha256(data).hexdigest())
    budget = Budget(len(data), max_memory)
    match kind:
        case "pte":
            return replace(contents, pte=_read_pte(data, beside, files, text, max_memory))
        case "bpte":
            bundle = bpte.read(data, max_memory=max_memory)
            cases = {suite.method: len(suite.cases) for suite in bundle.suites}
            inner = _read_pte(bundle.program, beside, files, text, max_memory)
            return replace(contents, pte=inner, bpte=BundleContents(len(bundle.program), cases))
        case "tosa":
            return replace(contents, tosa=_read_tosa(data, text, budget))
        case "blob":
            return replace(contents, blob=_read_blob(data, (), budget))
        case "ptd":
            found = ptd.read(data, max_memory=max_memory)
            return replace(contents, ptd=PtdContents({key: len(value) for key, value in found.named.items()}))
        case "vgf":
            return replace(contents, vgf=vgf.read(data, budget))
        case "sidecar":
            return replace(contents, sidecar=_read_sidecar(sidecar.read(data, max_memory=max_memory), text, budget))
        case _:
            raise Invalid(
                "unknown file type",
                why=f"it begins with {data[:8]!r}" if data else "it is empty",
                fix="pass a .pte, .bpte, .ptd, .tosa, .vgf or .tosaic file, or the blob of an Ethos-U delegate",
            )


def _read_tosa(data: bytes, text: bool, budget: Budget) -> TosaContents:
    graph = read_tosa(data, budget)
    constants = [value.type for op in graph.ops if op.kind in _CONSTANTS for value in op.outputs]
    return TosaContents(
        bytes=len(data),
        inputs=tuple(str(value.type) for value in graph.inputs),
        outputs=tuple(str(value.type) for value in graph.outputs),
        ops=_count_ops(graph),
        constants=len(constants),
        constant_bytes=sum(count_bytes(type.size, type.dtype) for type in constants),
        text=to_text(graph) if text else None,
    )


def _count_ops(graph: Graph) -> dict[str, int]:
    return dict(sorted(Counter(op.kind for op in graph.ops if op.kind not in _CONSTANTS).items()))


def _read_blob(data: bytes, specs: Sequence[tuple[str, bytes]], budget: Budget) -> BlobContents:
    budget.take(len(data), "the blocks of an Ethos-U blob")
    found = blob.unpack(data)
    return BlobContents(
        bytes=len(data),
        commands=found.cmd_data[:4].decode("ascii"),
        blocks={"cmd_data": len(found.cmd_data), "weight_data": len(found.weight_data)},
        scratch=found.scratch_size,
        inputs=found.inputs,
        outputs=found.outputs,
        estimate=estimate_delegate(found.cmd_data, specs, budget),
    )


def _read_graph(delegate: sidecar.DelegateFiles, text: bool, budget: Budget) -> TosaContents | None:
    return _read_tosa(delegate.tosa, text, budget) if delegate.tosa else None


def _read_sidecar(found: sidecar.Sidecar, text: bool, budget: Budget) -> SidecarContents:
    return SidecarContents(
        tosaic_version=found.tosaic_version,
        pte_sha256=found.pte_sha256,
        target=found.target,
        options=dict(found.options),
        inputs=found.inputs,
        outputs=found.outputs,
        delegates=tuple(_read_graph(delegate, text, budget) for delegate in found.delegates),
        summaries=tuple(dict(delegate.summary) for delegate in found.delegates),
        samples=len(found.samples),
    )


def _read_pte(
    data: bytes, beside: bytes | None, files: Sequence[bytes], text: bool, max_memory: int | None
) -> PteContents:
    program = external.read(data, files, max_memory=max_memory)
    budget = program.make_budget(max_memory)
    constant = {plan.name: plan.values[plan.outputs[0]] for plan in program.plans if _is_constant(plan)}
    kept, note = open_sidecar(data, beside, max_memory)
    ports = _read_ports(constant.get(IO_METHOD), kept)
    graphs = kept.delegates if kept is not None else ()
    known = [(_read_graph(one, text, budget), one.summary.get("cycles_total")) for one in graphs]
    methods = [_read_method(plan, ports, known, text, budget) for plan in program.plans if plan.name not in constant]
    plain = {name: value for name, value in constant.items() if isinstance(value, int | float | str)}
    return PteContents(tuple(methods), plain, tuple(segment.size for segment in program.segments), note)


def _is_constant(plan: pte.Plan) -> bool:
    """Tell whether a method has neither inputs nor instructions, so that it only returns what is in the file."""
    return not plan.inputs and len(plan.outputs) == 1 and not plan.instructions


def open_sidecar(data: bytes, beside: bytes | None, max_memory: int | None) -> tuple[sidecar.Sidecar | None, str]:
    """Read the .tosaic file next to a .pte: `none`, `fits`, or why it is not used; only one that fits is returned."""
    if beside is None:
        return None, "none"
    try:
        found = sidecar.read(beside, max_memory=max_memory)
        found.check(data)
    except Invalid as error:
        return None, f"not used: {error.what}"
    return found, "fits"


def _read_ports(text: pte.Value, kept: sidecar.Sidecar | None) -> tuple[Sequence[TensorInfo], Sequence[TensorInfo]]:
    """Read what the sidecar or the .pte's own constant method says about inputs and outputs."""
    if kept is not None:
        return kept.inputs, kept.outputs
    if not isinstance(text, str):
        return (), ()
    try:
        known = json.loads(text)
        inputs, outputs = ([_read_tensor_info(item) for item in known[key]] for key in ("inputs", "outputs"))
        return inputs, outputs
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise Invalid("the .pte file is damaged", where=f"method `{IO_METHOD}`", why=why) from None


def _read_tensor_info(item: Mapping[str, Any]) -> TensorInfo:
    scale, zero = item["scale"], item["zero_point"]
    return TensorInfo(
        name=str(item["name"]),
        shape=tuple(int(size) for size in item["shape"]),
        dtype=str(item["dtype"]),
        layout=str(item["layout"]),
        scale=None if scale is None else float(scale),
        zero_point=None if zero is None else int(zero),
    )


def _read_method(
    plan: pte.Plan,
    ports: tuple[Sequence[TensorInfo], Sequence[TensorInfo]],
    known: Sequence[tuple[TosaContents | None, float | None]],
    text: bool,
    budget: Budget,
) -> MethodContents:
    calls = Counter(str(plan.operators[i.operator]) for i in plan.instructions if isinstance(i, pte.KernelCall))
    delegates = [_read_delegate(delegate, text, budget) for delegate in plan.delegates]
    if len(known) == len(delegates):
        pairs = zip(delegates, known, strict=True)
        delegates = [replace(d, tosa=d.tosa or graph, vela_cycles=cycles) for d, (graph, cycles) in pairs]
    return MethodContents(
        name=plan.name,
        inputs=_merge([plan.values[i] for i in plan.inputs], ports[0]),
        outputs=_merge([plan.values[i] for i in plan.outputs], ports[1]),
        operators=dict(calls),
        instructions=len(plan.instructions),
        planned=plan.planned_sizes,
        constant_bytes=sum(len(v.data) for v in plan.values if isinstance(v, pte.Tensor) and v.data is not None),
        delegates=tuple(delegates),
    )


def _merge(values: Sequence[pte.Value], known: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Return the program's own types, with names and scales if these are known for exactly such tensors."""
    found: list[TensorInfo] = []
    for value in values:
        if isinstance(value, pte.Tensor):
            found.append(TensorInfo(value.name, value.shape, value.dtype))
        else:
            found.append(TensorInfo("", (), type(value).__name__))
    types = [(port.dtype, port.shape) for port in found]
    return tuple(known) if types == [(port.dtype, port.shape) for port in known] else tuple(found)


def _read_delegate(delegate: pte.Delegate, text: bool, budget: Budget) -> DelegateContents:
    settings = {key: value.decode("utf-8", "backslashreplace") for key, value in delegate.compile_specs}
    kind = detect(delegate.blob)
    return DelegateContents(
        backend=delegate.id,
        bytes=delegate.size,
        location=delegate.location,
        offset=delegate.offset,
        settings=settings,
        blob=_read_blob(delegate.blob, delegate.compile_specs, budget) if kind == "blob" else None,
        tosa=_read_tosa(delegate.blob, text, budget) if kind == "tosa" else None,
        vgf=vgf.read(delegate.blob, budget) if kind == "vgf" else None,
    )
