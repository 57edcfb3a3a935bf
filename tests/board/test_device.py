"""`tosaic build` and `tosaic run --engine board`: the same bytes as the simulator, and a message for all that fails."""

import dataclasses
import functools
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tosaic
from support.boards import needs_board, needs_cross_gcc, rebuild
from support.cli import run_command
from support.firmware_models import Sandwich, Small
from tosaic.board import cpu, device, fvp, qemu
from tosaic.board.build import design
from tosaic.board.c_project import make_c_project
from tosaic.board.description import find_board
from tosaic.board.device import FirmwareError, run_firmware
from tosaic.board.elf import read_elf
from tosaic.board.options import BoardOptions
from tosaic.board.virtual import VirtualOptions
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.engines import engine

needs_qemu = pytest.mark.skipif(
    not shutil.which(qemu.PROGRAM), reason="QEMU is not installed: install the package qemu-system-arm"
)
TARGETS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")


@functools.cache
def compile_small(target: str, model: type = Small) -> tosaic.Program:
    import torch

    torch.manual_seed(0)
    return tosaic.compile(model().eval(), (torch.randn(1, 3, 8, 8),), target=target)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with its sidecar, as a user has it."""
    path = tmp_path_factory.mktemp("small") / "small.pte"
    compile_small("ethos-u55-128").save(path)
    return path


@pytest.fixture(scope="module")
def firmware(small: Path) -> Path:
    """The firmware of that program, with its samples."""
    elf = small.with_suffix(".elf")
    done = run_command("build", small, "--board", "corstone-300", "--with-samples", "-o", elf)
    assert done.code == 0, done.stderr
    assert f"wrote `{elf}`" in done.stdout and "tests         1 samples" in done.stdout
    return elf


@needs_board
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", [Small, Sandwich])
def test_bytes_are_those_of_the_simulator(target: str, model: type) -> None:
    data = compile_small(target, model).pte
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    (expected,), done = engine.run(data, [x], engine="npu").outputs, engine.run(data, [x], engine="board")
    assert done.outputs[0].tobytes() == expected.tobytes()
    assert done.execution is not None and done.execution.place.endswith(f"with {target}, runner virtual")


@needs_board
@needs_qemu
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512"])
def test_same_elf_in_qemu(target: str) -> None:
    """Also the counters are the same: both boards know where the regions are."""
    data = compile_small(target).pte
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    runs = [
        engine.run(data, [x], engine="board", board=BoardOptions("corstone-300", runner))
        for runner in ("virtual", "qemu")
    ]
    assert runs[0].outputs[0].tobytes() == runs[1].outputs[0].tobytes()
    logs = [run.execution.log.splitlines() for run in runs if run.execution is not None]
    counters = [[line for line in log if "ethosu_pmu_c" in line] for log in logs]
    assert counters[0] == counters[1] and len(counters[0]) == 5


@needs_board
def test_command_prints_the_log_of_the_firmware(small: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=(1, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    given = ("-i", tmp_path / "x.npy", "--values", 3, "--log")
    board = run_command("run", small, "--engine", "board", *given, "-o", tmp_path / "board.npz")
    assert board.code == 0, board.stderr
    simulator = run_command("run", small, "--engine", "npu", *given, "-o", tmp_path / "npu.npz")
    first, second = (np.load(tmp_path / name)["output_0"] for name in ("board.npz", "npu.npz"))
    assert first.tobytes() == second.tobytes()
    values = [line for line in board.stdout.splitlines() if line.startswith("Output[0]")]
    assert values == [line for line in simulator.stdout.splitlines() if line.startswith("Output[0]")]
    for line in ("Running method forward", "Ethos-U PMU report:", "Program complete, exiting.", "runner virtual"):
        assert line in board.stdout
    assert "not measured (estimate from the commands)" in board.stdout


@needs_board
def test_instructions_are_counted_on_request(small: Path) -> None:
    counted = run_command("run", small, "--engine", "board", "--count-instructions", "--json").json["device"]
    assert counted["exit_code"] == 0 and 10_000 < counted["instructions"] < 10_000_000
    assert "cycle_cnt : 256 cycles" not in counted["log"]
    assert run_command("run", small, "--engine", "board", "--json").json["device"]["instructions"] is None
    refused = run_command("run", small, "--engine", "board", "--count-instructions", "--runner", "qemu")
    assert refused.code == 2 and "only the virtual board counts instructions" in refused.stderr


@needs_board
def test_samples_pass_and_fail(firmware: Path, tmp_path: Path) -> None:
    done = run_command("run", firmware)
    assert done.code == 0 and "Test_result: PASS" in done.stdout
    data = firmware.read_bytes()
    expected = read_elf(data).read_symbol("sample_0_output_0")
    at = data.index(expected)
    wrong = tmp_path / "wrong.elf"
    wrong.write_bytes(data[: at + 8] + np.float32(1e9).tobytes() + data[at + 12 :])
    done = run_command("run", wrong)
    assert done.code == 1 and "Test_result: FAIL" in done.stdout
    assert "sample 0: the first difference is in output 0, element 2" in done.stdout


@needs_board
def test_folder_of_a_board(small: Path, tmp_path: Path) -> None:
    """A board of a user is a folder: the template, as it is."""
    folder = tmp_path / "my-board"
    shutil.copytree(find_board("template").folder, folder)
    elf = tmp_path / "mine.elf"
    done = run_command("build", small, "--board", folder, "-o", elf, "--json")
    assert done.code == 0, done.stderr
    assert done.json["schema"] == "tosaic-build/1" and done.json["board"] == "my-board"
    assert done.json["accelerator"] == "ethos-u55-128" and done.json["files"] == {str(elf): elf.stat().st_size}
    done = run_command("run", elf, "--board", folder, "--values", 1)
    assert done.code == 0 and "Ran on Template board with ethos-u55-128, runner virtual" in done.stdout, done.stderr


@needs_board
def test_samples_of_a_program_with_integer_inputs(tmp_path: Path) -> None:
    """The .tosaic file has them as the float model takes them: the firmware gets them as the program does."""
    import torch

    torch.manual_seed(0)
    x, elf = torch.randn(1, 3, 8, 8), tmp_path / "small.elf"
    tosaic.compile(Small().eval(), (x,), io="int8", layout="nhwc").save(tmp_path / "small.pte")
    done = run_command("build", tmp_path / "small.pte", "--board", "corstone-300", "--with-samples", "-o", elf)
    assert done.code == 0, done.stderr
    done = run_command("run", elf)
    assert done.code == 0 and "Test_result: PASS" in done.stdout, done.stderr


@needs_board
def test_file_without_samples(small: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pte"
    alone.write_bytes(small.read_bytes())
    done = run_command("build", alone, "--board", "corstone-300", "--with-samples", "-o", tmp_path / "x.elf")
    assert done.code == 2 and "there are no samples to test the firmware with" in done.stderr


@needs_board
def test_wrong_target(small: Path, firmware: Path) -> None:
    """The build refuses; a firmware that is on another board anyway says so on the console."""
    done = run_command("run", small, "--engine", "board", "--board", "corstone-320")
    assert done.code == 2 and "the program is for `ethos-u55-128`, which Corstone-320 does not have" in done.stderr
    done = run_command("run", firmware, "--board", "corstone-320")
    assert done.code == 2 and "the firmware is not for Corstone-320" in done.stderr
    with pytest.raises(FirmwareError, match="does not run on Corstone-300") as caught:
        run_firmware(find_board("corstone-300"), firmware.read_bytes(), "ethos-u55-256", [], BoardOptions())
    assert "the file is for another NPU" in caught.value.log and "the file is for another NPU" in caught.value.why


@needs_board
def test_model_that_is_copied_to_sram(small: Path, tmp_path: Path) -> None:
    """In such an ELF file the model is not at its address."""
    elf, board = tmp_path / "small.elf", find_board("template").folder
    done = run_command("build", small, "--board", board, "--memory-mode", "Sram_Only", "-o", elf)
    assert done.code == 0, done.stderr
    done = run_command("run", elf, "--board", board)
    assert done.code == 0 and "I [tosaic] Model in 0x2400" in done.stdout, done.stderr


@needs_board
def test_less_than_the_model_needs(small: Path, tmp_path: Path) -> None:
    """A firmware with too small a pool, or without a kernel: on the console, and from the command."""
    made, elf = design(small.read_bytes(), "corstone-300"), tmp_path / "small.elf"
    left_out, *others = made.kernels
    for content, sentence in (
        (rebuild(made, scratch=made.pools.scratch - 16), "the scratch pool is too small"),
        (rebuild(made, planned=made.pools.planned - 16), "the planned pool is too small"),
        (rebuild(made, tuple(others)), "an operator has no kernel in this build"),
    ):
        elf.write_bytes(content)
        done = run_command("run", elf)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("E [tosaic] ")]
        assert done.code == 2 and sentence in done.stderr
        assert line.startswith(f"E [tosaic] loading the model failed: {sentence}")
        assert (left_out.operator in line) == ("kernel" in sentence)


@needs_board
def test_damaged_commands(small: Path, tmp_path: Path) -> None:
    """The console has the status word, the command also the reason that only the simulator knows."""
    data, damaged = small.read_bytes(), tmp_path / "damaged.pte"
    first = data.index(b"COP1") + 32
    damaged.write_bytes(data[:first] + b"\xff\xff" + data[first + 2 :])
    done = run_command("run", damaged, "--engine", "board")
    assert done.code == 2 and "the NPU refused a command" in done.stderr
    assert "command at offset 0x000000: the effect of `opcode` = 0xffff is not known" in done.stderr
    assert "E [tosaic] " in done.stdout and "Starting the model execution" in done.stdout


@needs_board
def test_npu_that_never_answers(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "VirtualOptions", functools.partial(VirtualOptions, silent_npu=True))
    done = run_command("run", small, "--engine", "board")
    assert done.code == 2 and "the NPU did not end in time" in done.stderr


@needs_board
def test_missing_kernels(small: Path, tmp_path: Path) -> None:
    build = ("build", small, "--board", "corstone-300", "-o", tmp_path / "x.elf")
    done = run_command(*build, "--select-ops", "aten::add.out")
    assert done.code == 2 and "the list of operators lacks `quantized_decomposed::" in done.stderr
    done = run_command(*build, env={"EXECUTORCH_SELECT_OPS_LIST": "aten::add.out"})
    assert done.code == 2 and "the list of operators lacks" in done.stderr
    assert not (tmp_path / "x.elf").exists()


def test_without_the_extra(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def fail(name: str, package: str | None = None) -> Any:
        if name.startswith("unicorn"):
            raise ModuleNotFoundError(f"No module named '{name}'")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ToolFailed, match="needs the package `unicorn`") as caught:
        cpu.import_unicorn()
    assert caught.value.fix == "pip install 'tosaic[board]'"
    monkeypatch.setattr("tosaic.board.toolchain.importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    done = run_command("run", small, "--engine", "board")
    assert done.code == 3 and "pip install 'tosaic[board]'" in done.stderr


@needs_board
def test_runners_that_are_not_there(firmware: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    done = run_command("run", firmware, "--runner", "qemu")
    assert done.code == 3 and "there is no program `qemu-system-arm`" in done.stderr and "apt install" in done.stderr
    done = run_command("run", firmware, "--runner", "fvp")
    assert done.code == 3 and "there is no program `FVP_Corstone_SSE-300_Ethos-U55`" in done.stderr
    done = run_command("run", firmware, "--runner", "board")
    assert done.code == 2 and "unknown runner `board`" in done.stderr
    with pytest.raises(ToolFailed, match="cannot run on Corstone-320 in QEMU") as caught:
        qemu.run_qemu(find_board("corstone-320"), b"", "ethos-u85-256")
    assert caught.value.why == "QEMU has no model of Corstone-320"


#: Stands for Arm's FVP: checks its arguments, does what a firmware does, and ends at EOT.
STAND_IN = """#!{python}
import sys
from pathlib import Path
assert sys.argv[0].endswith("FVP_Corstone_SSE-300_Ethos-U55"), sys.argv
words = sys.argv[1:]
settings = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "-C")
assert words.count("-C") == len(settings) == 10, words
assert settings["ethosu.num_macs"] == "128"
assert settings["mps3_board.visualisation.disable-visualisation"] == "1"
assert settings["mps3_board.telnetterminal0.start_telnet"] == "0"
assert settings["mps3_board.uart0.out_file"] == "-" and settings["mps3_board.uart0.shutdown_on_eot"] == "1"
assert settings["cpu0.semihosting-enable"] == "1" and settings["cpu0.semihosting-cwd"] == "."
assert settings["cpu0.semihosting-cmd_line"] == "firmware -i input-0.bin -o output"
assert words[words.index("--timelimit") + 1] == "120"
assert Path(words[words.index("-a") + 1]).read_bytes()[:4] == b"\\x7fELF"
assert len(Path("input-0.bin").read_bytes()) == 4 * 3 * 64
Path("output-0.bin").write_bytes(bytes(4 * 4 * 36))
print("Test_result: PASS\\r\\n\\x04rest")
"""


@needs_board
def test_arguments_of_the_fvp(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "FVP_Corstone_SSE-300_Ethos-U55"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = run_command("run", small, "--engine", "board", "--runner", "fvp")
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("Test_result: PASS\nI [tosaic] Ran on Corstone-300 with ethos-u55-128, runner fvp")
    assert "not measured" not in done.stdout
    for text, code, message in (
        ("raise SystemExit('license expired')", 3, "the FVP did not run the firmware to its end"),
        ("print('E [tosaic] the run: broken\\x04')", 2, "why: the run: broken"),
        ("print('Test_result: FAIL\\x04')", 1, ""),
    ):
        program.write_text(f"#!{sys.executable}\n{text}")
        done = run_command("run", small, "--engine", "board", "--runner", "fvp")
        assert done.code == code and message in done.stderr


def test_fvp_of_corstone_320() -> None:
    """The flags that Arm's tutorial has, in its order; then those of the connection to the host."""
    board = find_board("corstone-320")
    arguments = fvp.make_arguments(board, "ethos-u85-256", "a.elf", "firmware -o output", 120.0)
    assert arguments[:13] == [
        "FVP_Corstone_SSE-320_Ethos-U85",
        *("-C", "mps4_board.subsystem.ethosu.num_macs=256"),
        *("-C", "mps4_board.visualisation.disable-visualisation=1"),
        *("-C", "vis_hdlcd.disable_visualisation=1"),
        *("-C", "mps4_board.telnetterminal0.start_telnet=0"),
        *("-C", "mps4_board.uart0.out_file=-"),
        *("-C", "mps4_board.uart0.shutdown_on_eot=1"),
    ]
    assert arguments[-4:] == ["-a", "a.elf", "--timelimit", "120"]
    with pytest.raises(ToolFailed, match="there is no FVP of Mine"):
        fvp.name_program(dataclasses.replace(board, title="Mine", fvp=None), "ethos-u85-256")


