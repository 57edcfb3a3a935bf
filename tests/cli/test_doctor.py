"""`tosaic doctor`: what each target needs, what is missing, and `--fix vgf`, which installs it."""

import functools
import importlib.metadata
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from support.cli import Command
from tosaic import doctor
from tosaic.cli.doctor import show_health
from tosaic.core.errors import ToolFailed
from tosaic.engines import vulkan, vulkan_env, vulkan_setup
from tosaic.engines.vulkan import Probe

MISSING = Probe(ok=False, reason="there is no Vulkan driver", fix="tosaic doctor --fix vgf")
USABLE = Probe(ok=True, driver="emulated")


class Machine:
    """A machine without Vulkan until the packages are installed; it notes the commands that would be run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, root: bool, apt: bool = True) -> None:
        self.commands: list[list[str]] = []
        self.failures: list[str] = []
        self.installed = False
        self.versions = {"ai-ml-sdk-model-converter": "0.9.0", "ai-ml-emulation-layer-for-vulkan": "0.9.0"}
        real = importlib.metadata.version
        monkeypatch.setattr(importlib.metadata, "version", lambda name: self.versions.get(name) or real(name))
        # Kept, as the real answer is: whoever installs something has to ask again.
        monkeypatch.setattr(vulkan, "probe", functools.cache(self.probe))
        monkeypatch.setattr(vulkan_setup, "execute", self.execute)
        monkeypatch.setattr(vulkan_env, "find", self.find)
        monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if apt else None)

    def probe(self) -> Probe:
        return USABLE if self.installed else MISSING

    def find(self) -> Any:
        raise vulkan_env.NoVulkan("the loader is missing", "")

    def execute(self, command: list[str], folder: Path | None = None) -> str:
        self.commands.append(list(command))
        line = " ".join(command)
        if any(failure in line for failure in self.failures):
            self.failures = [f for f in self.failures if f not in line]
            raise ToolFailed(f"`{line}` failed", why="E: Unable to locate package")
        if command[:2] == ["apt-get", "install"] or command[0] == "dpkg-deb":
            self.installed = True
        if command[0] == "apt-cache":
            return "libvulkan1\n  Depends: libc6\nlibc6\nlibx:i386\n<virtual>\nmesa-vulkan-drivers\n"
        if command[0] == "dpkg-query":
            return "installed libc6\nconfig-files libvulkan1\n"
        if "download" in command:
            assert folder is not None
            (folder / "libvulkan1.deb").touch()
        return ""


def test_every_target_has_its_checks(tosaic: Command) -> None:
    found = tosaic("doctor", "--json").json
    assert set(found["targets"]) == {"ethos-u", "vgf", "board", "tosa"}
    of_vgf = {check["name"]: check for check in found["checks"] if check["target"] == "vgf"}
    assert list(of_vgf)[-2:] == ["VGF compile", "Vulkan"]
    assert {"ai-ml-sdk-model-converter", "ai-ml-emulation-layer-for-vulkan"} < set(of_vgf)
    assert of_vgf["Vulkan"]["ok"] == found["targets"]["vgf"] == vulkan.probe().ok


def test_hidden_vulkan_costs_vgf_only(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "probe", lambda: MISSING)
    done = tosaic("doctor")
    assert done.code == 0, done.stdout
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    place = lines.index("optional Vulkan there is no Vulkan driver")
    assert lines[place + 1] == "fix: tosaic doctor --fix vgf"
    assert lines.index("for VGF") < place < lines.index("for TOSA")


def test_fix_installs_with_root(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, root=True)
    # The package lists of a fresh machine are empty.
    machine.failures = ["apt-get install"]
    done = tosaic("doctor", "--fix", "vgf", "--yes")
    assert done.code == 0, done.stdout + done.stderr
    assert [c[:2] for c in machine.commands] == [["apt-get", "install"], ["apt-get", "update"], ["apt-get", "install"]]
    assert machine.commands[-1][-2:] == ["libvulkan1", "mesa-vulkan-drivers"]
    assert "ok Vulkan runs: one operator, emulated" in " ".join(done.stdout.split())


def test_fix_unpacks_without_root(tosaic: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOSAIC_CACHE", str(tmp_path))
    machine = Machine(monkeypatch, root=False)
    done = tosaic("doctor", "--fix", "vgf", "--yes", "--json")
    assert done.code == 0, done.stdout + done.stderr
    assert done.json["ok"]
    assert not any("install" in command for command in machine.commands)
    download = next(command for command in machine.commands if "download" in command)
    assert download[download.index("download") + 1 :] == ["libvulkan1", "mesa-vulkan-drivers"]
    assert machine.commands[-1][-1] == str(tmp_path / "vulkan")


def test_fix_where_nothing_helps(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, root=True, apt=False)
    done = tosaic("doctor", "--fix", "vgf", "--yes")
    assert done.code == 3
    assert "apt-get, which installs the Vulkan driver, is missing" in done.stderr and "package manager" in done.stderr
    machine = Machine(monkeypatch, root=True)
    machine.failures = ["apt-get install", "apt-get update"]
    done = tosaic("doctor", "--fix", "vgf", "--yes")
    assert done.code == 3
    assert "`apt-get update` failed" in done.stderr and "E: Unable to locate package" in done.stderr


def test_fix_takes_missing_packages_from_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, root=True)
    machine.installed = True
    machine.versions["ai-ml-sdk-model-converter"] = "0.11.0"
    doctor.install("vgf", lambda text: None)
    assert machine.commands == [[sys.executable, "-m", "pip", "install", "ai-ml-sdk-model-converter==0.9.0"]]


def test_fix_shows_the_commands_and_asks(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, root=True)
    machine.versions["ai-ml-sdk-model-converter"] = "0.11.0"
    monkeypatch.setattr("tosaic.cli.doctor.has_terminal", lambda: True)
    asked: list[str] = []

    def answer(text: str, **_: object) -> bool:
        asked.append(text)
        return len(asked) > 1

    monkeypatch.setattr("typer.confirm", answer)
    done = tosaic("doctor", "--fix", "vgf")
    assert done.code == 3 and "nothing was installed" in done.stderr
    assert "-m pip install ai-ml-sdk-model-converter==0.9.0" in done.stderr
    assert "apt-get install -y --no-install-recommends libvulkan1 mesa-vulkan-drivers" in done.stderr
    assert machine.commands == []
    done = tosaic("doctor", "--fix", "vgf")
    assert len(asked) == 2
    assert [command[:4] for command in machine.commands] == [
        [sys.executable, "-m", "pip", "install"],
        ["apt-get", "install", "-y", "--no-install-recommends"],
    ]


def test_fix_without_a_terminal_needs_yes(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, root=False)
    done = tosaic("doctor", "--fix", "vgf")
    assert done.code == 2
    assert "dpkg-deb -x" in done.stderr and "fix: add `--yes`" in done.stderr
    assert machine.commands == []


def test_fix_has_nothing_to_ask_where_nothing_is_missing(tosaic: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, root=True)
    machine.installed = True
    done = tosaic("doctor", "--fix", "vgf")
    assert done.code == 0 and machine.commands == []
    assert "Vulkan is usable already" in done.stderr


@pytest.mark.parametrize(
    ("name", "extras", "wanted"),
    [
        ("board", "no-such-zig>=0.17,<0.18; extra == 'board'", "no-such-zig>=0.17,<0.18"),
        ("tests", "no-such-pytest>=8; extra == 'dev'", "no-such-pytest>=8"),
    ],
)
def test_fix_of_other_extras(
    name: str, extras: str, wanted: str, tosaic: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, root=True)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: [extras])
    done = tosaic("doctor", "--fix", name)
    assert done.code == 2 and f"-m pip install '{wanted}'" in done.stderr and "fix: add `--yes`" in done.stderr
    assert machine.commands == []
    doctor.install(name, lambda text: None)
    assert machine.commands == [[sys.executable, "-m", "pip", "install", wanted]]
    checks = list(doctor.examine_fix(name, doctor.Helpers(lambda: None, lambda _: None)))
    assert checks[0].fix == f"tosaic doctor --fix {name}" and not checks[0].ok
    if name == "tests":
        assert doctor.list_working(checks) == {"tests": False} and checks[-1].found == "lack no-such-pytest"


def test_checks_that_take_seconds_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("not here")

    for job in ("_run_vela", "_run_compile", "_run_board", "_run_reference"):
        monkeypatch.setattr(doctor, job, fail)
    monkeypatch.setattr(vulkan, "probe", lambda: MISSING)
    seen: list[str] = []
    for check in doctor.examine(doctor.Helpers(lambda: None, lambda name: seen.append(f"{name} ..."))):
        seen.append(check.name)
    slow = ["Vela", "Ethos-U compile", "VGF compile", "Vulkan", "virtual board", "TOSA reference model"]
    assert [seen[seen.index(f"{name} ...") + 1] for name in slow] == slow


def test_a_terminal_shows_the_check_that_runs(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def examine(helpers: doctor.Helpers) -> Any:
        helpers.announce("Vela")
        time.sleep(0.6)
        yield doctor.Check("Vela", ok=True, found="runs", target="ethos-u")

    monkeypatch.setattr(doctor, "examine", examine)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(typer.Exit):
        show_health()
    told = capsys.readouterr()
    assert "checking" in told.err and "Vela" in told.err and told.err.endswith(" \r")
    assert told.out.splitlines()[-1].split() == ["ok", "Vela", "runs"]


def test_what_cannot_be_fixed(tosaic: Command) -> None:
    assert tosaic("doctor", "--fix", "ethos-u").code == 2
