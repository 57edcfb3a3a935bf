"""The ExecuTorch API: the partitioners and backends of all targets, as functions.

exir finds a backend by its class name and allows no subclass of one, so the classes themselves stay thin.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.operator_support import OperatorSupportBase

from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid, Unsupported
from tosaic.core.exir_compat import LocalSpec
from tosaic.core.heap import collect_garbage_after
from tosaic.core.internal import contained
from tosaic.core.reason import Reason
from tosaic.driver.carry import carry_results
from tosaic.driver.delegate import CompiledGraph, Delegate, Lowered, build, compile_partition, dump, lower_checked
from tosaic.driver.exported import has_out_variant, refuse_loops, skip_noop_decompositions
from tosaic.driver.fingerprint import fingerprint
from tosaic.driver.kept import keep
from tosaic.driver.named_data import store_external
from tosaic.driver.order import find_orders, permute_strided, refuse_expanded
from tosaic.driver.partition import Check, Partition, Plan
from tosaic.driver.reason import log_reasons
from tosaic.driver.tagging import find_clashes, find_number, tag_partitions
from tosaic.formats.etdump import name_layer
from tosaic.fx.control_flow import can_choose, unroll_in_place
from tosaic.fx.source import ASSERTIONS, Constants, Source, find_module, list_modules, overload, torch_op
from tosaic.fx.torch_compat import OpOverload, core_aten_decompositions
from tosaic.lower.lowering import QUANTIZED_IO
from tosaic.tools.cache import CompileCache

#: Partitions that `partition` has lowered and `preprocess` will need next, by the fingerprint of the partition.
LOWERED: CompileCache[Lowered] = CompileCache(lambda lowered: len(lowered.tosa))

_STAND_IN = "_tosaic_stand_in"


class TosaicPartitioner(Partitioner):
    """Tags what the target supports, in as few delegates as possible; `reasons` says why the rest is on the CPU."""

    backend: type[BackendDetails]

    def __init__(self, spec: ArmCompileSpec, additional_checks: Sequence[OperatorSupportBase] | None = None) -> None:
        super().__init__()
        self.compile_spec = spec
        self.tosa_spec = spec.tosa_spec
        self.additional_checks = additional_checks
        self._custom: set[OpOverload] = set()
        self.reasons: tuple[Reason, ...] = ()
        self.delegation_spec = DelegationSpec(self.backend.__name__, _mark(spec.to_list()))
        #: the last program that exir has queried, and the answer
        self._asked: tuple[ExportedProgram | None, list[OpOverload]] = (None, [])
        #: the constants of every program that is still to be partitioned
        self._waiting: list[Constants] = []
        #: the backend that exir finds: a class exists only as long as something refers to it
        self._found = self.backend

    def register_custom_partition_op(self, op: OpOverload) -> None:
        """Keep an operator whole up to `partition`, even if ExecuTorch could decompose it.

        It is delegated if it has an operator record (CONTRIBUTING.md); otherwise it runs on the CPU, with a reason.
        """
        self._custom.add(op)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], None]:
        """List overloads whose nodes will all be delegated: exir fails on one that is kept and then falls back."""
        if ep.dialect == "EDGE":
            return [], None
        if self._asked[0] is not ep:
            unroll_in_place(ep)
            refuse_expanded(ep)
            changed = permute_strided(ep)
            source = Source.of_program(ep)
            if carry_results(source, self.compile_spec.target, ep):
                source = Source.of_program(ep)
                changed = True
            if changed:
                ep.graph_module.recompile()
            source.orders = find_orders(ep.graph)
            self._asked = ep, _all_delegated(self._build(source, ep).plan)
            if not self._waiting:
                self.reasons = ()
            everything = {**ep.state_dict, **ep.constants}
            self._waiting.append({n: t for n, t in everything.items() if isinstance(t, torch.Tensor)})
            skip_noop_decompositions(ep)
        used = {torch_op(n) for n in ep.graph.nodes if n.op == "call_function"}
        return [*self._asked[1], *(op for op in self._custom if op in used and op not in self._asked[1])], None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes of every delegate."""
        refuse_loops(exported_program.graph_module)
        self._found = find_backend_class(self.backend)
        self._asked = None, []
        # to_executorch, which comes next, looks for the out variants that this registers.
        importlib.import_module("executorch.kernels.quantized")
        constants = self._take_constants(exported_program)
        source = Source.of_program(exported_program, constants)
        source.orders = find_orders(exported_program.graph)
        built = self._build(source, exported_program)
        for delegate in built.delegates:
            _hand_over(source, delegate, self.compile_spec)
        tags = dict.fromkeys(tag_partitions(exported_program, source, built.plan), self.delegation_spec)
        found = tuple(_adapt(node, reason, exported_program) for node, reason in built.plan.reasons.items())
        # The reasons of the previous methods are kept.
        self.reasons = found if constants is None else self.reasons + found
        log_reasons(found)
        return PartitionResult(exported_program, tags)

    def _take_constants(self, program: ExportedProgram) -> Constants | None:
        """Return the data of a program that exir has made fake; each method that the partitioner serves has its own."""
        # Exir may have added numbers of its own: `x + 1.0` with x without dimensions.
        named = {name: fake for name, fake in program.state_dict.items() if not name.startswith("_lifted_tensor_")}
        for index, constants in enumerate(self._waiting):
            if all(_is_like(constants.get(name), fake) for name, fake in named.items()):
                return self._waiting.pop(index)
        return None

    def _build(self, source: Source, program: ExportedProgram) -> CompiledGraph:
        check = make_check(self.additional_checks or (), program)
        excluded: dict[Node, Unsupported] = {}
        while True:
            built = build(source, self.compile_spec, check, excluded=excluded)
            clashes = find_clashes(source, built.plan)
            if not clashes:
                return built
            excluded.update(clashes)


