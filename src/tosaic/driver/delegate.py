"""From a graph to finished delegates: partition, lower, run passes, serialize, compile, and again if a tool refuses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.fx import Node

from tosaic.backends import converter
from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.backends.vgf import VgfCompileSpec
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid, ToolCrashed, ToolFailed, Unsupported
from tosaic.core.heap import short_lived
from tosaic.core.internal import InternalError, contained, is_strict
from tosaic.core.output import write_files
from tosaic.core.specification import Specification
from tosaic.driver.interface import Unread, check_blob, check_graph
from tosaic.driver.partition import Check, Plan, Region, partition
from tosaic.driver.reason import explain
from tosaic.formats import blob
from tosaic.formats.tosa_writer import names, serialize
from tosaic.fx.source import QDQ, Source, find_module, overload, source_line
from tosaic.ir.graph import Graph, Op
from tosaic.ir.text import to_text
from tosaic.ir.verifier import verify
from tosaic.lower.walk import lower
from tosaic.passes import Observer, run_passes
from tosaic.tools import vela

#: how often a refused region is tried again without the node that was refused
MAX_REFUSALS = 32
#: how many parts of a refused region are built in search of the node that is to blame
MAX_TRIALS = 32


@dataclass(frozen=True, slots=True)
class Made:
    """A TOSA operator of a delegate: its name in the .tosa, and the torch nodes it was made from."""

    name: str
    kind: str
    origin: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delegate:
    """One finished delegate. `compiled` is Vela's result, None for the other targets."""

    region: Region
    ops: tuple[Made, ...]
    tosa: bytes
    blob: bytes
    compiled: vela.Compiled | None
    origins: tuple[Mapping[str, Any], ...]
    #: the graph as text after lowering and after each pass, kept only where intermediate artifacts are dumped
    stages: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Built:
    """All delegates of a program, and what is not in any of them."""

    delegates: tuple[Delegate, ...]
    plan: Plan


#: border nodes that the caller gives or takes with channels last
Borders = frozenset[Node]


def lower_region(
    source: Source, region: Region, spec: ArmCompileSpec, nhwc: Borders, observe: Observer | None = None
) -> tuple[Graph, bytes]:
    """Lower a region and run the passes; return the verified TOSA graph and its .tosa bytes."""
    graph = lower(source, region.nodes, region.inputs, region.outputs, spec.target, nhwc)
    if observe is not None:
        observe("lower", graph)
    try:
        graph = run_passes(graph, spec.target, observe=observe, verify_between=spec.verify_passes or is_strict())
        verify(graph, Specification.parse(spec.target.tosa_spec))
    except Invalid as error:
        raise Unsupported(error.what, error.fix, where=error.where) from error
    locate = None
    if spec.debug_mode is ArmCompileSpec.DebugMode.TOSA:
        by_name = {n.name: n for n in region.nodes}
        locate = lambda op: _location(op, by_name)  # noqa: E731
    return graph, serialize(graph, location=locate)


def assemble(tosa: bytes, spec: ArmCompileSpec) -> tuple[bytes, vela.Compiled | None]:
    """The delegate blob of a .tosa file."""
    if isinstance(spec, VgfCompileSpec):
        return converter.compile_cached(tosa, spec.compiler_flags), None
    if not isinstance(spec, EthosUCompileSpec):
        return tosa, None
    compiled = vela.compile_cached(tosa, spec.options)
    return blob.pack(compiled), compiled


def build_region(source: Source, region: Region, spec: ArmCompileSpec, nhwc: Borders = frozenset()) -> Delegate:
    """Lower and compile one region; raises ToolFailed if the tool refuses it."""
    stages: dict[str, str] = {}

    def keep(name: str, graph: Graph) -> None:
        stages[f"{len(stages)}_{name}"] = to_text(graph)

    # The graph with its constants is gone before the tool needs memory of its own.
    with short_lived():
        observe = keep if spec.get_intermediate_path() is not None else None
        graph, tosa = lower_region(source, region, spec, nhwc, observe)
        check_graph(source, region, graph, nhwc)
        ops = _list_ops(graph)
        del graph
    try:
        data, compiled = assemble(tosa, spec)
    except (vela.Refused, converter.Refused) as error:
        raise Blamed(error, _culprits(ops, region, error.names)) from error
    except ToolCrashed as error:
        raise Blamed(error, []) from error
    check_blob(source, region, data, compiled, isinstance(spec, VgfCompileSpec))
    return Delegate(region, ops, tosa, data, compiled, describe_origins(ops, region), stages)


