"""The high-level API: a PyTorch model in, a finished Program out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic.api.prepare import Prepared, Stages, is_quantized, prepare
from tosaic.api.program import Program, describe
from tosaic.backends.registry import find_backend, find_backend_for
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid, Unsupported, check_choice
from tosaic.core.heap import collect_garbage_after
from tosaic.core.hints import Hint
from tosaic.core.quiet import quiet
from tosaic.core.targets import find
from tosaic.driver.carry import carry_results
from tosaic.driver.delegate import CompiledGraph, build, dump
from tosaic.driver.exported import (
    functionalize_program,
    translate_errors,
)
from tosaic.driver.pack import Signature, infer_io_signature, pack, write_etrecord
from tosaic.driver.partition import Plan
from tosaic.driver.reason import explain, log_reasons
from tosaic.driver.trait import find_traits
from tosaic.formats import blob
from tosaic.fx.decompositions import updates_statistics
from tosaic.fx.source import Source, overload
from tosaic.ops import registry
from tosaic.quantization.precisions import DEFAULT, IO_KINDS
from tosaic.quantization.prepare import is_private, mutates

LAYOUTS = ("nchw", "nhwc")
EXTERNAL = tuple(blob.EXTERNAL.values())


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
    quantizer       instead of a precision: a quantizer that you have set up
    quantized       False leaves a float model in float
    delegate        False leaves all of it on the CPU
    etrecord        True keeps an ETRecord of the program, for ExecuTorch's developer tools: `program.etrecord`
    progress        is called with the name of each stage as it begins, and with `quantize: sample 7/16`
    max_memory      limit for calibration files in bytes; default: 1 GiB

    May be called from several threads, which take turns: torch.export serves one thread at a time.
    """
    check_choice("layout", layout, LAYOUTS)
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
    check_choice("io", io, IO_KINDS)
    check_choice("layout", layout, LAYOUTS)
    stages, notes = Stages(progress, dict(prepared.seconds)), list(prepared.notes)
    module, inputs = prepared.module, prepared.inputs
    source = _make_source(module, inputs)
    if delegate and carry_results(source, spec.target):
        source = _make_source(module, inputs)
    signature = infer_io_signature(source, io, layout)
    _check_io(signature, io)
    if (other := _find_other_floats(signature)) and io != "float":
        notes.append(f"{other} other than float32, which alone is quantized: call model.float() to have them in {io}")
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
    notes += [_describe_separated(number) for number, one in enumerate(built.delegates) if one.separated]
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


def _describe_separated(number: int) -> str:
    return (
        f"Vela miscompiled delegate {number}; compiled again with all operators kept apart, it is right, but slower: "
        "please report the model"
    )


def _check_io(signature: Signature, io: str) -> None:
    """Check that quantized inputs and outputs have the type that was asked for; int8 stands for all integers."""
    found = next((t for t in (*signature.inputs, *signature.outputs) if t.scale is not None and t.dtype != io), None)
    if io in ("uint8", "int16") and found is not None:
        raise Invalid(
            f"io is `{io}`, but `{found.name}` is quantized to {found.dtype}",
            fix="call `set_io` of the quantizer with a configuration of that type",
        )


def _find_other_floats(signature: Signature) -> str:
    """Name the inputs and outputs that stay in a float type other than float32."""
    names = [
        f"`{t.name}`" for t in (*signature.inputs, *signature.outputs) if t.dtype in ("float16", "bfloat16", "float64")
    ]
    return f"{', '.join(names)} {'keeps a float type' if len(names) == 1 else 'keep float types'}" if names else ""


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
        check_choice("a part in external", part, EXTERNAL)
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


def _make_source(module: ExportedProgram | GraphModule, inputs: tuple[torch.Tensor, ...]) -> Source:
    """Return the graph in functional form: an in-place op with visible effects is functionalized first."""
    source = Source.of_program(module) if isinstance(module, ExportedProgram) else Source.of_module(module)
    if not any(_has_effects(n) for n in source.calls()):
        return source
    program = module if isinstance(module, ExportedProgram) else torch.export.export(module, inputs)
    return Source.of_program(functionalize_program(program))


def _has_effects(node: Node) -> bool:
    """Tell whether a call has more effects than its result, which a lowering would lose."""
    return updates_statistics(node) or (mutates(node) and not (is_private(node) and registry().find(overload(node))))


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
    if built.delegates or not spec.target.is_npu or is_quantized(source.graph):
        return
    if any(getattr(source.val(n), "is_floating_point", lambda: False)() for n in source.calls()):
        raise Invalid(
            f"the model is float and {spec.target.name} is an integer NPU",
            fix=Hint(
                "quantize it (leave out `quantized=False`), or compile with `delegate=False` for the CPU",
                "quantize it (leave out `--no-quantize`), or compile with `--no-delegate` for the CPU",
            ),
        )
