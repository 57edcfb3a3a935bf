"""`tosaic run` and `tosaic verify`: execute a compiled file here, and prove what it computes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tosaic.cli.colors import say
from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.quiet import import_torch
from tosaic.cli.size import MaxMemory
from tosaic.core import input_file
from tosaic.core.budget import Budget
from tosaic.core.errors import ExitStatus, Invalid
from tosaic.core.output import find_target, write_files

if TYPE_CHECKING:
    from tosaic.api.bundle_check import BundleVerdict
    from tosaic.formats.bpte import Bundle
    from tosaic.formats.npy import Array
    from tosaic.formats.sidecar import Sidecar
    from tosaic.report.log import RunLog

File = Annotated[Path, typer.Argument(metavar="FILE.pte", help="The program: a .pte or .bpte.", show_default=False)]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE.ptd",
        show_default=False,
        help="File with weights or commands that are not in the .pte. Repeatable. Default: found next to the .pte.",
    ),
]

#: Values of each output that are printed, and that a log or JSON has.
_SHOWN, _LOGGED = 10, 1000


def read_program(file: Path, max_memory: int | None = None) -> bytes:
    """Read a .pte, a .bpte or a firmware; a file that is recognized as something else is refused by its name."""
    from tosaic.engines.board import is_elf
    from tosaic.formats import bpte, foreign

    data = bytes(input_file.read(file, max_memory)[0])
    if not is_elf(data) and not bpte.detect(data):
        foreign.refuse_to_read(data, str(file))
    return data


def open_bundle(data: bytes, max_memory: int | None = None) -> tuple[bytes, Bundle | None]:
    """Return the program in a .bpte with its test cases; a .pte is returned as it is."""
    from tosaic.formats import bpte

    if not bpte.detect(data):
        return data, None
    bundle = bpte.read(data, max_memory=max_memory)
    return bundle.program, bundle


def read_beside(file: Path, max_memory: int | None = None) -> Sidecar | None:
    """Read the .tosaic file next to a .pte, None if there is none."""
    from tosaic.formats import sidecar

    beside = file.with_suffix(".tosaic")
    if not beside.is_file():
        return None
    return sidecar.read(bytes(input_file.read(beside, max_memory)[0]), max_memory=max_memory)


def read_data(file: Path, data: bytes, given: list[Path] | None, max_memory: int | None = None) -> list[bytes]:
    """Read the .ptd files of a .pte: those that are given, else those that it names and that are next to it."""
    from tosaic.formats import external, pte

    paths = given
    if paths is None:
        choices = external.list_file_names(pte.read(data, max_memory=max_memory), file.stem)
        found = (next((path for name in names if (path := file.with_name(name)).is_file()), None) for names in choices)
        paths = [path for path in found if path is not None]
    return [bytes(input_file.read(path, max_memory)[0]) for path in paths]


@guarded
def run_file(
    file: File,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="Input file: .npy, .npz, .pt or raw bytes. Repeatable. Default: ones."
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="NAME", help="auto, npu (simulator), executorch, vulkan, tosa (reference) or board."
        ),
    ] = "auto",
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="The method to run.")] = "forward",
    data_files: Data = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE.npz", help="Save the outputs as output_0, output_1, ... in an .npz file."
        ),
    ] = None,
    values: Annotated[
        int | None,
        typer.Option(
            "--values",
            metavar="N",
            min=0,
            show_default=False,
            help="Number of values to print per output. Default: 10; 1000 with --log and --json.",
        ),
    ] = None,
    etdump: Annotated[
        Path | None,
        typer.Option(
            "--etdump",
            metavar="FILE",
            help="Write an ETDump for `executorch.devtools.Inspector`; its times are estimates.",
        ),
    ] = None,
    full_log: Annotated[bool, typer.Option("--log", help="Print the log of ExecuTorch's device runner.")] = False,
    board: Annotated[
        str,
        typer.Option(
            "--board", metavar="NAME", help="With engine board: corstone-300, corstone-320, or the folder of a board."
        ),
    ] = "",
    runner: Annotated[
        str,
        typer.Option("--runner", metavar="NAME", help="With engine board: virtual, qemu, or fvp (Arm's simulator)."),
    ] = "virtual",
    count_instructions: Annotated[
        bool, typer.Option("--count-instructions", help="Count the CPU's instructions on the virtual board: slow.")
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            show_default=False,
            help="With engine vulkan: a part of the device's name. Default: the fastest.",
        ),
    ] = "",
    max_memory: MaxMemory = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a .pte on this machine and print its outputs.

    Ethos-U delegates run on the built-in simulator, bit for bit as TOSA defines them. Cycle counts are estimates and
    name their source.

    A .bpte is a .pte with test cases. They are run unless --input is given, and the exit code is 1 if an output is not
    the expected one.

    Engine board builds a firmware with the .pte and boots it on a virtual board, in QEMU or in Arm's FVP; FILE may also
    be a firmware that `tosaic build` has written. The exit code is 1 if a test in the firmware fails. On the virtual
    board a firmware cannot access files of this machine; in QEMU and in the FVP it can, so run only what you trust.
    """
    # Its packages print messages for their developers.
    import_torch()
    from tosaic.board.device import FirmwareError
    from tosaic.board.options import BoardOptions
    from tosaic.engines import engine as engines
    from tosaic.engines.board import BOARD, extract_model, is_elf
    from tosaic.engines.inputs import make_ones, read_inputs
    from tosaic.engines.interpreter import Method
    from tosaic.formats import external
    from tosaic.report import log
    from tosaic.report.etdump import make_etdump
    from tosaic.report.profiler import make_profile

    _check_paths(output, etdump)
    data, bundle = open_bundle(read_program(file, max_memory), max_memory)
    elf = data if is_elf(data) else None
    if elf is None:
        files = read_data(file, data, data_files, max_memory)
    else:
        data, files = extract_model(elf)
        engine = BOARD if engine == engines.AUTO else engine
    options = BoardOptions(board, runner, count_instructions, elf)
    program = external.read(data, files, max_memory=max_memory)
    types = Method(program, method, executors={}, max_memory=max_memory).inputs
    if device:
        engine = engines.use_device(program.find(method), engine, device)
    cases = bundle.find(method) if bundle is not None and not inputs else ()
    if cases:
        arrays = list(cases[0].inputs)
    elif inputs or elf is None:
        arrays = read_inputs(inputs, types, max_memory) if inputs else make_ones(types, max_memory)
        if types and not inputs:
            typer.echo("the inputs are ones: pass others with `-i FILE`", err=True)
    else:
        # A firmware has its own: ones, or the samples that were built into it.
        arrays = []
    beside = read_beside(file, max_memory)
    if beside is not None:
        beside.check(data)

    def execute(given: Sequence[Array]) -> engines.RunResult:
        return engines.run(
            data,
            given,
            engine=engine,
            sidecar=beside,
            method=method,
            max_memory=max_memory,
            data=files,
            board=options,
        )

    try:
        outcome = execute(arrays)
    except FirmwareError as error:
        if not as_json:
            typer.echo(error.log, nl=False)
        raise
    if outcome.why:
        typer.echo(f"engine {outcome.engine}: {outcome.why}", err=True)
    report = log.make_log(
        program,
        method,
        file=file.name,
        engine=outcome.engine,
        calls=outcome.calls,
        outputs=outcome.outputs,
        beside=beside,
        execution=outcome.execution,
        device=outcome.device,
    )
    if output is not None:
        _save(output, outcome.outputs)
    if etdump is not None:
        budget = Budget(len(data) + program.data_size, max_memory)
        profile = make_profile(program, beside, method=method, budget=budget)
        write_files({etdump: make_etdump(report, profile)})
    results = [outcome.outputs, *(execute(case.inputs).outputs for case in cases[1:])]
    checked = None
    if cases:
        from tosaic.api.bundle_check import check_cases

        checked = check_cases(program.find(method), cases, results)
    _print(report, checked, values, as_json=as_json, in_full=full_log or elf is not None)
    if (outcome.execution is not None and outcome.execution.exit_code) or (checked is not None and not checked.ok):
        raise typer.Exit(ExitStatus.CHECK_FAILED)


