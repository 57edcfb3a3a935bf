"""The runner of native programs: where they run, what is captured, and how they may fail."""

import sys
from pathlib import Path

import pytest

from tosaic.core.errors import ToolFailed
from tosaic.tools.process import ToolTimedOut, run_tool

BOTH = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr); sys.exit(3)"


def make_command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_and_errors_are_captured_together_or_apart() -> None:
    done = run_tool("the tool", make_command(BOTH))
    assert (done.code, done.output, done.errors, done.signal) == (3, "out\nerr\n", "", "")
    done = run_tool("the tool", make_command(BOTH), keep_errors_apart=True)
    assert (done.code, done.output, done.errors) == (3, "out\n", "err\n")


def test_a_program_runs_in_a_folder_of_its_own(tmp_path: Path) -> None:
    tell = "import os; print(os.getcwd())"
    own = Path(run_tool("the tool", make_command(tell)).output.strip())
    assert own != Path.cwd() and not own.exists()
    assert Path(run_tool("the tool", make_command(tell), folder=tmp_path).output.strip()) == tmp_path


def test_a_program_reads_no_input_of_the_user() -> None:
    assert run_tool("the tool", make_command("import sys; print(repr(sys.stdin.read()))")).output == "''\n"


def test_an_environment_replaces_the_own_one() -> None:
    done = run_tool("the tool", make_command("import os; print(os.environ['MARK'])"), environment={"MARK": "7"})
    assert done.output == "7\n"


def test_a_crash_is_named() -> None:
    done = run_tool("the tool", make_command("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert done.signal == "SIGSEGV"


def test_time_is_limited_and_the_log_is_kept() -> None:
    with pytest.raises(ToolTimedOut, match=r"the tool was stopped: it did not end within 2 s") as caught:
        run_tool("the tool", make_command("import time; print('begun', flush=True); time.sleep(60)"), timeout=2.0)
    assert caught.value.log == "begun\n"
    assert "TOSAIC_TOOL_TIMEOUT" in caught.value.fix


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ToolFailed, match="the tool cannot be started"):
        run_tool("the tool", ["/no/such/program"])