def test_c_project_and_array(small: Path, tmp_path: Path) -> None:
    """Neither needs a compiler, and both are the same every time."""
    for folder in (tmp_path / "a", tmp_path / "b"):
        done = run_command("build", small, "--board", "corstone-300", "--c-project", folder)
        assert done.code == 0 and f"files to `{folder}`" in done.stdout, done.stderr
    first, second = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    assert first == second
    assert {"CMakeLists.txt", "main.c", "model_data.c", "model_data.h", "tosaic.h"} <= set(map(str, first))
    assert len(first[Path("main.c")].splitlines()) < 70
    done = run_command("build", small, "--board", "corstone-300", "--c-array", "-o", tmp_path / "c" / "x.c")
    assert done.code == 0, done.stderr
    for name in ("model_data.c", "model_data.h"):
        assert (tmp_path / "c" / name).read_bytes() == first[Path(name)]
    listed = [int(word, 16) for word in first[Path("model_data.c")].decode().partition("{")[2].split(",")[:-1]]
    assert bytes(listed) == small.read_bytes()
    header = first[Path("model_data.h")].decode()
    assert f"#define MODEL_SIZE {small.stat().st_size}u" in header and "/* quantized_decomposed::" in header
    done = run_command("build", small, "--board", "corstone-300", "--c-array", "--c-project", tmp_path)
    assert done.code == 2 and "exclude each other" in done.stderr


