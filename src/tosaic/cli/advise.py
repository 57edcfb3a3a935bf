"""`tosaic advise`: the options that would make a program better, measured."""

from __future__ import annotations

from dataclasses import replace

from tosaic.cli import options as o
from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.progress import show_progress
from tosaic.cli.quiet import redirect_prints
from tosaic.cli.size import MaxMemory
from tosaic.core.hints import get_cli_form
from tosaic.core.targets import find


@guarded
def advise_model(
    model: o.Model,
    target: o.TargetName = "ethos-u55-128",
    calibration: o.Calibration = None,
    io: o.IoOption = o.Io.FLOAT,
    layout: o.LayoutOption = o.Layout.NCHW,
    precision: o.PrecisionOption = o.PrecisionName.INT8,
    memory_mode: o.MemoryMode = None,
    system_config: o.SystemConfig = None,
    optimize: o.Optimize = None,
    arena_cache_size: o.ArenaCacheSize = None,
    allow_op: o.AllowOp = None,
    max_memory: MaxMemory = None,
    quiet: o.NoProgress = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Suggest the few options that pay off, each measured by compiling the model with it.

    Pass the options that you use with `tosaic compile` now. Fixes for operators on the CPU are listed too; only you can
    make and measure those.
    """
    from tosaic.api import model_file
    from tosaic.report.choices import Options

    wanted = find(target)
    o.check_calibration(calibration)
    checked = model_file.check(model, max_memory)
    with show_progress(quiet) as progress:
        from tosaic.api.advice import advise

        with redirect_prints():
            loaded = model_file.load_with_samples(model, checked=checked, allow_ops=allow_op or ())
            found = advise(
                loaded.model,
                loaded.inputs,
                Options(
                    wanted.name,
                    memory_mode or wanted.memory_mode,
                    "" if optimize is None else optimize.value,
                    arena_cache_size,
                    io.value,
                    layout.value,
                    precision.value,
                    system_config or "",
                ),
                calibration=loaded.calibration if calibration is None else calibration,
                name=model,
                progress=progress,
                max_memory=max_memory,
            )
    hints = tuple(replace(hint, fix=get_cli_form(hint.fix)) for hint in found.hints)
    notes = tuple(map(get_cli_form, found.notes))
    found = replace(found, hints=hints, notes=notes, given=o.repeat_words(calibration, allow_op))
    if as_json:
        print_json(found.to_json())
        return
    from tosaic.report.advice import show_advice
    from tosaic.report.terminal import Page

    show_advice(Page(), found)