def _check_paths(output: Path | None, etdump: Path | None) -> None:
    """Reject paths that cannot be written, before the program runs."""
    if output is not None and output.suffix != ".npz":
        raise Invalid(f"outputs are saved as .npz, not as `{output.name}`", fix="use a file name ending in .npz")
    for target in (output, etdump):
        if target is not None:
            find_target(target)


def _print(report: RunLog, checked: BundleVerdict | None, values: int | None, *, as_json: bool, in_full: bool) -> None:
    logged = _LOGGED if values is None else values
    if as_json:
        plain = report.to_json(logged)
        print_json(plain if checked is None else {**plain, "bundle": checked.to_json()}, allow_nan=True)
        return
    if in_full:
        typer.echo(report.to_text(logged))
    else:
        from tosaic.report.log import show_summary
        from tosaic.report.terminal import Page

        show_summary(Page(), report, _SHOWN if values is None else values)
    if checked is not None:
        say(f"{checked}\n{'PASS' if checked.ok else 'FAIL'}")


def _save(path: Path, outputs: Sequence[object]) -> None:
    import numpy as np

    packed = io.BytesIO()
    np.savez(packed, **{f"output_{i}": np.asarray(a) for i, a in enumerate(outputs)})
    write_files({path: packed.getvalue()})