#: How CMake finds a cross compiler: zig by options, GNU's by the file in the project.
COMPILERS = {
    "zig": (
        f"-DCMAKE_C_COMPILER={sys.executable};-m;ziglang;cc",
        "-DCMAKE_C_FLAGS=-target thumb-freestanding-eabihf -mcpu=cortex_m33+fp_armv8d16sp -fno-sanitize=undefined "
        "-fno-builtin",
        *("-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_C_COMPILER_WORKS=1"),
    ),
    "gcc": ("-DCMAKE_TOOLCHAIN_FILE=arm-none-eabi.cmake",),
}


@needs_board
@pytest.mark.skipif(not shutil.which("cmake"), reason="CMake is not installed: install the package cmake")
@pytest.mark.parametrize("compiler", ["zig", pytest.param("gcc", marks=needs_cross_gcc)])
def test_c_project_is_built_by_cmake(tmp_path: Path, compiler: str) -> None:
    data = compile_small("ethos-u85-256").pte
    made = design(data, "corstone-320")
    for name, content in make_c_project(made).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    subprocess.run(["cmake", "-S", ".", "-B", "build", *COMPILERS[compiler]], check=True, cwd=tmp_path)
    subprocess.run(["cmake", "--build", "build"], check=True, cwd=tmp_path)
    elf = (tmp_path / "build" / "firmware.elf").read_bytes()
    ones = np.ones((1, 3, 8, 8), np.float32)
    (expected,) = engine.run(data, [ones], engine="npu").outputs
    log = run_firmware(made.board, elf, made.accelerator, [], BoardOptions()).log
    flat = np.asarray(expected).reshape(-1).tolist()
    assert [line for line in log.splitlines() if line.startswith("Output")] == [
        f"Output[0][{i}]: (float) {value:f}" for i, value in enumerate(flat)
    ]


