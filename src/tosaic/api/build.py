"""The high-level API: a PyTorch model in, a finished Program out."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic.api import calibration as data
from tosaic.api.program import Program, describe
from tosaic.backends.registry import find_backend, find_backend_for
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid, Unsupported
from tosaic.core.heap import collect_garbage_after
from tosaic.core.hints import Hint
from tosaic.core.quiet import quiet
from tosaic.core.targets import find
from tosaic.driver.carry import carry_results
from tosaic.driver.delegate import CompiledGraph, build, dump
from tosaic.driver.exported import (
    export,
    functionalize_program,
    make_functional,
    refuse_dynamic,
    refuse_loops,
    refuse_strided,
    translate_errors,
)
from tosaic.driver.pack import Signature, infer_io_signature, pack, write_etrecord
from tosaic.driver.partition import Plan
from tosaic.driver.reason import explain, log_reasons
from tosaic.driver.trait import find_traits
from tosaic.formats import blob
from tosaic.formats.npy import Array
from tosaic.formats.sidecar import MAX_SAMPLES, Sample
from tosaic.fx.arrays import to_numpy
from tosaic.fx.execution import Execution
from tosaic.fx.source import QDQ, Source, overload
from tosaic.fx.torch_compat import pytree
from tosaic.fx.unlift import unlift
from tosaic.ops import registry
from tosaic.quantization.convert import can_convert
from tosaic.quantization.convert import convert as convert_observers
from tosaic.quantization.decompose import simplify
from tosaic.quantization.loops import has_loops, unroll_loops
from tosaic.quantization.norms import fold_norms
from tosaic.quantization.observe import observe
from tosaic.quantization.precisions import DEFAULT, IO_KINDS, Precision
from tosaic.quantization.prepare import find_other_float, is_private, mutates
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.ranges import watch
from tosaic.quantization.recipes import get_symmetric_quantization_config
from tosaic.quantization.states import quantize_buffers

LAYOUTS = ("nchw", "nhwc")
EXTERNAL = tuple(blob.EXTERNAL.values())
#: the types of tensors that a .tosaic file can hold
_KEPT = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    )
)


@dataclass
class Stages:
    """Names the stages of a compile as they start, and records the seconds that each took."""

    announce: Callable[[str], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        if self.announce is not None:
            self.announce(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def count(self, name: str, samples: Sequence[data.Sample]) -> Iterator[data.Sample]:
        """Yield samples, and announce each within its stage: `quantize: sample 7/16`."""
        for i, sample in enumerate(samples, 1):
            if self.announce is not None:
                self.announce(f"{name}: sample {i}/{len(samples)}")
            yield sample


@quiet()
def quantize(
    program: ExportedProgram,
    samples: Iterable[Sequence[torch.Tensor]],
    quantizer: Quantizer | None = None,
) -> GraphModule:
    """Quantize an exported program after training, with calibration samples."""
    exported: Any = program
    if not isinstance(exported, ExportedProgram):
        raise Invalid(
            f"the program is `{type(exported).__name__}`, not an exported one",
            fix="pass torch.export.export(model, inputs)",
        )
    program = make_functional(program)
    return unroll_loops(_quantize(program, _unlift(program), samples, quantizer, []))


def _unlift(program: ExportedProgram) -> GraphModule:
    with collect_garbage_after(gives_back=False):
        return unlift(program)


def _quantize(
    program: ExportedProgram,
    module: GraphModule,
    samples: Iterable[Sequence[torch.Tensor]],
    quantizer: Quantizer | None,
    notes: list[str],
) -> GraphModule:
    """Quantize the module of a program, and record what calibration has measured; recurrent layers stay rolled.

    The module is used up.
    """
    chosen = quantizer or TosaQuantizer().set_global(get_symmetric_quantization_config())
    with torch.no_grad():
        with collect_garbage_after(gives_back=False):
            _reset(module, program)
            fold_norms(module)
            own = isinstance(chosen, TosaQuantizer)
            module = observe(module, chosen.keep_rolled()) if own else prepare_pt2e(module, chosen)
        fix = "make sure that it returns finite numbers for every sample"
        with translate_errors("the model cannot be calibrated", fix), watch(module, notes):
            run = Execution(module)
            for sample in samples:
                run(*sample)
        with collect_garbage_after():
            convert = convert_observers if can_convert(module) else convert_pt2e
            converted = _reset(convert(module), program)
            quantize_buffers(converted)
            return converted


def _reset(module: GraphModule, program: ExportedProgram) -> GraphModule:
    """Replace the buffers that a module writes to by fresh copies with their initial values."""
    for name in program.graph_signature.buffers_to_mutate.values():
        start = program.state_dict.get(name, program.constants.get(name))
        assert isinstance(start, torch.Tensor)
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, start.clone())
    return module


@quiet()
def compile(
    model: torch.nn.Module | ExportedProgram | GraphModule,
    example_inputs: Sequence[Any] | None = None,
    target: str | ArmCompileSpec = "ethos-u55-128",
    *,
    kwargs: Mapping[str, Any] | None = None,
    calibration: Iterable[Any] | str | Path | None = None,
    io: str = "float",
    layout: str = "nchw",
    system_config: str | None = None,
    memory_mode: str | None = None,
    external: Collection[str] = (),
    precision: str = DEFAULT,
    precision_for: Mapping[str, str] | None = None,
    per_channel: bool = True,
    quantizer: Quantizer | None = None,
    quantized: bool = True,
    delegate: bool = True,
    etrecord: bool = False,
    progress: Callable[[str], None] | None = None,
    max_memory: int | None = None,
) -> Program:
    """Compile a model for a target.

    model           an nn.Module in eval mode, an exported program, or a module that PT2E has converted already
    example_inputs  tensors with the shapes and dtypes the program will be called with; or dicts and lists of tensors,
                    which the program takes one after the other
    target          a name (`tosaic targets` lists them) or a compile spec
    kwargs          inputs that `forward` takes by name; the program takes them after the others
    calibration     samples to measure ranges with: an iterable such as a DataLoader, a .npz/.npy/.pt file, or a folder
                    of them. Batches are split, labels are left out, and the inputs in a dict are found by their names
    io, layout      how the program is called: float, int8, uint8 or int16 I/O, channels second or last
    external        what to keep in .ptd files next to the .pte of an Ethos-U: weights, commands
    precision       int8, a16w8 (16-bit activations) or a8w4 (4-bit weights)
    precision_for   other precisions, or float, of modules by their path or class name: {"head": "a16w8"}
    per_channel     False gives all weights of an operator one scale
    quantizer       instead of a precision: a quantizer with settings of its own
    quantized       False leaves a float model in float
    delegate        False leaves all of it on the CPU
    etrecord        True keeps an ETRecord of the program, for ExecuTorch's developer tools: `program.etrecord`
    progress        is called with the name of each stage as it begins, and with `quantize: sample 7/16`
    max_memory      limit for calibration files in bytes; default: 1 GiB

    May be called from several threads, which take turns: torch.export serves one thread at a time.
    """
    _check_choice("layout", layout, LAYOUTS)
    spec = make_spec(target, system_config, memory_mode, external)
    prepared = prepare(
        model,
        example_inputs,
        spec,
        kwargs=kwargs,
        calibration=calibration,
        io=io,
        precision=precision,
        precision_for=precision_for,
        per_channel=per_channel,
        quantizer=quantizer,
        quantized=quantized,
        delegate=delegate,
        progress=progress,
        max_memory=max_memory,
    )
    return finish(prepared, spec, io=io, layout=layout, delegate=delegate, etrecord=etrecord, progress=progress)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that is exported and, if wanted, quantized: what all compiles with the same precision share."""

    module: ExportedProgram | GraphModule
    inputs: tuple[torch.Tensor, ...]
    samples: list[Sample]
    notes: tuple[str, ...]
    seconds: Mapping[str, float]
    precision: Precision
    quantized: bool

    def copy(self) -> Prepared:
        """Copy the graph, which a compile changes; the weights are shared."""
        if isinstance(self.module, ExportedProgram):
            return self
        tensors = (*self.module.parameters(), *self.module.buffers())
        with quiet():
            return replace(self, module=copy.deepcopy(self.module, {id(tensor): tensor for tensor in tensors}))


