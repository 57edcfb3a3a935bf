"""ExecuTorch's runner for Linux: runs a .pte here, one for VGF with Vulkan.

python -m tosaic.scripts.executor_runner --model_path=model.pte
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tosaic.scripts.entry import Parser, call_tosaic, script


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a .pte and print its outputs."""
    parser = Parser("executor_runner", "Run a .pte on this machine: one for VGF with Vulkan, others on simulators.")
    parser.add_argument("--model_path", type=Path, default=Path("model.pte"), help="default: %(default)s")
    parser.add_argument("--inputs", default="", help="files with inputs, separated by commas; default: ones")
    options = parser.parse_args(arguments)
    inputs = [word for file in options.inputs.split(",") if file for word in ("--input", file)]
    return call_tosaic("run", options.model_path, "--log", *inputs)


if __name__ == "__main__":
    sys.exit(main())