@guarded
def verify_file(
    file: File,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=0, help="Number of random full-range inputs per delegate.")
    ] = 2,
    tosa: Annotated[
        list[Path] | None,
        typer.Option(
            "--tosa",
            metavar="PATH",
            show_default=False,
            help="TOSA graph of a delegate, from any compiler, or the folder with all of them. Repeatable, in order.",
        ),
    ] = None,
    data_files: Data = None,
    max_memory: MaxMemory = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare a .pte with the TOSA reference model bit for bit, and with torch on the samples.

    Needs the .tosaic file next to the .pte, or the TOSA graphs of all delegates with --tosa, which are compared on
    random inputs only. After ExecuTorch's own API, `tosaic.write_sidecar("x.pte")` writes the .tosaic file. The test
    cases of a .bpte are run and compared too.

    A .pte for VGF runs on Vulkan, where floats may be off by 1e-5 of the largest magnitude. A .pte for TOSA runs on the
    reference model and is only compared with torch. The exit code is 0 if everything matches and 1 if not.

    Torch runs the graph that was compiled. Float outputs may be off by 1e-5 of the largest magnitude, 16-bit floats by
    16 steps at that magnitude. For int8, 99 % must be within 1 step and none more than 2 off; for int16, 99.9 % within
    2 steps and none more than 4 off. A deep network may drift further if its SQNR vs. float is at most 0.5 dB below
    that of torch's graph (without float outputs: if it is at least 10 dB vs. torch's graph). Integers and bools must be
    equal; up to 1 % may differ if they follow rounded floats, 5 % if they follow quantized values, and one in any case.
    """
    # Its packages print messages for their developers.
    import_torch()
    from tosaic.api.verification import verify

    data, bundle = open_bundle(read_program(file, max_memory), max_memory)
    files = read_data(file, data, data_files, max_memory)
    # `--intermediates` numbers the files, so the order of their names is that of the delegates.
    paths = (one for path in tosa or () for one in (sorted(path.glob("*.tosa")) if path.is_dir() else [path]))
    graphs = [bytes(input_file.read(path, max_memory)[0]) for path in paths]
    beside = None if graphs else read_beside(file, max_memory)
    cases = bundle.find("forward") if bundle is not None else ()
    verdict = verify(data, beside, rounds=rounds, max_memory=max_memory, data=files, tosa=graphs, cases=cases)
    if as_json:
        print_json(verdict.to_json(), allow_nan=True)
    else:
        say(str(verdict))
    if not verdict.ok:
        raise typer.Exit(ExitStatus.CHECK_FAILED)