def _adapt(node: Node, reason: Reason, program: ExportedProgram) -> Reason:
    """Replace what is not true of a partitioner: it has no type of inputs, and sees a cond in `to_backend` alone."""
    if QUANTIZED_IO in reason.fix:
        return replace(reason, fix=reason.fix.replace(QUANTIZED_IO, _IO_PASSES))
    if overload(node) == "cond" and can_choose(program.graph_module, node):
        return replace(
            reason,
            why="`to_backend` cannot replace a `cond` by its two branches and a choice",
            fix="use `to_edge_transform_and_lower` instead of `to_edge` and `to_backend`",
        )
    return reason


_PARTITION = "let Tosaic's partitioner choose the nodes"
_IO_PASSES = (
    "transform the edge program with `QuantizeInputs` and `QuantizeOutputs`"
    " of `executorch.exir.passes.quantize_io_pass`"
)


def _is_like(real: Any, fake: Any) -> bool:
    return isinstance(real, torch.Tensor) and real.shape == fake.shape and real.dtype == fake.dtype


def make_check(checks: Sequence[OperatorSupportBase], program: ExportedProgram) -> Check | None:
    """Combine exir's operator support objects into one check; they look at edge ops or at `original_aten`."""
    if not checks:
        return None
    submodules = list_modules(program.graph_module)

    def check(node: Node) -> str | None:
        for one in checks:
            if not one.is_node_supported(submodules, node):
                return f"`{type(one).__name__}` excludes it"
        return None

    return check


def _all_delegated(plan: Plan) -> list[OpOverload]:
    left = {overload(n) for n in plan.reasons}
    inside: dict[str, Any] = {}
    for partition in plan.partitions:
        for node in partition.nodes:
            name = overload(node)
            if name not in left | ASSERTIONS and isinstance(torch_op(node), OpOverload):
                inside[name] = torch_op(node)
    # Exir's decomposition of a CPU node may contain any overload that it must keep.
    apart = any(torch_op(n) in core_aten_decompositions() for n in plan.reasons)
    return [op for op in inside.values() if not apart or has_out_variant(op)]


