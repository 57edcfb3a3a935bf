"""`tosaic compile`: from a model to the file that runs on the target."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tosaic.api import model_file
from tosaic.cli.guard import Debug, Json, guarded
from tosaic.cli.quiet import import_torch
from tosaic.cli.size import MaxMemory
from tosaic.core.errors import ExitStatus, Invalid
from tosaic.core.hints import get_cli_form
from tosaic.core.output import find_target
from tosaic.core.targets import Target, find
from tosaic.formats.external import RESERVED, name_file

if TYPE_CHECKING:
    from tosaic.api.program import Program
    from tosaic.report.schema import Report


class Io(StrEnum):
    """The number format of the program's inputs and outputs."""

    FLOAT = "float"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"


class PrecisionName(StrEnum):
    """The bits of activations (a) and weights (w)."""

    INT8 = "int8"
    A16W8 = "a16w8"
    A8W4 = "a8w4"


class External(StrEnum):
    """A part of the delegates that can be outside the .pte."""

    WEIGHTS = "weights"
    COMMANDS = "commands"


class Layout(StrEnum):
    """The position of the channels in a four-dimensional input or output."""

    NCHW = "nchw"
    NHWC = "nhwc"


Model = Annotated[str, typer.Argument(metavar="MODEL", show_default=False)]
TargetName = Annotated[str, typer.Option("-t", "--target", help="The target; `tosaic targets` lists all of them.")]
Output = Annotated[
    str | None,
    typer.Option("-o", "--output", help="The file to write, or a folder for it."),
]
Calibration = Annotated[
    Path | None, typer.Option(help="Calibration samples: a .npz, .npy or .pt file, or a folder of them.")
]
AllowOp = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-op",
        metavar="NAME",
        show_default=False,
        help="Allow a .pt2 to call this operator although it may do more than compute. Repeatable.",
    ),
]
IoOption = Annotated[Io, typer.Option(help="Type of inputs and outputs. Integers need no CPU operators.")]
PrecisionOption = Annotated[PrecisionName, typer.Option(help="int8, 16-bit activations, or 4-bit weights.")]
PrecisionFor = Annotated[
    list[str] | None,
    typer.Option(
        "--precision-for",
        metavar="MODULE=PRECISION",
        show_default=False,
        help="Another precision, or float, for a module (its path, or a class name): head=a16w8. Repeatable.",
    ),
]
LayoutOption = Annotated[Layout, typer.Option(help="Memory layout of 4-D inputs and outputs.")]
MemoryMode = Annotated[str | None, typer.Option(help="Memory mode from Vela's configuration file.")]
SystemConfig = Annotated[str | None, typer.Option(help="System configuration from Vela's configuration file.")]
ExternalOption = Annotated[
    list[External] | None,
    typer.Option(
        "--external",
        show_default=False,
        help="Write the weights or the commands of Ethos-U delegates to a .ptd file next to the .pte. Repeatable.",
    ),
]
NoDelegate = Annotated[bool, typer.Option("--no-delegate", help="Run everything on the CPU.")]
DataMovement = Annotated[
    bool, typer.Option("--delegate-data-movement", help="Delegate also parts that only move data, such as a reshape.")
]
NoQuantize = Annotated[bool, typer.Option("--no-quantize", help="Skip quantization.")]
Intermediates = Annotated[
    Path | None,
    typer.Option(help="Folder for the .tosa files, the graph after each pass, and the compiler's reports."),
]
NoSidecar = Annotated[bool, typer.Option("--no-sidecar", help="Do not write the .tosaic file.")]
Header = Annotated[
    Path | None,
    typer.Option(help="Write a C header with the type, shape, scale and zero point of every input and output."),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Run the result on this machine and compare it with TOSA and with torch.")
]


