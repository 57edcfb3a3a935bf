"""`tosaic run`: outputs in a file, and what is refused before anything runs."""

from pathlib import Path
from typing import Any

import numpy as np


def test_outputs_are_saved(tosaic: Any, floats: tuple[Path, Any], tmp_path: Path) -> None:
    output = tmp_path / "out.npz"
    output.write_bytes(b"an older one")
    assert tosaic("run", floats[0], "-o", output).code == 0
    with np.load(output) as saved:
        assert {name: saved[name].shape for name in saved.files} == {
            "output_0": (1, 8, 6, 6),
            "output_1": (1, 8, 6, 6),
        }
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_what_cannot_be_saved_is_not_run(tosaic: Any, floats: tuple[Path, Any], tmp_path: Path) -> None:
    done = tosaic("run", floats[0], "-o", tmp_path / "out.txt")
    assert done.code == 2 and done.stdout == ""
    assert "outputs are saved as .npz, not as `out.txt`" in done.stderr
