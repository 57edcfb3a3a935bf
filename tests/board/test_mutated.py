"""Damaged .pte files in the firmware's runtime, with sanitizers: a status or a result, never a crash."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import flatbuffers
import pytest
import torch
from torch.export import export

from support.boards import needs_board
from support.corpus import list_programs, list_tables
from support.firmware import GCC, Firmware, build_harness
from support.firmware_models import Counter as State
from support.firmware_models import Offset, compile_small
from support.handmade import Spec, Step, call, make_program
from support.hostile_tables import add_offsets, add_table, number, offset
from support.mutate import damage
from support.programs import emit
from tosaic.formats import pte
from tosaic.formats.pte_schema import FIELDS, UNIONS

needs_gcc = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
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
        *(emit(export(model, (torch.zeros(3, 3),)), forms=("segment",))["segment"] for model in (Offset(), State())),
    ]


def list_blobs(data: bytes) -> list[bytes]:
    return [delegate.blob for plan in pte.read(data).plans for delegate in plan.delegates]


def attack(tmp_path: Path, files: list[bytes], numbers: range) -> None:
    program = build_harness(tmp_path)
    firmware = Firmware(program, tmp_path / "log")
    kinds: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    inner = list(map(list_blobs, files))
    for seed in numbers:
        number = seed % len(files)
        kind, hurt = damage(files[number], "pte", seed, inner[number])
        (tmp_path / "last.pte").write_bytes(hurt)
        # A plan may ask for gigabytes: the pools are what a device has.
        statuses[firmware.run(hurt, pools=(1 << 16, 1 << 20, 1 << 20, 1 << 19), runs=2).status] += 1
        kinds[kind] += 1
    firmware.close()
    assert sum(count for kind, count in kinds.items() if kind not in ANYWHERE) >= 0.8 * len(numbers)
    # Some damage does no harm, most is found, by many different checks.
    assert len(statuses) > 8 and 0 < statuses[0] < len(numbers)


def attack_board(files: list[bytes], numbers: range) -> None:
    """Boot firmware whose model is damaged: the virtual board stops it at any access outside its memory."""
    from tosaic.board.build import build
    from tosaic.board.virtual import run_virtual

    built = [build(data, "corstone-300") for data in files]
    inner = list(map(list_blobs, files))
    codes: Counter[int] = Counter()
    for seed in numbers:
        number = seed % len(files)
        firmware, data = built[number], files[number]
        _, hurt = damage(data, "pte", seed, inner[number])
        at = firmware.elf.index(data)
        # What was cut off is zero: the room of the model stays the same.
        elf = firmware.elf[:at] + hurt[: len(data)].ljust(len(data), b"\0") + firmware.elf[at + len(data) :]
        codes[run_virtual(firmware.board, elf, firmware.accelerator or "ethos-u55-128").exit_code] += 1
    assert set(codes) == {0, 2}


@needs_board
def test_some_damage_on_the_board(add_pte: dict[str, bytes]) -> None:
    attack_board([add_pte["inline"], compile_small("ethos-u55-128").pte["segment"]], range(20))


@needs_board
@pytest.mark.slow
def test_much_damage_on_the_board(add_pte: dict[str, bytes]) -> None:
    made = [compile_small(target).pte for target in ("ethos-u55-128", "ethos-u65-256")]
    attack_board([data for files in (add_pte, *made) for data in files.values()], range(1000, 1500))


@needs_gcc
def test_some_damage(tmp_path: Path, add_pte: dict[str, bytes]) -> None:
    attack(tmp_path, list_files(add_pte), range(600))


@needs_gcc
def test_files_made_by_hand(tmp_path: Path) -> None:
    """Files that share tables and vectors, loop, or ask for gigabytes: an end within seconds of processor time."""
    firmware = Firmware(build_harness(tmp_path), tmp_path / "log")
    files = [(name, data) for name, kind, data in (*list_programs(), *list_tables()) if kind == "pte"]
    files += [("a chain of chains", share_chain(50_000))]
    statuses = {name: firmware.run(data).status for name, data in files}
    firmware.close()
    assert all(statuses.values()), statuses


def share_chain(times: int) -> bytes:
    """A program with the same chain many times, which has the same instruction many times."""
    slots = {f"{table}.{field}": slot for table, fields in FIELDS.items() for slot, field in enumerate(fields)}
    builder = flatbuffers.Builder(1 << 20)
    condition = add_table(builder, {0: number(0, 4)})
    value = add_table(builder, {0: number(UNIONS["KernelTypes"].index("Bool") + 1, 1), 1: offset(condition)})
    jump = add_table(builder, {0: number(0, 4), 1: number(1, 4)})
    kind = UNIONS["InstructionArguments"].index("JumpFalseCall") + 1
    instruction = add_table(builder, {0: number(kind, 1), 1: offset(jump)})
    instructions = add_offsets(builder, *[instruction] * times)
    chain = add_table(builder, {slots["Chain.instructions"]: offset(instructions)})
    chains, values = add_offsets(builder, *[chain] * times), add_offsets(builder, value)
    fields = {slots["ExecutionPlan.values"]: offset(values), slots["ExecutionPlan.chains"]: offset(chains)}
    plans = add_offsets(builder, add_table(builder, fields))
    builder.Finish(add_table(builder, {slots["Program.execution_plan"]: offset(plans)}), b"ET12")
    return bytes(builder.Output())


@needs_gcc
@pytest.mark.slow
def test_much_damage(tmp_path: Path, add_pte: dict[str, bytes]) -> None:
    attack(tmp_path, list_files(add_pte), range(1000, 21000))