@quiet()
def prepare(
    model: torch.nn.Module | ExportedProgram | GraphModule,
    example_inputs: Sequence[Any] | None,
    spec: ArmCompileSpec,
    *,
    kwargs: Mapping[str, Any] | None = None,
    calibration: Iterable[Any] | str | Path | None = None,
    io: str = "float",
    precision: str = DEFAULT,
    precision_for: Mapping[str, str] | None = None,
    per_channel: bool = True,
    quantizer: Quantizer | None = None,
    quantized: bool = True,
    delegate: bool = True,
    progress: Callable[[str], None] | None = None,
    max_memory: int | None = None,
) -> Prepared:
    """Export and quantize a model: the first half of `compile`. The target matters only by its TOSA profile."""
    _check_choice("io", io, IO_KINDS)
    chosen = Precision(precision, dict(precision_for or {}), per_channel)
    if quantizer is not None and not chosen.is_default:
        raise Invalid("both a precision and a quantizer are given", fix="set the precision in the quantizer")
    stages, notes = Stages(progress), list[str]()
    model, inputs = _flatten_inputs(model, example_inputs, kwargs or {})
    module, samples = _export_and_quantize(
        model, inputs, spec, calibration, max_memory, quantizer or chosen, io, quantized, delegate, stages, notes
    )
    return Prepared(module, inputs, samples, tuple(notes), stages.seconds, chosen, quantized)


