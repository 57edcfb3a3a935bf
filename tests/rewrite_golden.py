"""Rewrites the golden files: `make golden`, then look at the difference before you commit it."""

import sys
from pathlib import Path

from support.cycles import list_cycles
from support.golden import CYCLES, OPS, PASS_FILES, SUFFIX, list_ops, write_op, write_pass
from support.npu_bench import Bench
from tosaic.core.targets import ACCELERATORS
from tosaic.passes import ALL


def rewrite(folder: Path, texts: dict[str, str]) -> None:
    """Write one file per name, and remove files that no longer have a name."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in set(folder.iterdir()) - {folder / f"{name}{SUFFIX}" for name in texts}:
        path.unlink()
    for name, text in texts.items():
        (folder / f"{name}{SUFFIX}").write_text(text)


def main() -> int:
    rewrite(PASS_FILES, {step.name: write_pass(step.name) for step in ALL})
    rewrite(OPS, {op: write_op(op) for op in list_ops()})
    CYCLES.write_text("\n\n".join("\n".join(list_cycles(Bench(), target)) for target in ACCELERATORS) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
