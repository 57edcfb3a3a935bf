"""`tosaic compile`: from a model to the file that runs on the target."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tosaic.cli import options as o
from tosaic.cli.colors import say
from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.progress import Progress, show_progress
from tosaic.cli.quiet import import_torch, redirect_prints
from tosaic.cli.size import MaxMemory
from tosaic.core.errors import ExitStatus, Invalid
from tosaic.core.hints import get_cli_form
from tosaic.core.output import check_writable, write_files
from tosaic.core.targets import Target, find

if TYPE_CHECKING:
    from tosaic.api.program import Program
    from tosaic.api.verification import Verdict
    from tosaic.report.schema import Report

#: Results of other compilers, which nothing here writes.
_OTHERS = {
    ".tflite": "a TensorFlow Lite model",
    ".onnx": "an ONNX model",
    ".py": "a Python file",
    ".pt2": "a program of torch.export",
}


@guarded
def compile_model(
    context: typer.Context,
    model: o.Model,
    target: o.TargetName = "ethos-u55-128",
    output: o.Output = None,
    calibration: o.Calibration = None,
    io: o.IoOption = o.Io.FLOAT,
    layout: o.LayoutOption = o.Layout.NCHW,
    precision: o.PrecisionOption = o.PrecisionName.INT8,
    precision_for: o.PrecisionFor = None,
    in_float: o.Float = None,
    per_tensor: o.PerTensor = False,
    memory_mode: o.MemoryMode = None,
    system_config: o.SystemConfig = None,
    config_ini: o.ConfigIni = None,
    optimize: o.Optimize = None,
    arena_cache_size: o.ArenaCacheSize = None,
    max_sram: o.MaxSram = None,
    vela_option: o.VelaOption = None,
    external: o.ExternalOption = None,
    no_delegate: o.NoDelegate = False,
    no_quantize: o.NoQuantize = False,
    delegate_data_movement: o.DataMovement = False,
    fail_on_fallback: o.FailOnFallback = False,
    intermediates: o.Intermediates = None,
    no_sidecar: o.NoSidecar = False,
    bundled_io: o.BundledIo = False,
    etrecord: o.EtRecord = False,
    header: o.Header = None,
    verify: o.Verify = False,
    allow_op: o.AllowOp = None,
    max_memory: MaxMemory = None,
    config: o.Config = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compile a model to a .pte file, or to .tosa files for a TOSA target.

    MODEL is the name of a built-in model (`add`, `mobilenet_v2`, ...), a .pt2 file written by torch.export.save, or a
    .py file that defines `model` (an nn.Module in eval mode), `inputs` (a tuple of tensors) and, for quantization,
    `calibration` (samples such as a DataLoader, or a path), which --calibration replaces.
    A .py file is imported, which runs its code: compile only files you trust. No code in a .pt2 file is run.
    With --verify the exit code is 1 if the result differs from TOSA or from torch; see `tosaic verify --help`.
    With --debug the TOSA graph is verified after every pass.
    """
    from tosaic.api import model_file

    started = time.time()
    wanted = find(target)
    path = _choose_path(model, wanted, output)
    modules = {**_parse_modules(precision_for or ()), **dict.fromkeys(in_float or (), "float")}
    parts = [part.value for part in external or ()]
    flags = _list_flags(optimize, arena_cache_size, vela_option or ())
    _check_paths(path, header, parts, intermediates, calibration)
    _check_system(wanted, system_config, memory_mode, config_ini, flags)
    if max_sram is not None:
        _check_alone(flags, parts, intermediates, no_delegate, no_quantize, delegate_data_movement, etrecord)
    checked = model_file.check(model, max_memory)
    if verify:
        _require_engine(wanted)
    if not quiet:
        _name_default(context, wanted)
    with show_progress(quiet) as progress:
        from tosaic.api import build as api

        with redirect_prints():
            loaded = model_file.load_with_samples(model, checked=checked, allow_ops=allow_op or ())
        samples = loaded.calibration if calibration is None and not no_quantize else calibration
        if max_sram is not None:
            program = _compile_within(
                max_sram,
                loaded.model,
                loaded.inputs,
                wanted.name,
                model,
                samples,
                io.value,
                layout.value,
                precision.value,
                modules,
                not per_tensor,
                memory_mode,
                system_config,
                config_ini,
                max_memory,
                progress,
            )
        else:
            spec = api.make_spec(
                wanted.name,
                system_config,
                memory_mode,
                parts,
                config_ini=None if config_ini is None else str(config_ini),
                extra_flags=flags,
            )
            spec.dump_intermediate_artifacts_to(None if intermediates is None else str(intermediates))
            spec.verify_passes = debug
            spec.delegate_data_movement = delegate_data_movement
            with redirect_prints():
                program = api.compile(
                    loaded.model,
                    loaded.inputs,
                    spec,
                    calibration=samples,
                    io=io.value,
                    layout=layout.value,
                    precision=precision.value,
                    precision_for=modules,
                    per_channel=not per_tensor,
                    quantized=not no_quantize,
                    delegate=not no_delegate,
                    etrecord=etrecord,
                    progress=progress,
                    max_memory=max_memory,
                )
        files = _list_files(program, path, with_sidecar=not no_sidecar) | _list_extras(program, path, header)
        if bundled_io:
            progress("bundle")
            files[path.with_suffix(".bpte")] = program.bundle()
        write_files(files)
        if verify:
            progress("verify")
        verdict = program.verify() if verify else None
    kept = [] if intermediates is None else _list_new(intermediates, started)
    report = _complete(program.report(), model, {str(one): len(data) for one, data in files.items()}, kept)
    _print(report, verdict, as_json=as_json, verbose=verbose, quiet=quiet)
    fallback = sum(not reason.is_io for reason in report.reasons)
    fell_back = fail_on_fallback and (fallback > 0 or not report.delegates)
    if fell_back:
        nodes = "1 node is" if fallback == 1 else f"{fallback:,} nodes are"
        say(f"FAIL: {nodes} on the CPU (`--fail-on-fallback`)", err=as_json)
    if fell_back or (verdict is not None and not verdict.ok):
        raise typer.Exit(ExitStatus.CHECK_FAILED)


