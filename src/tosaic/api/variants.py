"""Compiles one model in many ways: it is exported and quantized once per precision, and every result is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tosaic.api.build import finish, make_spec
from tosaic.api.prepare import Prepared, prepare
from tosaic.api.program import Program
from tosaic.api.torch_reference import find_sqnr
from tosaic.core.errors import TosaicError
from tosaic.report.choices import Choice, Options


@dataclass
class Variants:
    """A model and the ways in which it was compiled so far.

    calibration  as in `compile`, and so are precision_for and per_channel; without samples the accuracy is not
                 measured: one example says little
    cpu_in_dram  whether the tensors of the CPU are in DRAM
    clock        of the NPU in Hz; 0 for that of the system configuration
    """

    model: Any
    inputs: Any
    calibration: Iterable[Any] | str | Path | None = None
    precision_for: Mapping[str, str] | None = None
    per_channel: bool = True
    cpu_in_dram: bool = False
    clock: int = 0
    max_memory: int | None = None
    progress: Callable[[str], None] | None = None
    config_ini: str | None = None
    compiles: int = 0
    choices: dict[Options, Choice] = field(default_factory=dict[Options, Choice])
    programs: dict[Options, Program] = field(default_factory=dict[Options, Program])
    #: bytes in SRAM that are not the NPU's tensors: those of the CPU, and a program that is in SRAM
    fixed: dict[Options, int] = field(default_factory=dict[Options, int])
    failed: dict[Options, str] = field(default_factory=dict[Options, str])
    notes: list[str] = field(default_factory=list[str])
    _prepared: dict[tuple[str, str], Prepared] = field(default_factory=dict[tuple[str, str], Prepared])

    def compile(self, options: Options) -> Choice | None:
        """Compile and measure, unless that was done; None if it cannot be compiled, `failed` says why."""
        if options in self.choices or options in self.failed:
            return self.choices.get(options)
        self.compiles += 1
        if self.progress is not None:
            self.progress(f"compile {self.compiles}: {options.target} {options.describe()}")
        try:
            spec = make_spec(
                options.target,
                options.system_config or None,
                options.memory_mode or None,
                config_ini=self.config_ini,
                extra_flags=options.list_flags(),
            )
            prepared = self._prepare(options)
            program = finish(prepared.copy(), spec, io=options.io, layout=options.layout)
        except TosaicError as error:
            if not self.choices and not self._prepared:
                # The model itself is the problem, and no other option would help.
                raise
            self.failed[options] = error.what
            return None
        self.programs[options] = program
        self.choices[options] = self._measure(options, program, prepared)
        return self.choices[options]

    def forget(self, kept: Iterable[Options]) -> None:
        """Free the programs of all other options."""
        wanted = set(kept)
        self.programs = {options: program for options, program in self.programs.items() if options in wanted}

    def _prepare(self, options: Options) -> Prepared:
        # Float and int8 are the same quantized graph: with int8, the caller does what the CPU does with float.
        io = "float" if options.io == "int8" and options.precision != "a16w8" else options.io
        key = options.precision, io
        if key not in self._prepared:
            made = prepare(
                self.model,
                self.inputs,
                make_spec(options.target),
                calibration=self.calibration,
                io=io,
                precision=options.precision,
                precision_for=self.precision_for,
                per_channel=self.per_channel,
                max_memory=self.max_memory,
                progress=self.progress,
            )
            self.notes += [note for note in made.notes if note not in self.notes]
            self._prepared[key] = made
        return self._prepared[key]

    def _measure(self, options: Options, program: Program, prepared: Prepared) -> Choice:
        estimates = [found for d in program.delegates if (found := d.artifact.estimate_cycles()) is not None]
        cycles, memory = sum(estimate.cycles for estimate in estimates), program.memory
        flash = len(program.pte) + sum(map(len, program.data.values()))
        uses = memory.list_uses(flash)
        cpu = sum(memory.planned)
        in_sram, cpu_in_sram = sum(uses.get("SRAM", {}).values()), 0 if self.cpu_in_dram else cpu
        self.fixed[options] = cpu_in_sram + uses.get("SRAM", {}).get("the program", 0)
        return Choice(
            options=options,
            cycles=cycles,
            seconds=cycles / self.clock if self.clock else sum(estimate.seconds for estimate in estimates),
            sram=in_sram - cpu if self.cpu_in_dram else in_sram,
            dram=(memory.scratch if memory.scratch_in == "Dram" else 0) + (cpu if self.cpu_in_dram else 0),
            flash=flash,
            fallback=sum(not reason.is_io for reason in program.reasons),
            sqnr=None if self.calibration is None else _measure_accuracy(prepared),
            sha256=hashlib.sha256(program.pte).hexdigest(),
        )


def _measure_accuracy(prepared: Prepared) -> float | None:
    """Measure how far torch's quantized graph is from the float model on the samples: the worst output, in dB."""
    samples = [sample for sample in prepared.samples if sample.outputs and sample.torch]
    figures: list[float] = []
    for position in range(len(samples[0].outputs) if samples else 0):
        floats = [sample.outputs[position] for sample in samples]
        if all(array.dtype.kind == "f" for array in floats):
            got = [sample.torch[position].astype(float) for sample in samples]
            figures.append(find_sqnr(got, [array.astype(float) for array in floats]))
    # Without noise there is no figure.
    return min((figure for figure in figures if figure < float("inf")), default=None)
