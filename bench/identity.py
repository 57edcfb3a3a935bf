"""Byte identity: hashes of all that Tosaic makes of every zoo model and operator sample, and what differs between two.

Run it on the commit before a change and on the one after, then compare the two files:

    python bench/identity.py hash --out before.json
    python bench/identity.py compare before.json after.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

FLOAT = "TOSA-1.0+FP"
QUANTIZED = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256", "vgf")
# The package `support` has the samples of the operator records.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def hash_program(compile_it: Callable[[], Any]) -> dict[str, Any]:
    """What one compilation gives: hashes of its files, or the first line of its error."""
    try:
        program = compile_it()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    return {
        "tosa": [digest(one.tosa) for one in program.delegates],
        "blob": [digest(one.blob) for one in program.delegates],
        "pte": digest(bytes(program.pte)),
        "fallbacks": len(program.reasons),
    }


def hash_model(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import tosaic
    from tosaic import zoo

    model, inputs = zoo.load(name)
    samples = zoo.inputs(name, 4, 1)
    for target in (*QUANTIZED, FLOAT):
        found = hash_program(lambda t=target: tosaic.compile(model, inputs, t, calibration=samples))
        yield f"model {name} {target}", found


def hash_sample(op: str, index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    import tosaic
    from support import samples

    model, inputs, _ = samples.exported(op, index)
    module, _ = samples.quantized(op, index)
    for target in QUANTIZED:
        yield f"op {op}-{index} {target}", hash_program(lambda t=target: tosaic.compile(module, inputs, t))
    yield f"op {op}-{index} {FLOAT}", hash_program(lambda: tosaic.compile(model, inputs, FLOAT))


def hash_job(job: tuple[str, int]) -> dict[str, dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, index = job
    return dict(hash_model(name) if index < 0 else hash_sample(name, index))


def list_jobs(only: str) -> list[tuple[str, int]]:
    from tosaic import zoo
    from tosaic.ops import registry

    models = [(name, -1) for name in zoo.names()]
    samples = [(op, i) for op, record in registry().records.items() for i in range(len(record.samples()))]
    return [job for job in (*models, *samples) if only in job[0]]


def hash_all(out: Path, workers: int, only: str) -> None:
    found: dict[str, Any] = {}
    jobs = list_jobs(only)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for done, part in enumerate(pool.map(hash_job, jobs, chunksize=1), 1):
            found.update(part)
            print(f"\r{done}/{len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    out.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


def compare(before: Path, after: Path) -> int:
    """Print what differs; the number of programs that do."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    different = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    for key in different:
        print(f"{key}\n  before {old.get(key)}\n  after  {new.get(key)}")
    failed = sum("error" in one for one in new.values())
    print(f"{len(new)} programs, {failed} of them errors; {len(different)} differ")
    return len(different)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    hashing = commands.add_parser("hash")
    hashing.add_argument("--out", type=Path, required=True)
    hashing.add_argument("--jobs", type=int, default=2)
    hashing.add_argument("--only", default="", help="models and operators whose name has this in it")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return 1 if compare(options.before, options.after) else 0
    hash_all(options.out, options.jobs, options.only)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
