"""Damaged .pte files in the firmware's runtime, with sanitizers: a status or a result, never a crash."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from support.firmware import GCC, Firmware, build_harness
from support.firmware_models import compile_small
from support.handmade import Spec, Step, call, make_program
from support.mutate import damage
from tosaic.formats import pte

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc")
ANYWHERE = ("cut_off", "flip_anywhere")


def list_files(add_pte: dict[str, bytes]) -> list[bytes]:
    """Small files: delegates inline and in segments, kernels, moves, jumps, lists, planned and other memory."""
    x = Spec((2, 3))
    step = Step("aten::add", "out", (x, x, 1), (x,))
    flag = Step("aten::add", "out", (x, Spec((3,), planned=False), 0.5), (Spec((2, 3), unbound=True),))
    return [
        *add_pte.values(),
        *compile_small("ethos-u55-128").pte.values(),
        *compile_small("ethos-u65-256").pte.values(),
        make_program(step, flag, moves=[(0, 3)], jumps=[(2, 1)]),
        call("quantized_decomposed::quantize_per_tensor", "out", (x, 0.1, 3, -128, 127, 1), Spec((2, 3), torch.int8)),
        call("aten::add", "out", (x, x, [1, 2]), Spec((2, 3))),
        call("aten::add", "out", ([x, None, x], [x, x], "text"), x),
    ]


def attack(tmp_path: Path, files: list[bytes], numbers: range) -> None:
    program = build_harness(tmp_path)
    firmware = Firmware(program, tmp_path / "log")
    kinds: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    for number in numbers:
        data = files[number % len(files)]
        inner = [delegate.blob for plan in pte.read(data).plans for delegate in plan.delegates]
        kind, hurt = damage(data, "pte", number, inner)
        (tmp_path / "last.pte").write_bytes(hurt)
        # A plan may ask for gigabytes: the pools are what a device has.
        statuses[firmware.run(hurt, pools=(1 << 16, 1 << 20, 1 << 20, 1 << 19), runs=2).status] += 1
        kinds[kind] += 1
    firmware.close()
    assert sum(count for kind, count in kinds.items() if kind not in ANYWHERE) >= 0.8 * len(numbers)
    # Some damage does no harm, most is found, by many different checks.
    assert len(statuses) > 8 and 0 < statuses[0] < len(numbers)


def test_some_damage(tmp_path: Path, add_pte: dict[str, bytes]) -> None:
    attack(tmp_path, list_files(add_pte), range(600))


@pytest.mark.slow
def test_much_damage(tmp_path: Path, add_pte: dict[str, bytes]) -> None:
    attack(tmp_path, list_files(add_pte), range(1000, 21000))
