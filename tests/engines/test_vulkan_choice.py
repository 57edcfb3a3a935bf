"""The choice of a Vulkan driver, with drivers and devices that are made up."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tosaic.core.errors import Invalid
from tosaic.engines import vulkan_child, vulkan_device, vulkan_env, vulkan_setup
from tosaic.engines.engine import use_device
from tosaic.engines.vulkan_choice import choose_driver
from tosaic.engines.vulkan_device import Device
from tosaic.formats import pte

SOFTWARE = Device("llvmpipe", "CPU")
INTEGRATED = Device("Intel Iris", "integrated GPU")
DISCRETE = Device("NVIDIA H200", "discrete GPU")
OLD = Device("GeForce 210", "discrete GPU", "the device `GeForce 210` has Vulkan 1.0, and 1.3 is needed")


class Machine:
    """Drivers by the name of their manifest; None is a driver that crashes."""

    def __init__(self, folder: Path, **drivers: Device | None) -> None:
        self.drivers = {f"{name}_icd.json": device for name, device in drivers.items()}
        self.manifests = [folder / name for name in self.drivers]
        for path in self.manifests:
            path.write_text("{}")
        self.questions = 0

    def ask(self, environment: Mapping[str, str]) -> tuple[list[Device], str]:
        self.questions += 1
        found = [self.drivers[Path(path).name] for path in environment["VK_DRIVER_FILES"].split(os.pathsep)]
        return ([], "the driver crashed") if None in found else ([d for d in found if d is not None], "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in (vulkan_env.MODE_VARIABLE, vulkan_env.DEVICE_VARIABLE, "VK_ICD_FILENAMES", "VK_DRIVER_FILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(vulkan_env, "_loads", lambda name: True)
    monkeypatch.setattr(vulkan_env, "_find_layers", lambda: tmp_path)

    def make(**drivers: Device | None) -> Machine:
        made = Machine(tmp_path, **drivers)
        monkeypatch.setattr(vulkan_env, "_list_manifests", lambda: made.manifests)
        monkeypatch.setattr(vulkan_device, "ask", made.ask)
        return made

    return make


def choose(folder: Path) -> str:
    driver = choose_driver(vulkan_env.find(), folder).driver
    assert driver is not None
    return driver.name


def test_gpu_alone_needs_no_software_driver(machine, tmp_path: Path) -> None:
    made = machine(nvidia=DISCRETE)
    parts = vulkan_env.find()
    vulkan_env.require_emulation(parts)
    assert (choose(tmp_path), parts.has_software, made.questions) == ("nvidia_icd.json", False, 0)


def test_the_fastest_kind_is_chosen(machine, tmp_path: Path) -> None:
    machine(lvp=SOFTWARE, intel=INTEGRATED, nvidia=DISCRETE)
    assert choose(tmp_path) == "nvidia_icd.json"
    machine(lvp=SOFTWARE, intel=INTEGRATED)
    assert choose(tmp_path) == "intel_icd.json"


def test_devices_and_drivers_with_trouble_are_passed_over(machine, tmp_path: Path) -> None:
    machine(lvp=SOFTWARE, nouveau=OLD, intel=None)
    assert choose(tmp_path) == "lvp_icd.json"


def test_software_only_is_asked_once(machine, tmp_path: Path) -> None:
    made = machine(lvp=SOFTWARE, swiftshader=Device("SwiftShader", "CPU"))
    assert (choose(tmp_path), made.questions) == ("lvp_icd.json", 1)


def test_device_by_name(machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(lvp=SOFTWARE, intel=INTEGRATED, nvidia=DISCRETE)
    monkeypatch.setenv(vulkan_env.DEVICE_VARIABLE, "iris")
    assert choose(tmp_path) == "intel_icd.json"
    monkeypatch.setenv(vulkan_env.DEVICE_VARIABLE, "Mali")
    with pytest.raises(vulkan_env.NoVulkan) as caught:
        choose(tmp_path)
    assert caught.value.why == "there is no device `Mali`"
    assert caught.value.fix == "choose one of these: `llvmpipe`, `Intel Iris`, `NVIDIA H200`"


def test_worker_answers_with_the_reason(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that cannot prepare its environment still serves, and says why."""
    machine(lvp=SOFTWARE)
    monkeypatch.setenv(vulkan_env.DEVICE_VARIABLE, "Mali")
    for name, value in vulkan_child._prepare_or_explain().items():
        monkeypatch.setenv(name, value)
    body, parts = vulkan_child._make_handler()({}, [])
    assert body["missing"] and body["trouble"] == "there is no device `Mali`" and "`llvmpipe`" in body["fix"]
    assert parts == ()


def test_drivers_are_installed_only_where_none_is_chosen(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(nvidia=DISCRETE)
    assert vulkan_setup._needs_packages()
    monkeypatch.setenv("VK_ICD_FILENAMES", str(made.manifests[0]))
    assert not vulkan_setup._needs_packages()
    machine(lvp=SOFTWARE)
    monkeypatch.delenv("VK_ICD_FILENAMES")
    assert not vulkan_setup._needs_packages()


def test_device_of_a_program_for_the_npu_is_refused(add_pte: dict[str, bytes]) -> None:
    plan = pte.read(add_pte["inline"]).find("forward")
    for engine, why in (("auto", "the program has no VGF delegate"), ("npu", "engine is `npu`")):
        with pytest.raises(Invalid, match="the device `H200` is for engine vulkan") as caught:
            use_device(plan, engine, "H200")
        assert caught.value.why == why
    assert vulkan_env.DEVICE_VARIABLE not in os.environ


def test_device_of_a_vgf_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vulkan_env.DEVICE_VARIABLE, "")
    plan = pte.read(importlib.resources.files("tosaic.engines").joinpath("probe.pte").read_bytes()).find("forward")
    assert use_device(plan, "auto", "H200") == "vulkan"
    assert os.environ[vulkan_env.DEVICE_VARIABLE] == "H200"
