"""Every command line of ExecuTorch's Arm pages: docs/moving.md has a row for it, and a test here runs that row."""

from __future__ import annotations

import importlib.util
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.boards import needs_board
from support.cli import run_command
from support.firmware_models import compile_small
from support.pages import ROOT
from support.scripts import FOLDER, Machine, read_rows, run_here, run_in_shell
from tosaic.board.build import build
from tosaic.cli.script_tree import SCRIPTS, make_tree
from tosaic.cli.scripts import write_scripts
from tosaic.formats import blob
from tosaic.formats.pte import read
from tosaic.scripts import aot_arm_compiler, test_arm_baremetal
from tosaic.scripts import run as run_script

TARGET = "ethos-u55-128"
RUNNER = "cmake-out/arm_executor_runner"

LIBRARIES = ("executorch/backends/arm/scripts/build_executorch.sh", "./backends/arm/scripts/build_executorch.sh")
BUILD = "executorch/backends/arm/scripts/build_executor_runner.sh --pte=mv2_arm_ethos_u55.pte --target=ethos-u55-128"
RUN = (
    "executorch/backends/arm/scripts/run_fvp.sh "
    "--elf=executorch/mv2_arm_ethos_u55/cmake-out/arm_executor_runner --target=ethos-u55-128"
)
#: What each of these installs, in order.
SETUP = {
    "examples/arm/setup.sh": ["board"],
    "examples/arm/setup.sh --i-agree-to-the-contained-eula": ["board"],
    "./examples/arm/setup.sh --i-agree-to-the-contained-eula": ["board"],
    "./examples/arm/setup.sh --disable-ethos-u-deps --enable-mlsdk-deps": ["vgf"],
    "./examples/arm/setup.sh --i-agree-to-the-contained-eula --enable-mlsdk-deps": ["board", "vgf"],
    "examples/arm/setup.sh --setup-test-dependency": ["tests"],
    "./backends/arm/test/setup_testing.sh": ["tests", "board"],
    "./backends/arm/test/setup_testing_vkml.sh": ["tests", "vgf"],
}
INSTALL = ("./install_executorch.sh", "./install_executorch.sh --editable")
PATH = "source examples/arm/ethos-u-scratch/setup_path.sh"
PLATFORM = {"uname -s": platform.system(), "uname -m": platform.machine()}
#: The file of each, and the operators that it leaves on the CPU.
COMPILE = {
    'python3 -m examples.arm.aot_arm_compiler --model_name="softmax"': ("softmax.pte", {"aten::_softmax"}),
    'python3 -m examples.arm.aot_arm_compiler --model_name="add" --delegate': ("add_arm_delegate.pte", set[str]()),
    'python3 -m examples.arm.aot_arm_compiler --model_name="mv2" --delegate --quantize '
    '--so_library="$(find cmake-out-aot-lib -name libquantized_ops_aot_lib.so)"': (
        "mv2_arm_delegate.pte",
        {"quantized_decomposed::quantize_per_tensor", "quantized_decomposed::dequantize_per_tensor"},
    ),
}
CMAKE = (
    "cmake -DCMAKE_BUILD_TYPE=Release ... -DEXECUTORCH_BUILD_KERNELS_QUANTIZED_AOT=ON ... -Bcmake-out-aot-lib` and "
    "`cmake --build cmake-out-aot-lib --parallel -- quantized_ops_aot_lib"
)
RUN_MODEL = "examples/arm/run.sh --model_name=mv2 --target=ethos-u85-128"
RUN_KERNELS = "examples/arm/run.sh --model_name=add --portable_kernels=aten::add.out"
FIND = 'elf=$(find examples/arm/executor_runner/ -name "arm_executor_runner")'
FVP = (
    'FVP_Corstone_SSE-320_Ethos-U85 -C mps4_board.subsystem.ethosu.num_macs=${num_macs} ... -a "${elf}" --timelimit 120'
)
ONE_TEST = (
    "python -m unittest backends.arm.test.ops.test_add.TestSimpleAdd -k test_add2_tosa_BI",
    "pytest -v backends/arm/test/ops/test_add.py -k test_add_tensor_tosa_INT_3",
)
MANY_TESTS = (
    "python -m unittest backends.arm.test.ops.test_add.TestSimpleAdd",
    "python -m unittest discover -s backends/arm/test/ops/",
    "pytest -v -n auto backends/arm/test/",
)
#: What pytest gets, and what must be installed first.
WORKFLOW = {
    "test_arm_baremetal.sh test_pytest": ("-n auto --ignore=tests/board tests", ["tests"]),
    "test_arm_baremetal.sh test_pytest_ethosu_fvp": ("-n auto tests", ["tests", "board"]),
    "test_arm_baremetal.sh test_full_ethosu_fvp": ("tests/board/test_zoo.py", ["tests", "board"]),
    "test_arm_baremetal.sh test_pytest_vkml": ("-n auto -k 'vgf or vulkan' tests", ["tests", "vgf"]),
    "test_arm_baremetal.sh test_full_vkml": (
        "tests/vgf/test_models.py tests/vgf/test_efficientnet.py",
        ["tests", "vgf"],
    ),
}
WORKFLOW_RUN = "test_arm_baremetal.sh test_run_ethosu_fvp"
HOOK = "cp backends/arm/scripts/pre-commit .git/hooks/"

