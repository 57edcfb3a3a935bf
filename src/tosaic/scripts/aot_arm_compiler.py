"""The ahead-of-time compiler script of the ExecuTorch tutorials, with its options and file names.

python -m tosaic.scripts.aot_arm_compiler --model_name=mv2 --delegate --quantize
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tosaic.cli.quiet import import_torch
from tosaic.core.errors import ExitStatus, Invalid
from tosaic.core.output import write_files
from tosaic.scripts.entry import TARGET, Parser, script

#: with these flags, ExecuTorch's option compiles for the driver of a Linux system
_DIRECT_DRIVE = ("--separate-io-regions", "--cop-format=COP2")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("aot_arm_compiler", "Compile a model to a .pte file.")
    parser.add_argument("-m", "--model_name", required=True, help="a built-in model, a .py file or a .pt2 file")
    parser.add_argument("-d", "--delegate", action="store_true", help="run supported operators on the NPU")
    parser.add_argument("-q", "--quantize", action="store_true", help="quantize the model to int8")
    parser.add_argument("-t", "--target", default=TARGET, help="default: %(default)s")
    parser.add_argument("-s", "--so_library", help="accepted for old scripts, not needed")
    parser.add_argument("-o", "--output", help="the .pte file, or a folder for it")
    parser.add_argument("-i", "--intermediates", help="a folder for .tosa files and compiler reports")
    parser.add_argument("--calibration_data", help="a .npz/.npy/.pt file or a folder")
    parser.add_argument("--system_config")
    parser.add_argument("--memory_mode")
    parser.add_argument("--config", help="Vela's configuration file; default: the one of Vela")
    parser.add_argument("--model_input", help="a .npz/.npy/.pt file with the inputs of the model")
    parser.add_argument("--bundleio", action="store_true", help="write also a .bpte file with samples")
    parser.add_argument("--etrecord", action="store_true", help="write also an .etrecord file")
    parser.add_argument("--debug", action="store_true", help="verify the graph after every pass")
    parser.add_argument("--direct_drive", action="store_true", help="Vela's flags for the driver of a Linux system")
    parser.add_argument("--enable_debug_mode", help="accepted for old scripts: --intermediates keeps every graph")
    parser.add_argument("--non_strict_export", action="store_true", help="accepted for old scripts, always so")
    parser.add_argument("--enable_qdq_fusion_pass", action="store_true", help="accepted for old scripts, not needed")
    parser.add_argument(
        "-e", "--evaluate", nargs="?", const="generic", help="ignored, as in ExecuTorch: use `tosaic verify`"
    )
    parser.add_argument("-c", "--evaluate_config", help="ignored, as in ExecuTorch")
    options = parser.parse_args(arguments)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    """Reject what cannot be done, before torch is imported."""
    if options.target.startswith("cortex-m"):
        raise Invalid(
            f"`{options.target}` is not an NPU",
            fix="leave out `--target` and `--delegate` to run everything on the CPU; `docs/cortex-m.md` shows CMSIS-NN",
        )
    if options.direct_drive and not options.target.startswith("ethos-u"):
        raise Invalid("`--direct_drive` is for an Ethos-U", fix="leave it out, or pass an Ethos-U as `--target`")
    if options.calibration_data is not None and not options.quantize:
        raise Invalid("`--calibration_data` needs `--quantize`", fix="add `--quantize`, or leave out the data")
    if options.evaluate is not None or options.evaluate_config is not None:
        sys.stderr.write("--evaluate is ignored: `tosaic verify` compares the program with TOSA and with torch\n")


def file_name(model: str, delegate: bool) -> str:
    """Return the name that the tutorials use: softmax.pte, add_arm_delegate.pte."""
    stem = Path(model).stem if model.endswith((".py", ".pt2")) else model
    return f"{stem}_arm_delegate.pte" if delegate else f"{stem}.pte"


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Compile with the given options and print the path of the file."""
    sys.stdout.write(f"PTE file saved as {_compile(parse(arguments))}\n")
    return ExitStatus.DONE


def _compile(options: argparse.Namespace) -> Path:
    import_torch()
    from tosaic.api import calibration
    from tosaic.api.build import compile, make_spec
    from tosaic.api.model_file import load

    model, inputs = load(options.model_name)
    if options.model_input is not None and inputs is not None:
        inputs = calibration.read(options.model_input, inputs)[0]
    flags = _DIRECT_DRIVE if options.direct_drive else ()
    spec = make_spec(
        options.target, options.system_config, options.memory_mode, config_ini=options.config, extra_flags=flags
    )
    spec.dump_intermediate_artifacts_to(options.intermediates)
    spec.verify_passes = options.debug
    try:
        program = compile(
            model,
            inputs,
            spec,
            calibration=options.calibration_data,
            quantized=options.quantize,
            delegate=options.delegate,
            etrecord=options.etrecord,
        )
    except Invalid as error:
        if "quantized=False" in error.fix:
            error.fix = "add `--quantize`, or leave out `--delegate` for the CPU"
        raise
    name = file_name(options.model_name, options.delegate)
    given = Path(options.output) if options.output else Path(name)
    wants_bundle = options.bundleio or given.suffix == ".bpte"
    path = program.save(given / name if given.is_dir() else given.with_suffix(".pte") if wants_bundle else given)
    if wants_bundle:
        write_files({path.with_suffix(".bpte"): program.bundle()})
    if program.etrecord is not None:
        write_files({path.with_suffix(".etrecord"): program.etrecord})
    return path


if __name__ == "__main__":
    sys.exit(main())