@guarded
def compile_model(
    model: Model,
    target: TargetName = "ethos-u55-128",
    output: Output = None,
    calibration: Calibration = None,
    io: IoOption = Io.FLOAT,
    layout: LayoutOption = Layout.NCHW,
    precision: PrecisionOption = PrecisionName.INT8,
    precision_for: PrecisionFor = None,
    memory_mode: MemoryMode = None,
    system_config: SystemConfig = None,
    external: ExternalOption = None,
    no_delegate: NoDelegate = False,
    no_quantize: NoQuantize = False,
    delegate_data_movement: DataMovement = False,
    intermediates: Intermediates = None,
    no_sidecar: NoSidecar = False,
    header: Header = None,
    verify: Verify = False,
    allow_op: AllowOp = None,
    max_memory: MaxMemory = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compile a model to a .pte file, or to .tosa files for a TOSA target.

    MODEL is the name of a built-in model (`add`, `mobilenet_v2`, ...), a .pt2 file written by torch.export.save, or a
    .py file that defines `model` (an nn.Module in eval mode) and `inputs` (a tuple of tensors).
    A .py file is imported, which runs its code: compile only files you trust. No code in a .pt2 file is run.
    With --verify the exit code is 1 if the result differs from TOSA or from torch; see `tosaic verify --help`.
    With --debug the TOSA graph is verified after every pass.
    """
    wanted = find(target)
    path = _choose_path(model, wanted, output)
    if verify:
        _require_engine(wanted)
    modules = _parse_modules(precision_for or ())
    parts = [part.value for part in external or ()]
    _check_targets(path, header, parts)
    checked = model_file.check(model, max_memory)
    progress = Progress()
    try:
        progress("load")
        import_torch()
        from tosaic.api import build as api

        module, inputs = model_file.load(model, checked=checked, allow_ops=allow_op or ())
        spec = api.make_spec(wanted.name, system_config, memory_mode, parts)
        spec.dump_intermediate_artifacts_to(None if intermediates is None else str(intermediates))
        spec.verify_passes = debug
        spec.delegate_data_movement = delegate_data_movement
        program = api.compile(
            module,
            inputs,
            spec,
            calibration=calibration,
            io=io.value,
            layout=layout.value,
            precision=precision.value,
            precision_for=modules,
            quantized=not no_quantize,
            delegate=not no_delegate,
            progress=progress,
            max_memory=max_memory,
        )
    finally:
        progress.finish()
    files = _list_files(program, path, with_sidecar=not no_sidecar)
    if header is not None:
        from tosaic.report.header import write_header

        files[header] = write_header(path.stem, wanted.name, program.inputs, program.outputs).encode()
    _finish(program.report(), model, files, as_json)
    if verify:
        verdict = program.verify()
        typer.echo(str(verdict), err=as_json)
        if not verdict.ok:
            raise typer.Exit(ExitStatus.CHECK_FAILED)


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


def _require_engine(target: Target) -> None:
    """Reject what cannot be verified here before the long work begins."""
    import_torch()
    from tosaic.backends.registry import find_backend_for
    from tosaic.engines.engine import ENGINES

    ENGINES[find_backend_for(target).engine].require()


class Progress:
    """One line per stage on stderr: its name when it begins, its seconds when it ends."""

    def __init__(self) -> None:
        self._start: float | None = None

    def __call__(self, stage: str) -> None:
        self.finish()
        typer.echo(f"{stage:<9} ", err=True, nl=False)
        self._start = time.perf_counter()

    def finish(self) -> None:
        """End the line of the stage that is running."""
        if self._start is not None:
            typer.echo(f"{time.perf_counter() - self._start:6.1f} s", err=True)
            self._start = None


def _name_model(model: str) -> str:
    return Path(model).stem if model.endswith((".py", ".pt2")) else model


def _choose_path(model: str, target: Target, output: str | None) -> Path:
    """Choose the path of the result; reject an impossible one before the long work begins."""
    default = Path(_name_model(model) + (".tosa" if target.family == "tosa" else ".pte"))
    path = default if output is None else Path(output)
    if output is not None and (output.endswith("/") or path.is_dir()):
        path /= default
    if path.suffix == ".tosa" and target.family != "tosa":
        raise Invalid(
            f"`{target.name}` produces a .pte, not `{path.name}`",
            fix="use a file name ending in .pte; `--intermediates DIR` also keeps the .tosa files",
        )
    if path.suffix in RESERVED:
        raise Invalid(f"`{path}` is {RESERVED[path.suffix]}", fix="use a file name ending in .pte")
    return path


def _check_targets(path: Path, header: Path | None, external: Sequence[str]) -> None:
    """Reject paths that cannot be written before the long work begins."""
    data = [path.with_name(name_file(path.stem, part)) for part in set(external)]
    targets = [find_target(file) for file in (path, path.with_suffix(".tosaic"), *data, header) if file is not None]
    if len(set(targets)) < len(targets):
        raise Invalid(f"`{header}` would be written twice", fix="use another name for the header")


def _list_files(program: Program, path: Path, *, with_sidecar: bool) -> dict[Path, bytes]:
    if program.target.family != "tosa" or path.suffix == ".pte":
        return program.files(path, with_sidecar=with_sidecar)
    if not program.delegates:
        raise Invalid(
            f"nothing to write: no part of the model runs on {program.target.name}",
            why=next((reason.why for reason in program.reasons if not reason.border), ""),
            fix="`-o NAME.pte` writes the program with everything on the CPU",
        )
    if len(program.delegates) == 1:
        return {path: program.tosa()}
    return {path.with_name(f"{path.stem}_{i}{path.suffix}"): program.tosa(i) for i in range(len(program.delegates))}


def _finish(report: Report, model: str, files: dict[Path, bytes], as_json: bool) -> None:
    from tosaic.core.output import write_files

    write_files(files)
    written = {str(path): len(data) for path, data in files.items()}
    report = dataclasses.replace(
        report,
        model=_name_model(model),
        files=written,
        reasons=tuple(dataclasses.replace(reason, fix=get_cli_form(reason.fix)) for reason in report.reasons),
        warnings=tuple(map(get_cli_form, report.warnings)),
    )
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, allow_nan=False))
        return
    from tosaic.report.terminal import Page, show_report

    show_report(Page(), report)