#: All of them, which the pages have.
LINES = (
    *(*LIBRARIES, BUILD, RUN, *SETUP, *INSTALL, PATH, *PLATFORM, *COMPILE, CMAKE, RUN_MODEL, RUN_KERNELS, FIND, FVP),
    *(*ONE_TEST, *MANY_TESTS, *WORKFLOW, WORKFLOW_RUN, HOOK),
)
ROWS = read_rows()
#: One quick test. Without this folder: a name with these words would run itself again.
ONE = "-n 0 --ignore=tests/seeds -k '[add-tosa_INT-0]'"


@pytest.fixture(scope="module")
def above(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `executorch` in it, where `tosaic scripts` has written the scripts."""
    folder = tmp_path_factory.mktemp("above with space")
    write_scripts(folder / FOLDER)
    return folder


@pytest.fixture(scope="module")
def root(above: Path) -> Path:
    return above / FOLDER


def test_table_has_every_line() -> None:
    assert sorted(ROWS) == sorted(LINES)


@needs_board
def test_libraries(above: Path) -> None:
    for line, folder in zip(LIBRARIES, (above, above / FOLDER), strict=True):
        done = run_in_shell(ROWS[line], folder)
        assert done.returncode == 0, done.stderr
        built = above / FOLDER / "arm_test" / "cmake-out" / "lib"
        names = ["libexecutorch", "libexecutorch_delegate_ethos_u", "libportable_kernels", "libportable_ops_lib"]
        assert sorted(path.name for path in built.iterdir()) == [f"{name}.a" for name in names]
        assert all(path.read_bytes()[:8] == b"!<arch>\n" for path in built.iterdir())


@needs_board
def test_selected_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECUTORCH_SELECT_OPS_LIST", "aten::add.out")
    assert run_here(LIBRARIES[0], tmp_path) == 0
    table = (tmp_path / "arm_test/cmake-out/lib/libportable_ops_lib.a").read_bytes()
    assert b"aten::add.out" in table and b"quantize" not in table


@needs_board
def test_build_and_run(above: Path) -> None:
    """As on the page, with a smaller model in the file."""
    pte = compile_small(TARGET).pte["segment"]
    (above / "mv2_arm_ethos_u55.pte").write_bytes(pte)
    done = run_in_shell(ROWS[BUILD], above)
    assert done.returncode == 0, done.stderr
    elf = above / FOLDER / "mv2_arm_ethos_u55" / RUNNER
    assert f"+ tosaic build mv2_arm_ethos_u55.pte --board corstone-300 -o '{elf}'\n" in done.stderr
    assert elf.read_bytes() == build(pte, "corstone-300").elf
    done = run_in_shell(ROWS[RUN], above)
    assert done.returncode == 0, done.stderr
    assert f"+ tosaic run {FOLDER}/mv2_arm_ethos_u55/{RUNNER} --engine board --board corstone-300" in done.stderr
    assert "Model executed successfully." in done.stdout and "Output[0][143]:" in done.stdout
    assert "runner virtual" in done.stdout


@pytest.mark.parametrize("line", SETUP)
def test_setup(line: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(monkeypatch)
    assert run_here(ROWS[line], root) == 2
    assert "fix: add `--yes`" in capsys.readouterr().err and machine.installed == []
    assert run_here(f"{ROWS[line]} --yes", root) == 0
    assert machine.installed == machine.checked == SETUP[line]
    shown = capsys.readouterr().err
    assert [name for name in SETUP[line] if f"pip install {name}\n" not in shown] == []
    complete = Machine(monkeypatch, complete=True)
    assert run_here(ROWS[line], root) == 0
    assert complete.installed == [] and complete.checked == SETUP[line]


@pytest.mark.parametrize("line", INSTALL)
def test_install(line: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(monkeypatch)
    assert run_here(ROWS[line], root) == 0
    assert machine.checked == ["ethos-u"] and machine.installed == []
    assert (f"installed from `{ROOT}`" in capsys.readouterr().err) == ("--editable" in line)


def test_path(root: Path) -> None:
    names = " ".join(Path(path).name for path in SCRIPTS if path != "install_executorch.sh")
    done = run_in_shell(f"{ROWS[PATH]} && command -v {names} && echo root=$root", root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*(f"{root}/{p}" for p in SCRIPTS if "/" in p), "root="]


@pytest.mark.parametrize("line", PLATFORM)
def test_platform(line: str, root: Path) -> None:
    assert run_in_shell(ROWS[line], root).stdout == f"{PLATFORM[line]}\n"


@pytest.mark.parametrize("line", [pytest.param(x, marks=() if '"add"' in x else pytest.mark.slow) for x in COMPILE])
def test_compile(line: str, root: Path) -> None:
    done = run_in_shell(ROWS[line], root)
    name, operators = COMPILE[line]
    assert (done.returncode, done.stdout) == (0, f"PTE file saved as {name}\n"), done.stderr
    plan = read((root / name).read_bytes()).plans[0]
    assert {operator.name for operator in plan.operators} == operators
    assert [delegate.id for delegate in plan.delegates] == (["EthosUBackend"] if "--delegate" in line else [])


def test_no_library_is_built(tmp_path: Path) -> None:
    """Instead of the library that CMake would build: a model is quantized without one."""
    assert ROWS[CMAKE] == "nothing"
    pte = tmp_path / "model.pte"
    arguments = ["--model_name=ds_cnn", "--delegate", "--quantize", "--so_library=", f"--output={pte}"]
    assert aot_arm_compiler.main(arguments) == 0
    assert len(read(pte.read_bytes()).plans[0].operators) == 2


def test_every_option_of_the_compiler_script_is_listed_and_taken(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.find_spec("executorch")
    assert spec is not None
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    source = (folder / "backends/arm/scripts/aot_arm_compiler.py").read_text()
    options = set(re.findall(r'^ +"(--[a-z_]+)",', source, re.MULTILINE)) | set(
        re.findall(r'ument\("(--[a-z_]+)"', source)
    )
    assert {"--model_name", "--direct_drive"} <= options
    with pytest.raises(SystemExit):
        aot_arm_compiler.parse(["--help"])
    text, table = capsys.readouterr().out, (ROOT / "docs/moving.md").read_text()
    assert not {option for option in options if not re.search(f"{option}\\W", text) or f"`{option}" not in table}


def test_direct_drive(tmp_path: Path) -> None:
    """It sets two flags of Vela; a name ending in .bpte asks for the samples too."""
    line = ["-m", "ds_cnn", "-d", "-q", "-t", "ethos-u85-256", "--direct_drive", "-o", str(tmp_path / "x.bpte")]
    assert aot_arm_compiler.main(line) == 0
    assert blob.unpack(read((tmp_path / "x.pte").read_bytes()).find().delegates[0].blob).cmd_data[:4] == b"COP2"
    assert (tmp_path / "x.bpte").is_file()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-m ds_cnn -d", "fix: add `--quantize`"),
        ("-m add --calibration_data x.npz", "`--calibration_data` needs `--quantize`"),
        ("-m add -t cortex-m55", "`cortex-m55` is not an NPU"),
        ("-m add -d -t vgf --direct_drive", "is for an Ethos-U"),
    ],
)
def test_what_the_compiler_script_refuses(line: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert aot_arm_compiler.main(line.split()) == 2
    assert why in capsys.readouterr().err


@needs_board
def test_run(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As on the page, with a smaller model; then its ELF file in the FVP, for which a program stands in."""
    assert run_here(ROWS[RUN_KERNELS], root) == 0
    shown = capfd.readouterr()
    assert " --select-ops aten::add.out\n" in shown.err and "CPU kernels   aten::add.out" in shown.out
    assert run_here(ROWS[RUN_MODEL].replace("mv2", "add"), root) == 0
    shown = capfd.readouterr()
    assert "Ran on Corstone-320 with ethos-u85-128" in shown.out and "Output[0][4]: (int) 2\n" in shown.out
    check_fvp(root)


@needs_board
@pytest.mark.slow
def test_run_mobilenet(root: Path) -> None:
    done = run_in_shell(ROWS[RUN_MODEL], root)
    assert done.returncode == 0, done.stderr
    assert "Output[0][999]:" in done.stdout and "Program complete, exiting." in done.stdout


#: The FVP: prints its arguments and the end of a log.
STAND_IN = """#!{python}
import sys
from pathlib import Path
Path("output-0.bin").write_bytes(bytes(20))
print(*sys.argv[1:], sep="\\n")
print("\\x04")
"""
#: The arguments on the page, in this order.
ARGUMENTS = [
    *("-C", "mps4_board.subsystem.ethosu.num_macs=128"),
    *("-C", "mps4_board.visualisation.disable-visualisation=1"),
    *("-C", "vis_hdlcd.disable_visualisation=1"),
    *("-C", "mps4_board.telnetterminal0.start_telnet=0"),
    *("-C", "mps4_board.uart0.out_file=-"),
    *("-C", "mps4_board.uart0.shutdown_on_eot=1"),
    *("-a", "firmware.elf"),
    *("--timelimit", "120"),
]


def check_fvp(root: Path) -> None:
    folder = root / "fvp"
    folder.mkdir()
    program = folder / "FVP_Corstone_SSE-320_Ethos-U85"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    done = run_in_shell(f'{ROWS[FIND]} && PATH="$PWD/fvp:$PATH" && {ROWS[FVP]}', root)
    assert done.returncode == 0, done.stderr
    assert "runner fvp" in done.stdout
    given = done.stdout.partition("\nI [")[0].splitlines()
    assert [word for word in given if word in ARGUMENTS and word != "-C"] == [w for w in ARGUMENTS if w != "-C"]
    rest = [word for word in given if word not in ARGUMENTS]
    assert all(".semihosting-" in word for word in rest), rest


@pytest.mark.slow
@pytest.mark.parametrize("line", [*ONE_TEST, *MANY_TESTS])
def test_tests(line: str) -> None:
    """The wide ones run one of their tests."""
    narrow = "" if line in ONE_TEST else f" {ONE}"
    done = run_in_shell(f"{ROWS[line]}{narrow}", ROOT)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b1 passed", done.stdout), done.stdout


@pytest.mark.parametrize("line", WORKFLOW)
def test_workflow(line: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commands: list[Sequence[str]] = []
    codes = iter((0, 1, 3, 4, 5))

    def note(command: Sequence[str], *, cwd: Path, check: bool) -> subprocess.CompletedProcess[bytes]:
        assert cwd == ROOT and not check
        commands.append(command)
        return subprocess.CompletedProcess(command, next(codes))

    machine = Machine(monkeypatch, complete=True)
    monkeypatch.setattr(test_arm_baremetal.subprocess, "run", note)
    words, needed = WORKFLOW[line]
    assert [run_here(f"{ROWS[line]} -m 'not slow'", root) for _ in range(5)] == [0, 1, 3, 2, 2]
    assert commands[0] == [sys.executable, "-m", "pytest", *shlex.split(words), "-m", "not slow"]
    assert all((ROOT / word).exists() for word in shlex.split(words) if word.startswith("tests"))
    assert machine.checked[: len(needed)] == needed
    assert f"-m pytest {words} " in capsys.readouterr().err


@needs_board
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "narrow"),
    [
        ("test_arm_baremetal.sh test_pytest", ONE),
        ("test_arm_baremetal.sh test_pytest_vkml", "-n 0 --ignore=tests/seeds -k test_reader"),
        ("test_arm_baremetal.sh test_pytest_ethosu_fvp", "-n 0 --ignore=tests/seeds -k test_zoo[add-"),
        ("test_arm_baremetal.sh test_full_ethosu_fvp", "-k test_zoo[add-"),
        ("test_arm_baremetal.sh test_full_vkml", "--collect-only"),
    ],
    ids=["pytest", "pytest_vkml", "pytest_ethosu_fvp", "full_ethosu_fvp", "full_vkml"],
)
def test_workflow_for_real(line: str, narrow: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, complete=True)
    assert run_here(f"{ROWS[line]} {narrow}", root) == 0


