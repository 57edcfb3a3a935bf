"""Firmware whose weights and commands are in .ptd files: found by their keys, next to the .pte."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

import tosaic
from support.boards import needs_board, needs_cross_gcc
from support.firmware import GCC, STATUSES, Firmware, simulate_job
from support.hostile_tables import make_ptd
from support.mutate import damage
from support.programs import make_external
from tosaic.board.build import build, design
from tosaic.board.c_project import make_c_project
from tosaic.board.description import find_board
from tosaic.board.options import BoardOptions
from tosaic.core.errors import Invalid
from tosaic.engines import engine
from tosaic.engines.board import extract_model

needs_gcc = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
BOTH = ("weights", "commands")
INPUT = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)


def make(external: tuple[str, ...] = BOTH, target: str = "ethos-u55-128") -> tuple[bytes, list[bytes]]:
    program = make_external(external, target)
    return program.pte, list(program.data.values())


def compute(data: bytes, files: list[bytes]) -> bytes:
    return engine.run(data, [INPUT], engine="npu", data=files).outputs[0].tobytes()


@needs_gcc
@pytest.mark.parametrize("external", [("weights",), ("commands",), BOTH])
def test_the_runtime_finds_data_by_its_key(firmware: Firmware, external: tuple[str, ...]) -> None:
    data, files = make(external)
    for order in (files, files[::-1]):
        ended = firmware.run(data, [INPUT], data=order, npu=simulate_job)
        assert STATUSES[ended.status] == "OK" and ended.outputs[0].tobytes() == compute(data, files)
    ended = firmware.run(data, [INPUT], data=files[1:])
    assert STATUSES[ended.status] == "EXTERNAL_DATA"


@needs_gcc
def test_the_runtime_refuses_other_files(firmware: Firmware) -> None:
    data, files = make()

    def add(file: bytes) -> str:
        return STATUSES[firmware.run(data, [INPUT], data=[*files, file], npu=simulate_job).status]

    good = make_ptd([(0, 16)], [("x", 0)], 16)
    assert add(good) == add(make_ptd([], [], 0)) == "OK"
    assert add(b"") == add(data) == add(good[:47]) == "NOT_DATA"
    assert add(make_ptd([(0, 16)], [("x", 0)], 16, version=1)) == "DAMAGED"
    assert add(make_ptd([(0, 17)], [("x", 0)], 16)) == add(make_ptd([(0, 16)], [("x", 1)], 16)) == "DAMAGED"
    assert add(make_ptd([(0, 1 << 63)], [("x", 0)], 16)) == add(good[:-1]) == "DAMAGED"
    assert add(make_ptd([(8, 8)], [("x", 0)], 16)) == "MISALIGNED"
    assert add(good[:8] + b"FH02" + good[12:]) == "DAMAGED"
    # The tables may not reach into the data.
    assert add(good[:32] + struct.pack("<Q", 48) + good[40:]) == "DAMAGED"


def attack(firmware: Firmware, count: int) -> None:
    data, files = make()
    statuses = dict.fromkeys(STATUSES, 0)
    for number in range(count):
        index = number % 2
        _, hurt = damage(files[index], "ptd", number, [])
        ended = firmware.run(data, [INPUT], data=[hurt, files[1 - index]])
        statuses[STATUSES[ended.status]] += 1
    assert statuses["OK"] and statuses["DAMAGED"] and statuses["EXTERNAL_DATA"]


@needs_gcc
def test_some_damage(firmware: Firmware) -> None:
    """A status or a result, with sanitizers."""
    attack(firmware, 300)


@needs_gcc
@pytest.mark.slow
def test_much_damage(firmware: Firmware) -> None:
    attack(firmware, 5000)


@needs_board
@pytest.mark.parametrize(
    ("target", "board", "mode"),
    [
        ("ethos-u55-128", "corstone-300", "Shared_Sram"),
        ("ethos-u85-256", "corstone-320", "Sram_Only"),
        ("ethos-u55-128", "template", "Sram_Only"),
        ("ethos-u55-128", "template", "Shared_Sram"),
    ],
)
@pytest.mark.parametrize("toolchain", ["zig", pytest.param("gcc", marks=needs_cross_gcc)])
def test_firmware(target: str, board: str, mode: str, toolchain: str) -> None:
    """The same bytes as the simulator, also where all files are copied to SRAM after reset."""
    data, files = make(target=target)
    elf = build(data, str(find_board(board).folder), memory_mode=mode, data=files, toolchain=toolchain).elf
    found, others = extract_model(elf)
    assert (found, others) == (data, files)
    options = BoardOptions(str(find_board(board).folder), elf=elf)
    done = engine.run(found, [INPUT], engine="board", data=others, board=options)
    assert done.outputs[0].tobytes() == compute(data, files)


@needs_board
def test_engine() -> None:
    data, files = make()
    assert engine.run(data, [INPUT], engine="board", data=files).outputs[0].tobytes() == compute(data, files)


def test_c_project() -> None:
    """An array for each file, with its size in the header."""
    data, files = make()
    project = make_c_project(design(data, "corstone-300", data=files))
    source, header = project["model_data.c"].decode(), project["model_data.h"].decode()
    for index, file in enumerate(files):
        array = source.partition(f"tosaic_data_{index}[MODEL_DATA_{index}_SIZE] = {{")[2].partition("}")[0]
        assert bytes(int(word, 16) for word in array.split(",")[:-1]) == file
        assert f"#define MODEL_DATA_{index}_SIZE {len(file)}u" in header
    assert ".section .model" not in project["model.c"].decode() and not any(name.endswith(".ptd") for name in project)
    assert "tosaic_add_data(" in project["main.c"].decode()


def test_the_size_of_all_files_counts() -> None:
    data, files = make()
    large = make_ptd([(0, 3 << 20)], [("x", 0)], 3 << 20)
    usages = design(data, "corstone-300", data=files).usages
    assert sum(usage.parts.get("model", 0) for usage in usages) == sum(-(-len(x) // 16) * 16 for x in (data, *files))
    with pytest.raises(Invalid, match="does not fit on Corstone-300 in memory mode Sram_Only"):
        design(data, "corstone-300", data=[*files, large], memory_mode="Sram_Only")


def test_missing_and_damaged_files() -> None:
    data, files = make()
    with pytest.raises(Invalid, match="the commands of an Ethos-U delegate are missing"):
        design(data, "corstone-300", data=files[1:])
    hurt = bytearray(files[0])
    hurt[-20] ^= 1
    with pytest.raises(Invalid, match="the commands of an Ethos-U delegate are damaged"):
        design(data, "corstone-300", data=[bytes(hurt), files[1]])


def test_one_file_for_both() -> None:
    """Parts with the same placement share a file."""
    placements = tosaic.VelaExternalBlockPlacements(cmd_data="npu", weight_data="npu")
    spec = tosaic.EthosUCompileSpec("ethos-u55-128", external_block_placements=placements)
    torch.manual_seed(0)
    program = tosaic.compile(torch.nn.Conv2d(3, 4, 3).eval(), (torch.randn(1, 3, 8, 8),), spec)
    assert len(program.data) == 1
    made = design(program.pte, "corstone-300", data=list(program.data.values()))
    assert len(made.model.data) == 1