def _list_ops(graph: Graph) -> tuple[Made, ...]:
    labels = names(graph)
    ops = (op for op in graph.ops if op.kind not in ("CONST", "CONST_SHAPE"))
    return tuple(Made(labels[v], op.kind, op.origin) for op in ops for v in op.outputs)


class Blamed(ToolFailed):
    """A refusal with the nodes that caused it, as far as the tool named them."""

    def __init__(self, error: ToolFailed, nodes: list[Node]) -> None:
        super().__init__(error.what, log=error.log, where=error.where, why=error.why, fix=error.fix)
        self.tool = "model-converter" if isinstance(error, converter.Refused) else "Vela"
        self.nodes = nodes


def _culprits(ops: Sequence[Made], region: Region, named: tuple[str, ...]) -> list[Node]:
    """The nodes behind the tensor names in a tool's message."""
    by_name = {n.name: n for n in region.nodes}
    found = [by_name[o] for op in ops if op.name in named for o in op.origin if o in by_name]
    nodes = list(dict.fromkeys(found))
    return [n for n in nodes if overload(n) not in QDQ] or nodes


def build(
    source: Source,
    spec: ArmCompileSpec,
    check: Check | None = None,
    nhwc: Borders = frozenset(),
    codes: Borders = frozenset(),
    excluded: Mapping[Node, Unsupported] | None = None,
) -> Built:
    """Delegates for everything that the target takes. What a tool refuses goes to the CPU with the tool's reason.

    `codes` are the quantize and dequantize nodes that the caller of the program does himself, `excluded` other nodes
    that have to stay on the CPU.
    """
    refused = {n: Unsupported('the caller does it, by io="int8"') for n in codes} | dict(excluded or {})
    allowed = len(refused) + MAX_REFUSALS
    while True:
        plan = _plan(source, spec, check, refused)
        delegates: list[Delegate] = []
        for region in plan.regions:
            made = _attempt(source, region, spec, nhwc)
            if isinstance(made, Delegate):
                delegates.append(made)
                continue
            nodes = made.nodes if made.proven else find_culprits(source, region, spec, made.nodes, nhwc)
            if len(refused) + len(nodes) > allowed or not nodes:
                nodes = list(region.nodes)
            refused.update(dict.fromkeys(nodes, made.reason))
            break
        else:
            return Built(tuple(delegates), plan)


def _plan(source: Source, spec: ArmCompileSpec, check: Check | None, refused: Mapping[Node, Unsupported]) -> Plan:
    """The partition, or one that leaves everything to the CPU where the partitioner itself fails."""
    try:
        with contained("dividing the model between NPU and CPU"):
            return partition(source, spec.target, check=check, refused=refused)
    except InternalError as error:
        return Plan((), explain(dict.fromkeys(source.calls(), error)))