def test_boards_that_are_described_wrongly(tmp_path: Path) -> None:
    good = (find_board("corstone-300").folder / "board.toml").read_text()
    assert find_board(str(find_board("corstone-300").folder)).title == "Corstone-300"
    for old, new, reason in (
        ("clock = 25_000_000", "", "field `clock`"),
        ("clock = 25_000_000", "clock = 'fast'", "which is not a number"),
        ("clock = 25_000_000", "clock = 25_000_000\ncolor = 1", "field `color`"),
        ('port = "axi0"', 'port = "axi7"', "not `axi0` or `axi1`"),
        ("base = 0x3100_0000", "base = 0x3100_0001", "multiples of 1024"),
        ("base = 0x3100_0000", "base = 0x3000_0000", "overlaps memory.dtcm"),
        ('"ethos-u55-32"', '"ethos-u55-33"', "there is no `ethos-u55-33`"),
        ("[uart]", "[uart", "cannot read the board"),
        ("bases = [0x4930_3000, 0x5930_3000]", "bases = []", "at least one item"),
        ("vectors = 0x1000_0000", "vectors = -1", "does not fit in 32 bits"),
    ):
        assert old in good
        (tmp_path / "board.toml").write_text(good.replace(old, new, 1))
        with pytest.raises(Invalid) as caught:
            find_board(str(tmp_path))
        assert reason in str(caught.value)