@quiet()
def finish(
    prepared: Prepared,
    spec: ArmCompileSpec,
    *,
    io: str = "float",
    layout: str = "nchw",
    delegate: bool = True,
    etrecord: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Program:
    """Lower, compile and pack a prepared model: the second half of `compile`. It changes the graph of the model."""
    _check_choice("io", io, IO_KINDS)
    _check_choice("layout", layout, LAYOUTS)
    stages, notes = Stages(progress, dict(prepared.seconds)), list(prepared.notes)
    module, inputs = prepared.module, prepared.inputs
    source = _make_source(module, inputs)
    if delegate and carry_results(source, spec.target):
        source = _make_source(module, inputs)
    signature = infer_io_signature(source, io, layout)
    _check_io(signature, io)
    if not signature.outputs:
        raise Invalid("the model returns no tensor", fix="return the results at the end of forward")
    with stages.stage("compile"):
        built = (
            build(source, spec, nhwc=signature.nhwc, caller_quantizes=signature.caller_quantizes)
            if delegate
            else _plan_cpu_only(source)
        )
    if delegate and not built.delegates and built.plan.reasons:
        notes.append(f"nothing runs on {spec.target.name}: all {len(built.plan.reasons):,} nodes are on the CPU")
    for number, one in enumerate(built.delegates):
        dump(one, spec, number)
    if delegate and not prepared.quantized:
        _refuse_float(source, built, spec)
    with stages.stage("pack"):
        metadata = describe(signature) if io != "float" or layout == "nhwc" else {}
        fix = "replace the operator that it names"
        with translate_errors("ExecuTorch cannot lower the CPU part of the model", fix), collect_garbage_after():
            program = pack(
                source, built, signature, find_backend(spec).id, spec.to_program(), metadata, with_etrecord=etrecord
            )
            record = write_etrecord(program) if etrecord else None
    precision = prepared.precision.describe()
    finished = Program.make(
        spec,
        built,
        signature,
        program,
        prepared.samples,
        find_traits(source),
        stages.seconds,
        notes,
        precision,
        record,
    )
    log_reasons(finished.reasons)
    return finished


def _check_io(signature: Signature, io: str) -> None:
    """Check that quantized inputs and outputs have the type that was asked for; int8 stands for all integers."""
    found = next((t for t in (*signature.inputs, *signature.outputs) if t.scale is not None and t.dtype != io), None)
    if io in ("uint8", "int16") and found is not None:
        raise Invalid(
            f"io is `{io}`, but `{found.name}` is quantized to {found.dtype}",
            fix="call `set_io` of the quantizer with a configuration of that type",
        )


def make_spec(
    target: str | ArmCompileSpec,
    system_config: str | None = None,
    memory_mode: str | None = None,
    external: Collection[str] = (),
    *,
    config_ini: str | None = None,
    extra_flags: Sequence[str] = (),
) -> ArmCompileSpec:
    """Make the compile spec of a target name; `config_ini` and `extra_flags` are Vela's."""
    for part in external:
        _check_choice("a part in external", part, EXTERNAL)
    if isinstance(target, ArmCompileSpec):
        if external:
            fix = "create it with `external_block_placements`"
            raise Invalid("`external` is an option of the compile spec that is the target", fix=fix)
        return target
    given: Any = target
    if not isinstance(given, str):
        raise Invalid(
            f"the target is of type `{type(given).__name__}`",
            fix="pass a target name; `tosaic targets` lists all of them",
        )
    found = find(target)
    return find_backend_for(found).make_system_spec(
        found, system_config, memory_mode, external, config_ini, extra_flags
    )


def _check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise Invalid(f"{what} is `{value}`", fix=f"use one of {', '.join(choices)}")


def _flatten_inputs(
    model: Any, example_inputs: Sequence[Any] | None, kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Export a model that takes dicts, lists or keyword arguments, with one input per tensor in them."""
    listed = example_inputs if isinstance(example_inputs, tuple | list) else ()
    if not kwargs and not any(isinstance(x, dict | list | tuple) for x in listed):
        return model, _check_examples(model, example_inputs)
    if isinstance(model, ExportedProgram) or (isinstance(model, GraphModule) and _is_quantized(model.graph)):
        raise Invalid("the model is exported already", fix="pass its inputs as tensors, in the order of its signature")
    given = tuple(example_inputs or ())
    leaves = _check_examples(model, pytree.tree_leaves((given, dict(kwargs))))
    return export(model, given, kwargs), leaves


def _check_examples(model: Any, example_inputs: Sequence[torch.Tensor] | None) -> tuple[torch.Tensor, ...]:
    if example_inputs is None and isinstance(model, ExportedProgram) and model.example_inputs is not None:
        example_inputs = model.example_inputs[0]
    if example_inputs is None:
        raise Invalid("example_inputs are missing", fix="pass a tuple of tensors, e.g. (torch.randn(1, 3, 224, 224),)")
    if isinstance(example_inputs, torch.Tensor):
        raise Invalid("example_inputs is a tensor", fix="pass a tuple of tensors: (x,)")
    given: list[Any] = list(example_inputs)
    for i, x in enumerate(given):
        if not isinstance(x, torch.Tensor):
            raise Invalid(
                f"example input {i} is of type `{type(x).__name__}`",
                fix="pass tensors, or dicts and lists of tensors",
            )
    return tuple(given)


def _export_and_quantize(
    model: Any,
    inputs: tuple[torch.Tensor, ...],
    spec: ArmCompileSpec,
    calibration: Any,
    max_memory: int | None,
    quantizer: Quantizer | Precision,
    io: str,
    quantized: bool,
    delegate: bool,
    stages: Stages,
    notes: list[str],
) -> tuple[ExportedProgram | GraphModule, list[Sample]]:
    """Export and quantize the model unless it already is; return samples with torch's results."""
    if isinstance(model, GraphModule) and _is_quantized(model.graph):
        refuse_dynamic(model)
        refuse_loops(model)
        _refuse_precision(quantizer)
        _check_signature(Source.of_module(model), inputs)
        return model, _keep([inputs], [], _run(model, [inputs]))
    with stages.stage("export"):
        program = model if isinstance(model, ExportedProgram) else export(model, inputs)
    refuse_dynamic(program)
    refuse_strided(program)
    _check_signature(Source.of_program(program), inputs)
    program = make_functional(program)
    refuse_loops(program.graph_module)
    # Indices are integers, but the result of an embedding is not.
    values = [node.meta.get("val") for node in program.graph.nodes]
    floats = any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
    if not quantized or not floats or "INT" not in spec.target.tosa_spec or _is_quantized(program.graph):
        if calibration is not None:
            notes.append("the calibration data was not used: nothing is quantized")
        _refuse_precision(quantizer)
        results, done = _run(program.module(), [inputs]), _is_quantized(program.graph)
        kept = _keep([inputs], results if floats and not done else [], results)
        return program if done or not delegate else simplify(program, "INT" in spec.target.tosa_spec), kept
    other = find_other_float(program.graph)
    if other is not None and ("FP" in spec.target.tosa_spec or not delegate):
        _refuse_precision(quantizer)
        notes.append(f"the model is {other} and only float32 is quantized: it stays in float; call model.float() first")
        results = _run(program.module(), [inputs])
        simple = simplify(program, "INT" in spec.target.tosa_spec) if delegate else program
        return simple, _keep([inputs], results, results)
    if other is not None:
        notes.append(f"the model is {other}: it is quantized as a float32 model, with {other} inputs and outputs")
    with stages.stage("quantize"):
        if isinstance(quantizer, Precision):
            quantizer = quantizer.make_quantizer(program.graph, io)
        if calibration is None:
            notes.append(
                Hint(
                    "no calibration data: ranges come from the example input only; pass samples with `calibration`",
                    "no calibration data: ranges come from the example input only; pass samples with `--calibration`",
                )
            )
            samples = [data.check(inputs, inputs, "the example input")]
        else:
            names = [node.name for node in Source.of_program(program).inputs]
            samples = data.read(calibration, inputs, max_memory, names=names, notes=notes)
        module = _unlift(program)
        results = _run(module, samples)
        module = _quantize(program, module, stages.count("quantize", samples), quantizer, notes)
        if not has_loops(module):
            return module, _keep(samples, results, _run(module, samples))
    with stages.stage("unroll"):
        module = unroll_loops(module)
        return module, _keep(samples, results, _run(module, samples))


def _refuse_precision(quantizer: Quantizer | Precision) -> None:
    """Reject a precision for a model that is not quantized here."""
    if isinstance(quantizer, Precision) and not quantizer.is_default:
        raise Invalid(
            "a precision is given, and nothing is quantized",
            why="the model is quantized already, or it stays in float",
            fix="pass a float model, or leave out the precision",
        )


def _run(module: GraphModule, samples: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Run torch on the kept samples; the module's buffers are left unchanged."""
    writes = any(n.op == "call_function" and mutates(n) for n in module.graph.nodes)
    start = [(buffer, buffer.clone()) for buffer in module.buffers()] if writes else []
    results: list[list[torch.Tensor]] = []
    run = Execution(module)
    with torch.no_grad(), translate_errors("the model does not run", "make model(*example_inputs) work first"):
        for sample in samples[:MAX_SAMPLES]:
            results.append([x.clone() for x in run(*(x.clone() for x in sample)) if isinstance(x, torch.Tensor)])
            for buffer, value in start:
                buffer.copy_(value)
    return results


def _keep(
    samples: Sequence[Sequence[torch.Tensor]], floats: Sequence[list[torch.Tensor]], results: list[list[torch.Tensor]]
) -> list[Sample]:
    """Make samples with the outputs of the float model, if there are any, and of the graph that is compiled."""
    rows = list(zip(samples, floats or [()] * len(results), results, strict=False))
    if not all(x.dtype in _KEPT for row in rows for part in row for x in part):
        return []
    return [Sample(*(tuple(map(_copy, part)) for part in row)) for row in rows]


def _copy(tensor: torch.Tensor) -> Array:
    """Copy a tensor to a new array; floats that numpy lacks are kept as their bits."""
    return to_numpy(tensor.detach().clone(memory_format=torch.contiguous_format))


def _is_quantized(graph: torch.fx.Graph) -> bool:
    return any(n.op == "call_function" and overload(n) in QDQ for n in graph.nodes)


def _check_signature(source: Source, inputs: Sequence[torch.Tensor]) -> None:
    data.check(inputs, [n.meta["val"] for n in source.inputs], "the example input", finite=False)


def _make_source(module: ExportedProgram | GraphModule, inputs: tuple[torch.Tensor, ...]) -> Source:
    """Return the graph in functional form: an in-place op with visible effects is functionalized first."""
    source = Source.of_program(module) if isinstance(module, ExportedProgram) else Source.of_module(module)
    if not any(mutates(n) and not (is_private(n) and registry().find(overload(n))) for n in source.calls()):
        return source
    program = module if isinstance(module, ExportedProgram) else torch.export.export(module, inputs)
    return Source.of_program(functionalize_program(program))


def _plan_cpu_only(source: Source) -> CompiledGraph:
    """Make a plan that leaves everything on the CPU."""
    out = {
        n: Unsupported(
            "delegation is switched off", Hint("compile without `delegate=False`", "compile without `--no-delegate`")
        )
        for n in source.calls()
    }
    return CompiledGraph((), Plan((), explain(out)))


def _refuse_float(source: Source, built: CompiledGraph, spec: ArmCompileSpec) -> None:
    if built.delegates or not spec.target.is_npu or _is_quantized(source.graph):
        return
    if any(getattr(source.val(n), "is_floating_point", lambda: False)() for n in source.calls()):
        raise Invalid(
            f"the model is float and {spec.target.name} is an integer NPU",
            fix=Hint(
                "quantize it (leave out `quantized=False`), or compile with `delegate=False` for the CPU",
                "quantize it (leave out `--no-quantize`), or compile with `--no-delegate` for the CPU",
            ),
        )
