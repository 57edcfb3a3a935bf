"""The build: an ELF for each board and memory mode, exact pools, the same bytes, and what it refuses."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from support.boards import check_memory, needs_board, needs_cross_gcc, needs_zig, rebuild
from support.elf_sizes import count_bytes
from support.firmware_models import compile_sandwich, compile_small
from support.handmade import Spec, call
from tosaic.board import build as builder
from tosaic.board.build import Firmware, build
from tosaic.board.description import find_board, list_boards
from tosaic.board.elf import read_elf
from tosaic.board.kernels import FIRMWARE, list_kernels
from tosaic.board.placement import MODES
from tosaic.board.project import Sample, make_config
from tosaic.board.toolchain import find_toolchain
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.engines import engine
from tosaic.formats import pte

pytestmark = needs_zig
BOARDS = {"ethos-u55-128": "corstone-300", "ethos-u65-256": "corstone-300", "ethos-u85-256": "corstone-320"}
INPUT = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)


def make_small(target: str, form: str = "segment") -> bytes:
    return compile_small(target).pte[form]


def boot(firmware: Firmware, elf: bytes | None = None, accelerator: str = "", inputs: tuple[bytes, ...] = ()):
    from tosaic.board.virtual import run_virtual

    return run_virtual(firmware.board, elf or firmware.elf, accelerator or firmware.accelerator, inputs)


@needs_board
@pytest.mark.parametrize("target", BOARDS)
def test_boot(target: str) -> None:
    """The same bytes as engine `npu`, in every memory mode that the NPU has."""
    data = make_small(target)
    (expected,) = engine.run(data, [INPUT], engine="npu").outputs
    for mode in ("Sram_Only", "Shared_Sram") if "u55" in target else MODES:
        firmware = build(data, BOARDS[target], memory_mode=mode)
        done = boot(firmware, inputs=(INPUT.tobytes(),))
        assert done.exit_code == 0, done.log
        assert done.files["output-0.bin"] == expected.tobytes()
        flat = np.asarray(expected, np.float32).reshape(-1)
        printed = [float(text) for text in re.findall(r"^Output\[0\]\[\d+\]: \(float\) (\S+)$", done.log, re.MULTILINE)]
        assert printed == [float(f"{value:.6f}") for value in flat]


@needs_board
@pytest.mark.parametrize("mode", ["Sram_Only", "Shared_Sram"])
def test_a_board_of_ones_own(tmp_path: Path, mode: str) -> None:
    """A folder with a port, here a copy of the template: other addresses, and a network that is copied from flash."""
    shutil.copytree(find_board("template").folder, tmp_path / "mine")
    data = make_small("ethos-u55-128")
    (expected,) = engine.run(data, [INPUT], engine="npu").outputs
    firmware = build(data, str(tmp_path / "mine"), memory_mode=mode)
    done = boot(firmware, inputs=(INPUT.tobytes(),))
    assert done.exit_code == 0, done.log
    assert done.files["output-0.bin"] == expected.tobytes()
    assert ("Model in 0x2400" if mode == "Sram_Only" else "Model in 0x0800") in done.log


@needs_board
@needs_cross_gcc
def test_boot_with_gcc() -> None:
    data = make_small("ethos-u55-128")
    (expected,) = engine.run(data, [INPUT], engine="npu").outputs
    done = boot(build(data, "corstone-300", toolchain="gcc"), inputs=(INPUT.tobytes(),))
    assert done.files["output-0.bin"] == expected.tobytes()


@needs_board
def test_two_delegates() -> None:
    data = compile_sandwich("ethos-u55-128").pte["inline"]
    (expected,) = engine.run(data, [INPUT], engine="npu").outputs
    done = boot(build(data, "corstone-300"), inputs=(INPUT.tobytes(),))
    assert done.files["output-0.bin"] == expected.tobytes()
    assert "NPU Inferences : 2" in done.log


@needs_board
def test_memory_of_inputs_and_outputs() -> None:
    """Inputs and outputs for which the program plans no memory have a pool of the application."""
    given = Spec((4,), planned=False)
    data = call("aten::add", "out", (given, Spec((4,)), 1), given)
    firmware = build(data, "corstone-300")
    assert firmware.pools.interface == 32
    done = boot(firmware, accelerator="ethos-u55-128")
    assert done.files["output-0.bin"] == np.full(4, 2, np.float32).tobytes()
    assert "method_allocator_input:    32 bytes" in done.log
    done = boot(firmware, elf=rebuild(firmware, interface=16), accelerator="ethos-u55-128")
    assert done.exit_code == 2
    assert "E [tosaic] the interface pool is too small: inputs and outputs need 32 bytes so far\n" in done.log


@needs_board
def test_pools_are_exact() -> None:
    """The high-water mark is the pool; a pool that is one unit smaller has its own error."""
    data = make_small("ethos-u65-256")
    firmware = build(data, "corstone-300")
    check_memory(boot(firmware).log)
    sentences = {"method": "method", "planned": "planned", "scratch": "scratch", "fast_scratch": "fast scratch"}
    for name, words in sentences.items():
        size = firmware.pools.list_sizes()[name]
        done = boot(firmware, elf=rebuild(firmware, **{name: size - 16}))
        assert done.exit_code == 2
        assert f"the {words} pool is too small" in done.log and f"detail {size} " in done.log


@needs_board
def test_samples() -> None:
    data = make_small("ethos-u55-128")
    (expected,) = engine.run(data, [INPUT], engine="npu").outputs
    good = Sample((INPUT.tobytes(),), (expected.tobytes(),))
    done = boot(build(data, "corstone-300", samples=[good, good]))
    assert done.exit_code == 0 and "Test_result: PASS" in done.log
    wrong = np.array(expected, np.float32)
    wrong.reshape(-1)[7] += 0.5
    bad = Sample(good.inputs, (wrong.tobytes(),))
    done = boot(build(data, "corstone-300", samples=[good, bad]))
    assert done.exit_code == 1 and "Test_result: FAIL" in done.log
    found, must = (np.asarray(array).reshape(-1)[7] for array in (expected, wrong))
    where = "sample 1: the first difference is in output 0, element 7"
    assert f"{where}: (float) {found:.6f}, expected (float) {must:.6f}\n" in done.log
    assert boot(build(data, "corstone-300", samples=[bad], atol=1.0)).exit_code == 0
    with pytest.raises(Invalid, match="a sample has 0 inputs"):
        build(data, "corstone-300", samples=[Sample((), ())])


@needs_board
def test_faults_are_reported() -> None:
    """Another NPU, a damaged command stream, an NPU that never answers."""
    data = make_small("ethos-u55-128")
    firmware = build(data, "corstone-300")
    done = boot(firmware, accelerator="ethos-u65-256")
    assert done.exit_code == 2 and "the file is for another NPU" in done.log
    commands = data.index(b"COP1")
    hurt = data[: commands + 80] + b"\xff\x3f" + data[commands + 82 :]
    done = boot(build_damaged(data, hurt, firmware))
    from tosaic.board.virtual import VirtualOptions, run_virtual

    silent = run_virtual(firmware.board, firmware.elf, firmware.accelerator, (), VirtualOptions(silent_npu=True))
    assert silent.exit_code == 2 and "the NPU did not end in time" in silent.log
    assert done.exit_code == 2 and re.search(r"the NPU (refused a command|accessed memory|stopped)", done.log)


def build_damaged(data: bytes, hurt: bytes, firmware: Firmware) -> Firmware:
    """Replace the .pte in a firmware by another one of the same length."""
    at = firmware.elf.index(data)
    return dataclasses.replace(firmware, elf=firmware.elf[:at] + hurt + firmware.elf[at + len(hurt) :])


def test_model_is_in_the_elf() -> None:
    data = make_small("ethos-u55-128")
    elf = read_elf(build(data, "corstone-300").elf)
    assert elf.read_symbol("tosaic_model") == data
    assert elf.symbols["tosaic_model"].address == 0x7000_0000


def test_same_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = make_small("ethos-u55-128")
    first = build(data, "corstone-300").elf
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # Nothing is kept from the first build.
    monkeypatch.setattr(builder, "find_cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("tempfile.tempdir", None)
    assert build(data, "corstone-300").elf == first
    assert str(tmp_path).encode() not in first and b"tosaic-" not in first


def test_boards_are_complete() -> None:
    for name in list_boards():
        folder = find_board(name).folder
        assert {"board.c", "board.ld", "board.toml"} <= {path.name for path in folder.iterdir()}
        assert any((folder / script).is_file() for script in MODES.values())


def test_refusals() -> None:
    data = make_small("ethos-u55-128")
    with pytest.raises(Invalid, match="for `ethos-u55-128`, which Corstone-320 does not have"):
        build(data, "corstone-320")
    with pytest.raises(Invalid, match="no memory mode `Dedicated_Sram`"):
        build(data, "corstone-300", memory_mode="Dedicated_Sram")
    with pytest.raises(Invalid, match=r"lacks `quantized_decomposed::quantize_per_tensor\.out`"):
        build(data, "corstone-300", operators=["quantized_decomposed::dequantize_per_tensor.out"])
    with pytest.raises(Invalid, match=r"no kernel for `aten::fly\.out`"):
        build(data, "corstone-300", operators=[*map(str, pte.read(data).find().operators), "aten::fly.out"])
    with pytest.raises(Invalid, match="unknown toolchain `msvc`"):
        build(data, "corstone-300", toolchain="msvc")
    with pytest.raises(Invalid, match="unknown board `corstone-30`") as unknown:
        build(data, "corstone-30")
    assert "template" not in unknown.value.fix
    with pytest.raises(Invalid, match="no firmware for the board `himax-we2`") as other:
        build(data, "himax-we2")
    assert "tosaic fit" in other.value.why and "`corstone-300` or `corstone-320`" in other.value.fix


def test_missing_kernels_are_named(softmax_pte: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: kernel for name, kernel in list_kernels().items() if "softmax" not in name}
    monkeypatch.setattr("tosaic.board.kernels.list_kernels", lambda: known)
    with pytest.raises(Invalid, match=r"no kernel for `aten::_softmax\.out`"):
        build(softmax_pte["inline"], "corstone-300")


def test_what_does_not_fit() -> None:
    """The numbers of each memory, and what would fit."""
    data = make_small("ethos-u55-128") + bytes(3 << 20)
    with pytest.raises(Invalid, match="does not fit on Corstone-300 in memory mode Sram_Only") as error:
        build(data, "corstone-300", memory_mode="Sram_Only")
    assert re.search(r"sram: 3,\d+,\d+ of 2,097,152 bytes \(model 3,\d+,\d+, planned 960", error.value.why)
    assert error.value.fix == "use memory mode Shared_Sram"
    with pytest.raises(Invalid, match="does not fit") as error:
        build(make_small("ethos-u55-128") + bytes(300 << 20), "corstone-300")
    assert "ddr: " in error.value.why
    # A file for Sram_Only that is too large for it moves to the next mode, with a note.
    firmware = build(make_small("ethos-u85-256") + bytes(5 << 20), "corstone-320")
    assert firmware.memory_mode == "Shared_Sram" and "which does not fit: sram" in firmware.note


def test_code_that_does_not_fit(tmp_path: Path) -> None:
    shutil.copytree(find_board("corstone-300").folder, tmp_path / "tiny")
    path = tmp_path / "tiny" / "board.toml"
    path.write_text(path.read_text().replace("size = 0x8_0000", "size = 0x4000", 1))
    with pytest.raises(Invalid, match="code and variables of the firmware do not fit on Corstone-300") as error:
        build(make_small("ethos-u55-128"), str(tmp_path / "tiny"))
    assert re.fullmatch(r"itcm: 2\d,\d{3} of 16,384 bytes", error.value.why)


def test_a_broken_board_fails_with_the_compiler(tmp_path: Path) -> None:
    source = find_board("corstone-300").folder
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "board.c").write_text("int broken\n")
    with pytest.raises(ToolFailed, match="zig did not build the firmware") as error:
        build(make_small("ethos-u55-128"), str(tmp_path))
    assert "board.c" in error.value.why


def measure(folder: Path, *sources: Path, is_constant: bool = True) -> int:
    """The code and constants of sources as one object file, for Corstone-300. Without variables, if asked for."""
    zig, board, target = find_toolchain("zig"), find_board("corstone-300"), folder / "sources.o"
    (folder / "board_config.h").write_text(make_config(board))
    headers = [f"-I{path}" for path in (FIRMWARE, FIRMWARE / "app", board.folder, folder)]
    files = [str(path) for path in sorted(sources)]
    subprocess.run([*zig.command, *zig.flags, *headers, "-r", *files, "-o", str(target)], check=True)
    assert not is_constant or not count_bytes(target, writable=True), "there are variables"
    return count_bytes(target, writable=False)


def test_sizes(tmp_path: Path) -> None:
    """Runtime and driver: at most 16 kB, 20 kB with quantize and dequantize. The manual has these numbers."""
    driver, kernels = FIRMWARE / "ethosu.c", FIRMWARE / "kernels"
    application = [*(FIRMWARE / "app").glob("*.c"), *find_board("corstone-300").folder.glob("*.c")]
    sizes = {
        "runtime": measure(tmp_path, *(path for path in FIRMWARE.glob("*.c") if path != driver)),
        "driver": measure(tmp_path, driver),
        "quantize and dequantize": measure(tmp_path, kernels / "quantize.c"),
        "application and board (Corstone-300)": measure(tmp_path, *application, is_constant=False),
        f"all {len(list_kernels())} kernels": measure(tmp_path, *kernels.glob("*.c")),
    }
    runtime = sizes["runtime"] + sizes["driver"]
    assert runtime <= 16 * 1024 and runtime + sizes["quantize and dequantize"] <= 20 * 1024
    assert sizes[f"all {len(list_kernels())} kernels"] <= 2048 * len(list_kernels())
    page = (Path(__file__).parents[2] / "docs" / "porting.md").read_text("utf-8")
    assert dict(re.findall(r"^\| ([^|]+) \| ([\d,]+) \|$", page, re.MULTILINE)) == {
        part: f"{size:,}" for part, size in sizes.items()
    }
