"""What the application prints, compared with Python's formats."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from support.firmware import GCC, WARNINGS
from tosaic.board.kernels import FIRMWARE


@pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
def test_numbers(tmp_path: Path) -> None:
    assert GCC is not None
    sources = [Path(__file__).parent / "host" / "console.c", FIRMWARE / "app" / "console.c"]
    headers = [f"-I{FIRMWARE}", f"-I{FIRMWARE / 'app'}"]
    sanitize = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = tmp_path / "console"
    subprocess.run([GCC, *WARNINGS, *sanitize, *headers, *map(str, sources), "-o", program], check=True)
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 20_000, dtype=np.uint32)
    near = rng.normal(size=20_000).astype(np.float32)
    # Exactly between two numbers of six digits, the smallest, the largest.
    special = np.array([0.5**7, 3 * 0.5**7, 0.5**21, 1e-45, 3.4028235e38, -0.0, 0.1, 16777216.0, np.inf, -np.inf])
    numbers = np.concatenate([bits.view(np.float32), near, special.astype(np.float32)])
    numbers = numbers[~np.isnan(numbers)]
    done = subprocess.run([program], input=numbers.tobytes(), capture_output=True, check=True)
    *lines, formats, last = done.stdout.decode().splitlines()
    assert lines == [f"{float(number):f}" for number in numbers]
    assert formats == f"{2**32 - 1} {-(2**31)} {2**64 - 1} 0x0000beef text %"
    assert last == str(-(2**63))
