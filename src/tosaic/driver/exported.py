"""Exports models with torch.export under this project's conditions, with its own errors."""

from __future__ import annotations

import io
import operator
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from executorch.exir.operator.convert import to_out_variant
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node

from tosaic.core.errors import Invalid, TosaicError, first_line
from tosaic.core.exir_compat import exir_ops, replace_class
from tosaic.core.heap import collect_garbage_after
from tosaic.core.location import find_line
from tosaic.core.quiet import EXCLUSIVE
from tosaic.fx.arrays import find_memory_order
from tosaic.fx.control_flow import MOST_STEPS, find_loop, unroll_program
from tosaic.fx.decompositions import find_registered, functionalize, run_torch_decompositions, updates_statistics
from tosaic.fx.modes import inline_modes
from tosaic.fx.source import FILLS, QDQ, bind, input_node, is_overload, list_modules, overload, source_line
from tosaic.fx.torch_compat import DispatchKey, OpOverload, pytree
from tosaic.quantization.prepare import is_private, mutates

_INPUT_WRITE = OutputKind.USER_INPUT_MUTATION


def export(
    model: torch.nn.Module, example_inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> ExportedProgram:
    """Export with torch.export under this project's conditions: eval mode, static shapes, plain tensors.

    The result takes the tensors in dicts, lists and keyword arguments one after the other.
    """
    given: Any = model
    if not isinstance(given, torch.nn.Module):
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        raise Invalid(f"the model is `{kind}`, not an nn.Module", fix="pass an instance of an nn.Module in eval mode")
    # An exported model keeps the mode that the model was in.
    training = () if isinstance(model, GraphModule) else (n for n, m in list_modules(model).items() if m.training)
    for name in training:
        part = f"the layer `{name}` of the model" if name else "the model"
        raise Invalid(f"{part} is in train mode", fix="call model.eval() before compiling")
    said, graph = io.StringIO(), ""
    try:
        # torch.export keeps its state in process-wide variables, and so does a redirection.
        with EXCLUSIVE, redirect_stderr(said), collect_garbage_after(gives_back=False):
            # Two inputs must never be one tensor: exir would give them one buffer.
            inputs, by_name = pytree.tree_map(torch.clone, (tuple(example_inputs), dict(kwargs or {})))
            return _flatten(torch.export.export(model, inputs, by_name))
    except Exception as error:
        graph = str(getattr(error, "partial_fx_graph", ""))
        raise _explain_export(error) from error
    finally:
        # torch prints its progress, which is not useful here.
        sys.stderr.write(said.getvalue().replace(f"{graph}\n", "") if graph else said.getvalue())


def _flatten(program: ExportedProgram) -> ExportedProgram:
    """Let a program take its tensors one after the other."""
    signature = program.module_call_graph[0].signature
    arguments = program.example_inputs
    if signature is None or arguments is None:
        return program
    leaves = tuple(pytree.tree_leaves(arguments))
    flat = pytree.tree_structure((leaves, {}))
    if signature.in_spec != flat:
        signature.in_spec = flat
        signature.forward_arg_names = None
        program.example_inputs = (leaves, {})
    return program


def _explain_export(error: Exception) -> Invalid:
    why, where = first_line(error), find_line(error)
    if "data-dependent" in why:
        what = "the model has data-dependent control flow"
        return Invalid(what, where=where, why=why, fix="compute both branches and select with torch.where")
    fix = "make model(*example_inputs) work first, and then torch.export.export(model, example_inputs)"
    return Invalid("torch.export cannot export the model", where=where, why=why, fix=fix)


@contextmanager
def translate_errors(what: str, fix: str) -> Generator[None]:
    """Raise errors of other packages as what they mean for the user."""
    try:
        yield
    except TosaicError:
        raise
    except Exception as error:
        raise Invalid(what, where=find_line(error), why=first_line(error), fix=fix) from error


def refuse_dynamic(program: ExportedProgram | GraphModule) -> None:
    """Raise Invalid for a graph with dynamic shapes."""
    node = next((n for n in program.graph.nodes if _list_dynamic(n)), None)
    if node is None:
        return
    if overload(node) == "getitem":
        node = node.all_input_nodes[0]
    if node.op == "placeholder":
        dims = ", ".join(map(str, _list_dynamic(node)))
        raise Invalid(
            "the program has dynamic shapes",
            why=f"dimension {dims} of input `{node.name}` is dynamic, but an NPU command stream has fixed shapes",
            fix="export without dynamic_shapes, once per shape",
        )
    raise Invalid(
        "the program has dynamic shapes",
        where=source_line(node),
        why=f"the shape of `{node.name}` ({overload(node)}) is data-dependent",
        fix="use an operator with a fixed output shape: a mask or torch.where instead of nonzero or x[mask]",
    )


def refuse_loops(module: GraphModule) -> None:
    """Raise Invalid for a graph with a loop that could not be unrolled."""
    loop = find_loop(module)
    if loop is not None:
        raise Invalid(
            "the model has a `while_loop` whose steps are not known before it runs",
            where=source_line(loop),
            why=f"ExecuTorch has no operator for it, and Tosaic repeats its body only if it knows how often: at most "
            f"{MOST_STEPS:,} times",
            fix="repeat a fixed number of times and choose with torch.where, or compile one step and loop around it",
        )


_STRIDED = ("aten.as_strided.default", "aten.as_strided_copy.default")


def refuse_strided(program: ExportedProgram | GraphModule) -> None:
    """Raise Invalid for a graph that reads the memory behind a view, such as the matrix behind its diagonal."""
    for node in program.graph.nodes:
        if overload(node) in _STRIDED:
            # What is dequantized has memory of its own, and no value in a converted module.
            read = input_node(node).meta.get("val")
            if read is not None and (find_memory_order(read) is None or _reads_beyond(node, read)):
                raise Invalid(
                    "`as_strided` reads the memory of a tensor that is a part of another one",
                    where=source_line(node),
                    why="programs have no views: their tensors have memory of their own",
                    fix="call .contiguous() first and use the strides of that tensor, or index it",
                )


def _reads_beyond(node: Node, tensor: torch.Tensor) -> bool:
    """Tell whether a call reads numbers that are not those of its operand, a computed part of another tensor."""
    if input_node(node).op != "call_function":
        return False
    a = bind(node)
    size, stride, offset = a["size"], a["stride"], a["storage_offset"]
    last = (offset or 0) + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    # An offset counts from the start of the memory, which is not that of the part.
    return (offset is not None and tensor.storage_offset() > 0) or (0 not in size and last >= tensor.numel())


def _list_dynamic(node: Node) -> list[int]:
    """List the dimensions of a node's result that have no fixed size."""
    value = node.meta.get("val")
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    return [d for d, size in enumerate(shape) if isinstance(size, torch.SymInt)]


def make_functional(program: ExportedProgram) -> ExportedProgram:
    """Functionalize a program if aliases can see its in-place ops, before observers are inserted."""
    program = unroll_program(inline_modes(program))
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    unsafe = any(updates_statistics(n) or (mutates(n) and not is_private(n)) for n in calls)
    writes = program.graph_signature.user_inputs_to_mutate
    return functionalize_program(program) if unsafe or writes else program


def functionalize_program(program: ExportedProgram) -> ExportedProgram:
    """Functionalize a program, without writes to its own inputs."""
    fix = "call .clone() on the tensor that it changes in place"
    with translate_errors("the model changes a tensor in place, and torch cannot tell what else changes", fix):
        return _keep_inputs(functionalize(program))


def _keep_inputs(program: ExportedProgram) -> ExportedProgram:
    """Remove writes to the program's own inputs: a caller gets what the model returns, and nothing else."""
    signature, output = program.graph_signature, program.graph.output_node()
    results: Any = output.args[0]
    kept = [(s, n) for s, n in zip(signature.output_specs, results, strict=True) if s.kind is not _INPUT_WRITE]
    signature.output_specs = [s for s, _ in kept]
    output.args = (tuple(n for _, n in kept),)
    program.graph.eliminate_dead_code()
    return program


#: besides operators of torch
_PLAIN = (operator.getitem, torch.ops.higher_order.executorch_call_delegate)


def skip_noop_decompositions(program: ExportedProgram) -> None:
    """Make a functional program return itself when exir wants to decompose operators that it does not have.

    Exir would trace it only to get the same program, which is a large part of its total time.
    """
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    # Functionalizing is more than a table look-up, so only functional programs, or those of delegates and q/dq alone.
    if program.dialect == "ATEN" or all(n.target in _PLAIN or overload(n) in QDQ for n in calls):
        replace_class(program, _Functional)


def find_decomposition(target: Any) -> Any:
    """Find torch's decomposition of an operator that exir would keep and reject; return others unchanged."""
    if not is_overload(target) or target.namespace != "aten" or has_out_variant(target):
        return target
    composed, on_cpu = map(target.has_kernel_for_dispatch_key, (DispatchKey.CompositeImplicitAutograd, DispatchKey.CPU))
    # Exir decomposes every other composite operator, and replaces views by copies.
    if not composed or not on_cpu:
        return target
    return find_registered(target) or find_registered(_find_public(target)) or target


def _find_public(target: Any) -> Any:
    """Find the public operator of a `native_` kernel: torch has decompositions of what users call."""
    name = target.overloadpacket.__name__.removeprefix("native_")
    public: Any = getattr(getattr(torch.ops.aten, name, None), target._overloadname, target)
    return public if _list_arguments(public) == _list_arguments(target) else target


def _list_arguments(target: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in target._schema.arguments]


def has_out_variant(target: OpOverload) -> bool:
    """Tell whether ExecuTorch can call an operator that falls back to the CPU."""
    try:
        to_out_variant(target)
    except RuntimeError:
        return False
    except (AssertionError, AttributeError):
        # Exir cannot read its schema, so it does not look for an out variant of it.
        return True
    return True


#: checks of values at run time, which exir removes at the very end
_CHECKS = frozenset({"aten._assert_async.msg", "aten._assert_async.default", "aten._assert_scalar.default"})


def drop_checks(program: ExportedProgram) -> ExportedProgram:
    """Remove checks of values from the program: exir's sort can put a node without users after the output."""
    checks = [n for n in program.graph.nodes if overload(n) in _CHECKS]
    for node in checks:
        program.graph.erase_node(node)
    if checks:
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
    return program


class _Functional(ExportedProgram):
    """A program without in-place operators."""

    def run_decompositions(self, decomp_table: Any = None, decompose_custom_triton_ops: bool = False) -> Any:
        targets: set[Any] = {n.target for n in self.graph.nodes if n.op == "call_function"}
        plain = all(isinstance(t, OpOverload) or t in _PLAIN for t in targets) and not _list_formats(self)
        if plain and decomp_table and not any(t in decomp_table for t in targets):
            return self
        formats = _list_formats(self)
        try:
            for node, kwargs in formats.items():
                node.kwargs = {k: v for k, v in kwargs.items() if k != "memory_format"}
            return drop_checks(run_torch_decompositions(self, decomp_table, decompose_custom_triton_ops))
        finally:
            for node, kwargs in formats.items():
                node.kwargs = kwargs


def _list_formats(program: ExportedProgram) -> dict[Node, dict[str, Any]]:
    """List the calls that fill a tensor in a memory order that ExecuTorch's kernels for them do not support."""
    fills = (n for n in program.graph.nodes if overload(n) in FILLS)
    return {n: dict(n.kwargs) for n in fills if n.kwargs.get("memory_format") is not None}


def fill_scalars(program: ExportedProgram) -> None:
    """Make tensors of one number by `full` in an edge program: exir's decomposition calls what it cannot write."""
    ops: Any = exir_ops.edge
    for node in program.graph.nodes:
        if overload(node) == _SCALAR:
            node.target = ops.aten.full.default
            node.args, node.kwargs = ([], *node.args), {"dtype": node.meta["val"].dtype}


_SCALAR = "prims.scalar_tensor.default"