class _OwnSpec(LocalSpec):
    """The first entry of a compile spec of Tosaic's partitioners."""


def _mark(specs: Sequence[CompileSpec]) -> list[CompileSpec]:
    return [_OwnSpec(specs[0].key, specs[0].value), *specs[1:]]


def find_backend_class(backend: type[BackendDetails]) -> type[BackendDetails]:
    """Return the class that exir will find by the name of a backend: the one that is defined last.

    If another package has defined a class of that name later, it is a new one, which hands what that package's
    partitioner has chosen to that class. It exists as long as the caller keeps it.
    """
    same = [c for c in BackendDetails.__subclasses__() if c.__name__ == backend.__name__]
    last = same[-1]
    if last is backend or hasattr(last, _STAND_IN):
        return last

    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        ours = any(isinstance(spec, _OwnSpec) for spec in compile_specs)
        return (backend if ours else last).preprocess(edge_program, compile_specs)

    members = {"preprocess": staticmethod(preprocess), "__module__": backend.__module__, _STAND_IN: True}
    return type(backend.__name__, (BackendDetails,), members)


def _hand_over(source: Source, delegate: Delegate, spec: ArmCompileSpec) -> None:
    """Keep the lowered form of a delegate for `preprocess`."""
    key = _find_key(source, delegate.partition, spec)
    if key is not None:
        nodes = tuple(n.name for n in delegate.partition.nodes)
        LOWERED.put(key, Lowered(nodes, delegate.ops, delegate.tosa, delegate.stages))


def _find_key(source: Source, partition: Partition, spec: ArmCompileSpec) -> str | None:
    """Return the key of a partition in LOWERED; None if it has none, as with node names in the .tosa."""
    if spec.debug_mode is ArmCompileSpec.DebugMode.TOSA:
        return None
    try:
        with contained("comparing partitions"):
            return fingerprint(source, partition, spec)
    except Unsupported:
        return None


def preprocess(program: ExportedProgram, spec: ArmCompileSpec) -> PreprocessResult:
    """Compile one delegate; what the partitioner has already lowered and compiled comes from the caches."""
    delegate = build_partition(program, spec)
    dump(delegate, spec, find_number(delegate.partition.nodes))
    keep(delegate, spec)
    return PreprocessResult(
        processed_bytes=delegate.blob,
        debug_handle_map=_debug_handles(delegate.partition),
        data_store_output=store_external(delegate.artifact),
    )


def build_partition(program: ExportedProgram, spec: ArmCompileSpec) -> Delegate:
    """Lower and compile a whole program as one delegate."""
    source = Source.of_program(program)
    source.orders = find_orders(program.graph)
    outputs = list(source.output().all_input_nodes)
    partition = Partition(tuple(source.calls()), tuple(source.inputs), tuple(outputs))
    try:
        return compile_partition(source, partition, _find_lowered(source, partition, spec), spec)
    except Unsupported as error:
        what = f"a delegate for {spec.target.name} cannot be compiled"
        fix = f"{_PARTITION}; {_IO_PASSES}" if error.fix is QUANTIZED_IO else error.fix or _PARTITION
        raise Invalid(what, why=error.what, fix=fix) from error


def _find_lowered(source: Source, partition: Partition, spec: ArmCompileSpec) -> Lowered:
    """Return the partitioner's lowering of a partition, or lower it now."""
    key = _find_key(source, partition, spec)
    found = LOWERED.take(key) if key is not None else None
    if found is not None:
        return found.rename(partition)
    with collect_garbage_after():
        return lower_checked(source, partition, spec)


def _debug_handles(partition: Partition) -> dict[str, tuple[int]]:
    """Map the names that layers have in an ETDump to exir's numbers of their nodes."""
    handles = ((node, node.meta.get("debug_handle")) for node in partition.nodes)
    return {name_layer(find_module(node)[0], node.name): (h,) for node, h in handles if isinstance(h, int)}