def _name_default(context: typer.Context, target: Target) -> None:
    """Say for which target the program is if nobody has chosen one."""
    source = context.get_parameter_source("target")
    if source is not None and source.name == "DEFAULT":
        typer.echo(f"the target is {target.name}: choose another with `-t NAME`", err=True)


def _parse_modules(words: Sequence[str]) -> dict[str, str]:
    """Parse the precisions of modules from words such as `head=a16w8`."""
    modules: dict[str, str] = {}
    for word in words:
        name, equals, chosen = word.rpartition("=")
        if not equals or not name:
            raise Invalid(f"`{word}` is not a module and its precision", fix="write MODULE=PRECISION: `head=a16w8`")
        if name in modules:
            raise Invalid(f"the precision of `{name}` is given twice", fix="name each module once")
        modules[name] = chosen
    return modules


def _list_flags(goal: o.Goal | None, cache: int | None, others: Sequence[str]) -> list[str]:
    """List Vela's flags, in Vela's own words."""
    flags = [] if goal is None else [f"--optimise={goal.value.capitalize()}"]
    return [*flags, *([] if cache is None else [f"--arena-cache-size={cache}"]), *others]


def _check_system(
    target: Target, system_config: str | None, memory_mode: str | None, config_ini: Path | None, flags: list[str]
) -> None:
    """Check the options of Vela before torch is imported."""
    if not target.is_npu:
        return
    from tosaic.tools.vela_options import BUNDLED_INI, VelaOptions, check_options, split_flags

    options = VelaOptions(
        target.name,
        system_config or target.system_config,
        memory_mode or target.memory_mode,
        BUNDLED_INI if config_ini is None else str(config_ini),
        tuple(split_flags(flags)),
    )
    check_options(options.with_config())


def _check_alone(
    flags: list[str],
    external: list[str],
    intermediates: Path | None,
    no_delegate: bool,
    no_quantize: bool,
    data_movement: bool,
    etrecord: bool,
) -> None:
    """Reject options that a search of the others has no place for."""
    given = {
        "--optimize, --arena-cache-size and --vela-option": bool(flags),
        "--external": bool(external),
        "--intermediates": intermediates is not None,
        "--no-delegate": no_delegate,
        "--no-quantize": no_quantize,
        "--delegate-data-movement": data_movement,
        "--etrecord": etrecord,
    }
    for name, is_given in given.items():
        if is_given:
            fix = "leave one of them out; `tosaic fit` prints the options that fit"
            raise Invalid(f"`--max-sram` cannot be combined with {name}", fix=fix)


def _compile_within(
    max_sram: int,
    module: Any,
    inputs: Any,
    target: str,
    model: str,
    calibration: Iterable[Any] | str | Path | None,
    io: str,
    layout: str,
    precision: str,
    modules: dict[str, str],
    per_channel: bool,
    memory_mode: str | None,
    system_config: str | None,
    config_ini: Path | None,
    max_memory: int | None,
    progress: Progress,
) -> Program:
    """Compile the fastest program that fits; without one, print what is in the way and exit."""
    from tosaic.api.fitting import Space, fit
    from tosaic.report.choices import Limits

    space = Space(
        (target,),
        (io,),
        (layout,),
        (precision,),
        (memory_mode,) if memory_mode else (),
        system_config or "",
        None if config_ini is None else str(config_ini),
    )
    found = fit(
        module,
        inputs,
        space,
        Limits(sram=max_sram),
        calibration=calibration,
        precision_for=modules,
        per_channel=per_channel,
        name=model,
        verify=False,
        progress=progress,
        max_memory=max_memory,
    )
    if found.best is None:
        from tosaic.report.fit import show_fit
        from tosaic.report.terminal import Page

        progress.finish()
        show_fit(Page(), found.report)
        raise typer.Exit(ExitStatus.CHECK_FAILED)
    return found.best


