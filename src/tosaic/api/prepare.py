"""The first half of a compile: export a model, calibrate and quantize it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid, check_choice
from tosaic.core.heap import collect_garbage_after
from tosaic.core.hints import Hint
from tosaic.core.quiet import quiet
from tosaic.driver.exported import (
    export,
    make_functional,
    refuse_dynamic,
    refuse_loops,
    refuse_strided,
    translate_errors,
)
from tosaic.formats.npy import Array
from tosaic.formats.sidecar import MAX_SAMPLES, Sample
from tosaic.fx.arrays import to_numpy
from tosaic.fx.execution import Execution
from tosaic.fx.source import QDQ, Source, overload
from tosaic.fx.torch_compat import pytree
from tosaic.fx.unlift import unlift
from tosaic.quantization.convert import can_convert
from tosaic.quantization.convert import convert as convert_observers
from tosaic.quantization.decompose import simplify
from tosaic.quantization.loops import has_loops, unroll_loops
from tosaic.quantization.norms import fold_norms
from tosaic.quantization.observe import observe
from tosaic.quantization.precisions import DEFAULT, IO_KINDS, Precision
from tosaic.quantization.prepare import find_other_float, mutates
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.ranges import watch
from tosaic.quantization.recipes import get_symmetric_quantization_config
from tosaic.quantization.states import quantize_buffers

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
    refuse_strided(program)
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
        fix = _check_parameters(program)
        with collect_garbage_after(gives_back=False):
            _reset(module, program)
            fold_norms(module)
            own = isinstance(chosen, TosaQuantizer)
            module = observe(module, chosen.keep_rolled()) if own else prepare_pt2e(module, chosen)
        with translate_errors("the model cannot be calibrated", fix), watch(module, notes):
            run = Execution(module)
            for sample in samples:
                run(*sample)
        with collect_garbage_after(gives_back=False):
            convert = convert_observers if can_convert(module) else convert_pt2e
            converted = _reset(convert(module), program)
            quantize_buffers(converted)
            return converted


def _check_parameters(program: ExportedProgram) -> str:
    """Reject parameters with NaN, which no integer stands for; return what to do if the results are not finite."""
    infinite = ""
    for name, value in program.state_dict.items():
        # A sum is finite only if all its terms are; it takes less time than to look at each of them.
        plain = value.dtype is torch.float32 and bool(value.sum().isfinite())
        if plain or not value.is_floating_point() or bool(torch.isfinite(value).all()):
            continue
        if bool(torch.isnan(value).any()) and name in program.graph_signature.parameters:
            raise Invalid(
                f"parameter `{name}` of the model contains NaN",
                why="it cannot be quantized",
                fix="check the training and the checkpoint of this layer",
            )
        infinite = infinite or name
    fix = "make sure that it returns finite numbers for every sample"
    return f"{fix}; `{infinite}` contains numbers that are not finite" if infinite else fix


def _reset(module: GraphModule, program: ExportedProgram) -> GraphModule:
    """Replace the buffers that a module writes to by fresh copies with their initial values."""
    for name in program.graph_signature.buffers_to_mutate.values():
        start = program.state_dict.get(name, program.constants.get(name))
        assert isinstance(start, torch.Tensor)
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, start.clone())
    return module


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
    """Export and quantize a model: the first half of `compile`. The target matters only by its TOSA specification."""
    check_choice("io", io, IO_KINDS)
    chosen = Precision(precision, dict(precision_for or {}), per_channel)
    if quantizer is not None and not chosen.is_default:
        raise Invalid("both a precision and a quantizer are given", fix="set the precision in the quantizer")
    stages, notes = Stages(progress), list[str]()
    model, inputs = _flatten_inputs(model, example_inputs, kwargs or {})
    steps = _Steps(
        spec.tosa_spec.supports("INT"),
        spec.tosa_spec.supports("FP"),
        spec.tosa_spec.supports("int16"),
        calibration,
        max_memory,
        quantizer or chosen,
        io,
        quantized,
        delegate,
        stages,
        notes,
    )
    module, samples = steps.run(model, inputs)
    return Prepared(module, inputs, samples, tuple(notes), stages.seconds, chosen, quantized)


def _flatten_inputs(
    model: Any, example_inputs: Sequence[Any] | None, kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Export a model that takes dicts, lists or keyword arguments, with one input per tensor in them."""
    listed = example_inputs if isinstance(example_inputs, tuple | list) else ()
    if not kwargs and not any(isinstance(x, dict | list | tuple) for x in listed):
        return model, _check_examples(model, example_inputs)
    if isinstance(model, ExportedProgram) or (isinstance(model, GraphModule) and is_quantized(model.graph)):
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


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of one preparation; each returns the model, and samples with torch's results.

    integers, floats  what the profile of the target computes with
    stores_int16      whether it stores tensors of 16 bits
    """

    integers: bool
    floats: bool
    stores_int16: bool
    calibration: Any
    max_memory: int | None
    quantizer: Quantizer | Precision
    io: str
    quantized: bool
    delegate: bool
    stages: Stages
    notes: list[str]

    def run(self, model: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[ExportedProgram | GraphModule, list[Sample]]:
        """Export and quantize the model unless it already is."""
        if isinstance(model, GraphModule) and is_quantized(model.graph):
            refuse_dynamic(model)
            refuse_strided(model)
            refuse_loops(model)
            self._refuse_precision()
            _check_signature(Source.of_module(model), inputs)
            return model, _keep([inputs], [], _run(model, [inputs]))
        with self.stages.stage("export"):
            program = model if isinstance(model, ExportedProgram) else export(model, inputs)
        refuse_dynamic(program)
        refuse_strided(program)
        _check_signature(Source.of_program(program), inputs)
        program = make_functional(program)
        refuse_loops(program.graph_module)
        # Indices are integers, but the result of an embedding is not.
        values = [node.meta.get("val") for node in program.graph.nodes]
        has_floats = any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
        if not self.quantized or not has_floats or not self.integers or is_quantized(program.graph):
            if self.calibration is not None:
                self.notes.append("the calibration data was not used: nothing is quantized")
            return self._leave(program, inputs, has_floats and not is_quantized(program.graph))
        other = find_other_float(program.graph)
        if other is not None and (self.floats or not self.delegate):
            self.notes.append(
                f"the model is {other} and only float32 is quantized: it stays in float; call model.float() first"
            )
            return self._leave(program, inputs, True)
        if other is not None:
            self.notes.append(
                f"the model is {other}: it is quantized as a float32 model, with {other} inputs and outputs"
            )
        return self._quantize(program, inputs)

    def _leave(
        self, program: ExportedProgram, inputs: tuple[torch.Tensor, ...], is_float: bool
    ) -> tuple[ExportedProgram | GraphModule, list[Sample]]:
        """Leave a program as it is, but for decompositions of float operators."""
        self._refuse_precision()
        results = _run(program.module(), [inputs])
        kept = _keep([inputs], results if is_float else [], results)
        simple = self.delegate and not is_quantized(program.graph)
        return simplify(program, self.integers) if simple else program, kept

    def _quantize(self, program: ExportedProgram, inputs: tuple[torch.Tensor, ...]) -> tuple[GraphModule, list[Sample]]:
        with self.stages.stage("quantize"):
            chosen = self.quantizer
            if isinstance(chosen, Precision):
                chosen = chosen.make_quantizer(program.graph, self.io, stores_int16=self.stores_int16)
            samples = self._read_samples(program, inputs)
            module = _unlift(program)
            results = _run(module, samples)
            module = _quantize(program, module, self.stages.count("quantize", samples), chosen, self.notes)
            if not has_loops(module):
                return module, _keep(samples, results, _run(module, samples))
        with self.stages.stage("unroll"), collect_garbage_after(gives_back=False):
            module = unroll_loops(module)
            return module, _keep(samples, results, _run(module, samples))

    def _read_samples(self, program: ExportedProgram, inputs: tuple[torch.Tensor, ...]) -> Sequence[data.Sample]:
        if self.calibration is not None:
            names = [node.name for node in Source.of_program(program).inputs]
            return data.read(self.calibration, inputs, self.max_memory, names=names, notes=self.notes)
        self.notes.append(
            Hint(
                "no calibration data: ranges come from the example input only; pass samples with `calibration`",
                "no calibration data: ranges come from the example input only; pass samples with `--calibration`",
            )
        )
        return [data.check(inputs, inputs, "the example input")]

    def _refuse_precision(self) -> None:
        """Reject a precision for a model that is not quantized here."""
        if isinstance(self.quantizer, Precision) and not self.quantizer.is_default:
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


def is_quantized(graph: torch.fx.Graph) -> bool:
    return any(overload(n) in QDQ for n in graph.nodes)


def _check_signature(source: Source, inputs: Sequence[torch.Tensor]) -> None:
    data.check(inputs, [n.meta["val"] for n in source.inputs], "the example input", finite=False)
