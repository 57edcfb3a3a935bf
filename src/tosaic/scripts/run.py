"""The script of the tutorial that does it all: compile a model, build the firmware, run it.

python -m tosaic.scripts.run --model_name=mv2 --target=ethos-u85-256
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tosaic.core.errors import ExitStatus
from tosaic.core.targets import find
from tosaic.scripts import aot_arm_compiler, build_executor_runner, executor_runner, run_fvp
from tosaic.scripts.entry import TARGET, Parser, script

#: The models of the tutorial, and how it compiles them.
TUTORIAL = {"softmax": "", "add": "--delegate", "mv2": "--delegate --quantize"}
_FLAGS = "--delegate --quantize"
#: Where the tutorial looks for the ELF file.
_FOLDER = Path("examples", "arm", "executor_runner")


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, build and run a model, or the three of the tutorial."""
    parser = Parser(
        "run", "Compile a model, build the firmware of its board, and run that; a model for VGF needs no board."
    )
    parser.add_argument(
        "--model_name", help="a built-in model, a .py file or a .pt2 file; default: softmax, add and mv2 in turn"
    )
    parser.add_argument(
        "--aot_arm_compiler_flags",
        help=f"default: {_FLAGS}, but --delegate for add and none for softmax, as in the tutorial",
    )
    parser.add_argument(
        "--target", default=TARGET, help="an Ethos-U, which has its board, or vgf; default: %(default)s"
    )
    parser.add_argument(
        "--portable_kernels", help="the CPU kernels to include, separated by commas; default: those that it calls"
    )
    parser.add_argument("--memory_mode", help="Sram_Only, Shared_Sram or Dedicated_Sram; default: that of the target")
    parser.add_root()
    options = parser.parse_args(arguments)
    for model in [options.model_name] if options.model_name else TUTORIAL:
        flags = options.aot_arm_compiler_flags
        words = shlex.split(TUTORIAL.get(model, _FLAGS) if flags is None else flags)
        code = _run_model(model, words, options.target, options.portable_kernels, options.memory_mode, options.root)
        if code:
            return code
    return ExitStatus.DONE


def _run_model(
    model: str, flags: Sequence[str], target: str, kernels: str | None, memory_mode: str | None, root: Path
) -> int:
    given = [f"--model_name={model}", f"--target={target}", *flags]
    given += [] if memory_mode is None else [f"--memory_mode={memory_mode}"]
    is_delegated = aot_arm_compiler.parse(given).delegate
    pte = root / aot_arm_compiler.file_name(model, is_delegated)
    if not find(target).is_npu:
        return aot_arm_compiler.main([*given, f"--output={pte}"]) or executor_runner.main([f"--model_path={pte}"])
    elf = root / _FOLDER / build_executor_runner.FOLDER / build_executor_runner.ELF
    return (
        aot_arm_compiler.main([*given, f"--output={pte}"])
        or build_executor_runner.build(pte, target, elf, kernels, memory_mode)
        or run_fvp.run(elf, target)
    )


if __name__ == "__main__":
    sys.exit(main())
