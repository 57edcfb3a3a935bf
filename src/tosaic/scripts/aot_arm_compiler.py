"""The ahead-of-time compiler script of the ExecuTorch tutorials, with its options and file names.

python -m tosaic.scripts.aot_arm_compiler --model_name=mv2 --delegate --quantize
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tosaic.cli.quiet import import_torch
from tosaic.core.errors import ExitStatus
from tosaic.core.output import write_files
from tosaic.scripts.entry import TARGET, Parser, script


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
    parser.add_argument("--enable_debug_mode", help="accepted for old scripts: --intermediates keeps every graph")
    parser.add_argument("--non_strict_export", action="store_true", help="accepted for old scripts, always so")
    parser.add_argument("--enable_qdq_fusion_pass", action="store_true", help="accepted for old scripts, not needed")
    return parser.parse_args(arguments)


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
    spec = make_spec(options.target, options.system_config, options.memory_mode, config_ini=options.config)
    spec.dump_intermediate_artifacts_to(options.intermediates)
    spec.verify_passes = options.debug
    program = compile(
        model,
        inputs,
        spec,
        calibration=options.calibration_data,
        quantized=options.quantize,
        delegate=options.delegate,
        etrecord=options.etrecord,
    )
    name = file_name(options.model_name, options.delegate)
    given = Path(options.output) if options.output else Path(name)
    path = program.save(given / name if given.is_dir() else given)
    if options.bundleio:
        write_files({path.with_suffix(".bpte"): program.bundle()})
    if program.etrecord is not None:
        write_files({path.with_suffix(".etrecord"): program.etrecord})
    return path


if __name__ == "__main__":
    sys.exit(main())
