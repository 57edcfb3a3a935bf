"""Vela in the worker process: one TOSA file in, its raw output, summary and debug database out."""

from __future__ import annotations

import csv
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ethosu.vela import vela
from ethosu.vela.errors import VelaError

from tosaic.tools import wire
from tosaic.tools.serve import serve
from tosaic.tools.vela_debug import canonicalize

#: Vela names only the kind of the operator it rejects.
_NAMES_A_KIND = re.compile(r"operation \((\w+)\) could not run on NPU")


def _handle(body: wire.Header, parts: list[bytes]) -> tuple[wire.Header, Sequence[bytes]]:
    # Plain names in our own folder, regardless of the user's paths.
    # Removed from the list: Vela reads the file, so the bytes can be freed while Vela runs.
    Path("vela.ini").write_bytes(parts.pop())
    Path("model.tosa").write_bytes(parts.pop())
    argv = ["model.tosa", "--output-dir=out", *body["argv"]]
    refusal = _run(argv)
    if refusal and _NAMES_A_KIND.search(refusal):
        # Run again with the graph listed: the log then shows which tensors are of that kind.
        _run([*argv, "--verbose-graph"])
    if refusal:
        sys.stdout.write(f"Error: {refusal}\n")
        return {"refusal": refusal}, ()
    return _read_results()


def _run(argv: list[str]) -> str:
    """Run Vela; return an empty text if it succeeded, else its error message."""
    try:
        code = vela.main(argv)
    except VelaError as error:
        return str(error.error_msg)
    except RuntimeError as error:
        return str(error)
    except SystemExit as error:
        return f"Vela ended with exit code {error.code}" if error.code else ""
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        return f"{type(error).__name__}: {error}"
    return f"Vela ended with exit code {code}" if code else ""


def _read_results() -> tuple[wire.Header, Sequence[bytes]]:
    with np.load("out/model_vela.npz", allow_pickle=False) as data:
        header: dict[str, Any] = {
            name: int(data[name])
            for name in (
                "weight_region",
                "scratch_region",
                "scratch_size",
                "scratch_fast_region",
                "scratch_fast_size",
            )
        }
        for side in ("input", "output"):
            fields = ("shape", "elem_size", "offset", "region")
            columns = [data[f"{side}_{field}"].astype(np.int64).tolist() for field in fields]
            header[f"{side}s"] = [list(row) for row in zip(*columns, strict=True)]
        # A bytes scalar would lose its trailing zeros: take the array's memory.
        parts = (data["cmd_data"].tobytes(), data["weight_data"].tobytes())
    header["summary"] = _read_summary()
    header["debug_db"] = canonicalize(Path("out/model_debug.xml").read_text(encoding="utf-8"))
    return header, parts


def _read_summary() -> dict[str, float]:
    (path,) = Path("out").glob("model_summary_*.csv")
    with path.open(encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file))
    numbers: dict[str, float] = {}
    for name, text in row.items():
        try:
            numbers[name] = float(text)
        except ValueError:
            # The first columns are names (network, accelerator, memory mode).
            continue
    return numbers


if __name__ == "__main__":
    serve(_handle)