@needs_board
def test_workflow_runs_models(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One model instead of three."""
    monkeypatch.setattr(run_script, "TUTORIAL", {"add": "--delegate"})
    assert run_here(f"{ROWS[WORKFLOW_RUN]} --root={shlex.quote(str(tmp_path))}", root) == 0
    ran = [line for line in capfd.readouterr().out.splitlines() if "Ran on" in line]
    assert [line.split(" with ")[1] for line in ran] == [
        "ethos-u55-128, runner virtual",
        "ethos-u85-256, runner virtual",
    ]


@needs_board
@pytest.mark.slow
def test_workflow_runs_the_tutorial(root: Path) -> None:
    """The three models of the tutorial, on both boards."""
    done = run_in_shell(f"{ROWS[PATH]} && {ROWS[WORKFLOW_RUN]}", root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Model executed successfully.") == 6
    assert done.stdout.count("Output[0][3]: (float) 0.500000\n") == 2


def test_hook(root: Path, tmp_path: Path) -> None:
    """A commit is refused if a check fails."""
    config = "repos: [{repo: local, hooks: [{id: x, name: x, entry: %s, language: system, always_run: true}]}]"
    (tmp_path / "backends").symlink_to(root / "backends")
    identity = "-c user.name=me -c user.email=me@example.com"
    for entry, code in (("'true'", 0), ("'false'", 1)):
        (tmp_path / ".pre-commit-config.yaml").write_text(config % entry)
        line = f"git init -q . && {ROWS[HOOK]} && git add .pre-commit-config.yaml && git {identity} commit -qm one"
        done = run_in_shell(line, tmp_path, PRE_COMMIT_HOME=str(tmp_path / "cache"))
        assert done.returncode == code, done.stderr
        assert "x.........." in done.stdout + done.stderr


@pytest.mark.parametrize("path", SCRIPTS)
def test_scripts_start(path: str, above: Path) -> None:
    """From any folder; a wrong option is an error with a fix, and exit code 2."""
    done = run_in_shell(f"{FOLDER}/{path} --help", above)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: {SCRIPTS[path][0]} "), done.stderr
    done = run_in_shell(f"{FOLDER}/{path} --no-such-option", above)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {SCRIPTS[path][0]}: "), done.stderr
    assert "fix: `--help` lists the options" in done.stderr and "Traceback" not in done.stderr


def test_scripts_of_others_stay(tmp_path: Path) -> None:
    there = tmp_path / "examples" / "arm" / "run.sh"
    there.parent.mkdir(parents=True)
    there.write_text("#!/bin/bash\n")
    done = run_command("scripts", tmp_path)
    assert done.code == 2 and f"`{there}` is not a script of Tosaic" in done.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["run.sh"]
    there.unlink()
    for _ in range(2):
        done = run_command("scripts", tmp_path)
        assert (done.code, done.stdout) == (0, f"wrote 13 scripts to `{tmp_path}`\n")


def test_another_python(root: Path) -> None:
    done = run_in_shell("examples/arm/setup.sh 'a b'", root, PYTHON="/bin/echo")
    assert done.stdout == "-m tosaic.scripts.setup a b\n"
    assert make_tree("it's/python")["examples/arm/setup.sh"].decode().splitlines()[2] == """python='it'"'"'s/python'"""


@needs_board
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("build_executor_runner.sh --pte=no.pte", "no.pte"),
        ("build_executor_runner.sh --pte={pte} --target=ethos-u85-256", "is for `ethos-u55-128`, not for"),
        ("build_executor_runner.sh --pte={pte} --target=u55", "unknown target `u55`"),
        ("build_executor_runner.sh --pte={pte} --portable_kernels=aten::nothing.out", "aten::nothing.out"),
        ("build_executor_runner.sh --pte={pte} --toolchain=cc", "unknown toolchain `cc`"),
        ("build_executorch.sh --portable_kernels=aten::nothing.out", "no kernel for `aten::nothing.out`"),
        ("run_fvp.sh --elf={pte}", "is not an ELF file"),
        ("run_fvp.sh --elf={pte} --runner=board", "--runner"),
        ("run.sh --model_name=no_such_model", "no_such_model"),
        ("build_executor_runner.sh --pte={pte} --target=vgf", "not for `vgf`"),
        ("run.sh --aot_arm_compiler_flags=--turbo --model_name=add", "--turbo"),
        ("setup.sh --disable-ethos-u-deps", "nothing is left to set up"),
        ("test_arm_baremetal.sh test_all", "test_all"),
        ("executor_runner --model_path=no.pte", "no.pte"),
    ],
)
def test_what_is_wrong(line: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pte = tmp_path / "small.pte"
    pte.write_bytes(compile_small(TARGET).pte["segment"])
    assert run_here(line.format(pte=pte), tmp_path) == 2
    shown = capfd.readouterr().err
    assert why in shown and "error: " in shown
    assert list(tmp_path.rglob("arm_executor_runner")) == []


def test_tests_are_in_the_sources(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tosaic.__file__", "/usr/lib/python3/site-packages/tosaic/__init__.py")
    for line in ("test_arm_baremetal.sh test_pytest", INSTALL[1]):
        assert run_here(line, root) == 2
        assert "fix: clone its repository" in capsys.readouterr().err