def _attempt(source: Source, region: Region, spec: ArmCompileSpec, nhwc: Borders) -> Delegate | Failure:
    """Build a region, or say why it cannot be built."""
    try:
        # The partitioner has lowered all of it already, so a node that is unsupported now is a mistake of ours.
        with contained("compiling a delegate", planned=(Invalid, ToolFailed, Unread)):
            return build_region(source, region, spec, nhwc)
    except Blamed as error:
        fix = f"`tosaic ops {spec.target.name}` lists the limits that are known"
        return Failure(Unsupported(f"{error.tool}: {error.why or error.what}", fix), error.nodes)
    except Unread as error:
        return Failure(error, error.nodes, proven=True)
    except InternalError as error:
        return Failure(error, [])


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a region could not be built, with the nodes that may have caused it; `proven` if they surely have."""

    reason: Unsupported
    nodes: list[Node]
    proven: bool = False


def find_culprits(
    source: Source, region: Region, spec: ArmCompileSpec, named: Sequence[Node], nhwc: Borders
) -> list[Node]:
    """The nodes of a region that is refused without which it is taken, as far as MAX_TRIALS builds can tell.

    `named` are nodes that a tool spoke of. It speaks of what its own rewriting has left, so each has to fail alone.
    """
    trials = 0

    def fails(nodes: Iterable[Node]) -> bool:
        nonlocal trials
        trials += 1
        kept = set(nodes)
        rest = {n: Unsupported("left out while searching") for n in source.calls() if n not in kept}
        plan = _plan(source, spec, None, rest)
        made = (_attempt(source, part, spec, nhwc) for part in plan.regions)
        return any(isinstance(m, Failure) and not m.proven for m in made)

    pieces = region.clusters or tuple((n,) for n in region.nodes)
    suspects = [p for p in pieces if any(n in p for n in named)]
    piece = next((p for p in suspects[: MAX_TRIALS // 4] if fails(p)), None)
    if piece is None:
        # The last piece of the shortest beginning that is refused.
        low, high = 0, len(pieces)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails(n for p in pieces[:middle] for n in p) else (middle, high)
        piece = pieces[high - 1]
    computing = [n for n in reversed(piece) if overload(n) not in QDQ] or list(reversed(piece))
    ordered = sorted(computing, key=lambda n: n not in named)
    for node in ordered if len(ordered) > 1 else ():
        if trials < MAX_TRIALS and not fails(n for n in piece if n is not node):
            return [node]
    return ordered[:1]


def _location(op: Op, nodes: Mapping[str, Node]) -> str:
    return json.dumps([_describe(nodes[o]) for o in op.origin if o in nodes], sort_keys=True)


def _describe(node: Node) -> dict[str, str]:
    return {
        "node": node.name,
        "op": overload(node),
        "where": source_line(node),
        "module": find_module(node)[0],
        "stack_trace": node.meta.get("stack_trace") or "",
    }


def describe_origins(ops: Sequence[Made], region: Region) -> tuple[Mapping[str, Any], ...]:
    """For every torch node of a region: where it comes from, and the TOSA ops that were made of it."""
    made: dict[str, list[str]] = {}
    for op in ops:
        for origin in op.origin:
            made.setdefault(origin, []).append(f"{op.name}:{op.kind}")
    return tuple(
        {"event_id": i, **_describe(node), "tosa": made.get(node.name, [])} for i, node in enumerate(region.nodes)
    )


def dump(delegate: Delegate, spec: ArmCompileSpec) -> None:
    """Write a delegate's intermediate files, under names that no other delegate has."""
    folder = spec.get_intermediate_path()
    if folder is None:
        return
    stem = Path(folder) / f"delegate_{hashlib.sha256(delegate.tosa).hexdigest()[:12]}"
    parts: dict[str, bytes] = {".tosa": delegate.tosa}
    parts.update((f".{name}.tosa.txt", text.encode()) for name, text in delegate.stages.items())
    if delegate.compiled is not None:
        parts[".vela.bin"] = delegate.blob
        parts[".summary.json"] = json.dumps(delegate.compiled.summary, indent=1, sort_keys=True).encode()
        parts[".debug.xml"] = delegate.compiled.debug_db.encode()
        parts[".vela.log"] = delegate.compiled.log.encode()
    if isinstance(spec, VgfCompileSpec):
        parts[".vgf"] = delegate.blob
    if spec.debug_mode is ArmCompileSpec.DebugMode.JSON:
        parts[".debug.json"] = json.dumps(list(delegate.origins), indent=1).encode()
    write_files({stem.with_name(stem.name + suffix): data for suffix, data in parts.items()})