def _require_engine(target: Target) -> None:
    """Reject what cannot be verified here before the long work begins."""
    import_torch()
    from tosaic.backends.registry import find_backend_for
    from tosaic.engines.engine import ENGINES

    ENGINES[find_backend_for(target).engine].require()


def _name_model(model: str) -> str:
    return Path(model).stem if model.endswith((".py", ".pt2")) else model


def _choose_path(model: str, target: Target, output: str | None) -> Path:
    """Choose the path of the result; reject an impossible one before the long work begins."""
    from tosaic.formats.external import check_name

    default = Path(_name_model(model) + (".tosa" if target.family == "tosa" else ".pte"))
    path = default if output is None else Path(output)
    if output is not None and (output.endswith("/") or path.is_dir()):
        path /= default
    if path.suffix == ".tosa" and target.family != "tosa":
        raise Invalid(
            f"`{target.name}` produces a .pte, not `{path.name}`",
            fix="use a file name ending in .pte; `--intermediates DIR` also keeps the .tosa files",
        )
    check_name(path, _OTHERS)
    return path


def _check_paths(
    path: Path, header: Path | None, external: Sequence[str], intermediates: Path | None, calibration: Path | None
) -> None:
    """Reject paths that cannot be read or written before the long work begins."""
    from tosaic.formats.external import name_file

    data = [path.with_name(name_file(path.stem, part)) for part in set(external)]
    targets = [check_writable(file) for file in (path, path.with_suffix(".tosaic"), *data, header) if file is not None]
    if len(set(targets)) < len(targets):
        raise Invalid(f"`{header}` would be written twice", fix="use another name for the header")
    if intermediates is not None:
        if intermediates.exists() and not intermediates.is_dir():
            raise Invalid(f"`{intermediates}` is a file", fix="pass a folder for intermediate artifacts")
        check_writable(intermediates / "file")
    o.check_calibration(calibration)


def _list_files(program: Program, path: Path, *, with_sidecar: bool) -> dict[Path, bytes]:
    if program.target.family != "tosa" or path.suffix == ".pte":
        return program.files(path, with_sidecar=with_sidecar)
    if not program.delegates:
        raise Invalid(
            f"nothing to write: no part of the model runs on {program.target.name}",
            why=next((reason.why for reason in program.reasons if not reason.is_io), ""),
            fix="`-o NAME.pte` writes the program with everything on the CPU",
        )
    if len(program.delegates) == 1:
        return {path: program.tosa()}
    return {path.with_name(f"{path.stem}_{i}{path.suffix}"): program.tosa(i) for i in range(len(program.delegates))}


def _list_extras(program: Program, path: Path, header: Path | None) -> dict[Path, bytes]:
    """List the files that were asked for besides the program."""
    files: dict[Path, bytes] = {}
    if header is not None:
        from tosaic.report.header import write_header

        files[header] = write_header(path.stem, program.target.name, program.inputs, program.outputs).encode()
    if program.etrecord is not None:
        files[path.with_suffix(".etrecord")] = program.etrecord
    return files


def _list_new(folder: Path, start: float) -> list[Path]:
    """List the files that were written to a folder since a time."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_mtime >= start)


def _complete(report: Report, model: str, files: dict[str, int], kept: Sequence[Path]) -> Report:
    """Return the report with the model's name and files, in the words of the command line."""
    from dataclasses import replace

    return replace(
        report,
        model=_name_model(model),
        files={**files, **{str(path): path.stat().st_size for path in kept}},
        reasons=tuple(replace(reason, fix=get_cli_form(reason.fix)) for reason in report.reasons),
        warnings=tuple(map(get_cli_form, report.warnings)),
    )


def _print(report: Report, verdict: Verdict | None, *, as_json: bool, verbose: bool, quiet: bool) -> None:
    if as_json:
        plain = {**report.to_json(), "verify": None if verdict is None else verdict.to_json()}
        print_json(plain)
        return
    if quiet:
        for warning in report.warnings:
            say(f"warning: {warning}", err=True)
    else:
        from tosaic.report.terminal import Page, show_report

        show_report(Page(), report, verbose=verbose)
    if verdict is not None:
        say(str(verdict))
