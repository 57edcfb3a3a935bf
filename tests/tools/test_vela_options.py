"""What is checked before Vela runs: flags, sections of the ini, memory modes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.targets import ACCELERATORS, find
from tosaic.tools.vela import VelaOptions, check_options, default_options, list_sections, normalize_flags, version
from tosaic.tools.vela_options import FLAGS, build_arguments, read_ini

U55 = default_options(find("ethos-u55-128"))


def _with_flags(*flags: str) -> VelaOptions:
    return VelaOptions(U55.accelerator, U55.system_config, U55.memory_mode, extra_flags=flags)


def _with_ini(path: Path, text: str, memory_mode: str = "M", system_config: str = "S") -> VelaOptions:
    path.write_text(text, encoding="utf-8")
    return VelaOptions("ethos-u85-256", system_config, memory_mode, str(path))


def _read_help() -> dict[str, str]:
    """Every flag of the installed Vela with its help text."""
    done = subprocess.run([sys.executable, "-m", "ethosu.vela", "--help"], capture_output=True, text=True, check=True)
    parts = re.split(r"^  (?:-h, )?(--[\w-]+)", done.stdout.partition("options:")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_table_of_flags_is_that_of_the_installed_vela() -> None:
    assert sorted(FLAGS) == sorted(_read_help())


def test_flags_that_vela_calls_deprecated_are_dropped_or_still_work() -> None:
    for flag, text in _read_help().items():
        if "[DEPRECATED]" in text and not flag.startswith("--disable-") and flag != "--api-version":
            value = "=1" if re.match(r" [A-Z{]", text) else ""
            with pytest.warns(UserWarning, match=flag):
                assert normalize_flags(f"{flag}{value}") == ()


def test_version_is_the_installed_one() -> None:
    assert version() == "5.2.0"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ("--optimise=Size --arena-cache-size 4096", ("--optimise=Size", "--arena-cache-size=4096")),
        (["--optimise", "Size"], ("--optimise=Size",)),
        (["--arena-cache-size 4096", ""], ("--arena-cache-size=4096",)),
        (["--system-config=My Board"], ("--system-config=My Board",)),
        ("--system-config='My Board'", ("--system-config=My Board",)),
        ("--verbose-all --verbose-all", ("--verbose-all",)),
        ("--optimise=Size --optimise=Performance", ("--optimise=Performance",)),
        ("--optim=Size", ("--optimise=Size",)),
        (("--disable-chaining",), ("--disable-chaining",)),
    ],
)
def test_flags_are_brought_into_one_form(flags: str | list[str] | None, expected: tuple[str, ...]) -> None:
    assert normalize_flags(flags) == expected
    assert normalize_flags(expected) == expected


def test_obsolete_flags_are_dropped_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="--debug-force-regor"):
        assert normalize_flags("--output-format=raw --debug-force-regor") == ("--output-format=raw",)
    with pytest.warns(UserWarning, match="--max-block-dependency"):
        assert normalize_flags("--max-block-dependency 2 --verbose-all") == ("--verbose-all",)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--output-dir=/tmp/x", "--output-dir.*cannot be used"),
        ("--help", "--help.*cannot be used"),
        ("--optimize=Size", "no flag `--optimize`"),
        ("--verbose", "no flag `--verbose`"),
        ("-v", "no flag `-v`"),
        ("model.tosa", "`model.tosa` is not a Vela flag"),
        ("--arena-cache-size", "needs a value"),
        ("--arena-cache-size --verbose-all", "needs a value"),
        ("--verbose-all=1", "takes no value"),
        ("--optimise='Size", "cannot be split"),
    ],
)
def test_flags_that_cannot_work_are_invalid(flags: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        normalize_flags(flags)


def test_unknown_flag_names_near_ones() -> None:
    with pytest.raises(Invalid) as caught:
        normalize_flags("--optimize=Size")
    assert "`--optimise`" in caught.value.fix


def test_arguments_name_each_flag_once() -> None:
    repeated = (
        "--output-format=raw",
        "--accelerator-config=ethos-u55-128",
        "--enable-debug-db",
        "--config=Arm/vela.ini",
    )
    options = _with_flags(*repeated, "--optimise=Size")
    check_options(options)
    arguments = build_arguments(options, "vela.ini")
    assert len({argument.partition("=")[0] for argument in arguments}) == len(arguments)
    assert "--config=vela.ini" in arguments and "--optimise=Size" in arguments


@pytest.mark.parametrize(
    "flag",
    ["--output-format=tflite", "--accelerator-config=ethos-u55-256", "--memory-mode=Sram_Only", "--config=other.ini"],
)
def test_flag_that_contradicts_an_option_is_invalid(flag: str) -> None:
    with pytest.raises(Invalid, match="contradicts"):
        check_options(_with_flags(flag))


def test_sections_of_the_bundled_ini() -> None:
    systems, modes = list_sections("Arm/vela.ini")
    assert {target.system_config for target in ACCELERATORS.values()} <= set(systems)
    assert modes[:3] == ("Sram_Only", "Shared_Sram", "Dedicated_Sram")


@pytest.mark.parametrize("name", ACCELERATORS)
def test_defaults_of_every_accelerator_are_good(name: str) -> None:
    check_options(default_options(find(name)))


def test_unknown_sections_are_invalid_and_list_the_present_ones() -> None:
    with pytest.raises(Invalid, match="no system configuration `Ethos_U55_High_End`") as caught:
        check_options(VelaOptions("ethos-u55-128", "Ethos_U55_High_End", "Shared_Sram"))
    assert "`Ethos_U55_High_End_Embedded`" in caught.value.fix
    assert all(f"`{name}`" in caught.value.why for name in list_sections("Arm/vela.ini")[0])
    with pytest.raises(Invalid, match="no memory mode `Shared`") as caught:
        check_options(VelaOptions("ethos-u55-128", "Ethos_U55_High_End_Embedded", "Shared"))
    assert "`Shared_Sram`" in caught.value.why


def test_target_must_be_an_accelerator() -> None:
    with pytest.raises(Invalid, match="unknown target"):
        check_options(VelaOptions("ethos-u55-1", "Ethos_U55_High_End_Embedded", "Shared_Sram"))
    with pytest.raises(Invalid, match="not an accelerator"):
        check_options(VelaOptions("TOSA-1.0+INT", "Ethos_U55_High_End_Embedded", "Shared_Sram"))


@pytest.mark.parametrize(
    "mode", ["Dedicated_Sram", "Dedicated_Sram_256KB", "Dedicated_Sram_384KB", "Dedicated_Sram_512KB"]
)
def test_dedicated_sram_is_refused_on_u55(mode: str) -> None:
    with pytest.raises(Invalid, match=f"`{mode}` cannot be used on `ethos-u55-128`") as caught:
        check_options(VelaOptions("ethos-u55-128", "Ethos_U55_High_End_Embedded", mode))
    assert "can only read" in caught.value.why
    assert "`Shared_Sram`" in caught.value.fix


def test_arena_in_flash_is_refused() -> None:
    with pytest.raises(Invalid, match="does not fit") as caught:
        check_options(VelaOptions("ethos-u85-256", "Ethos_U85_SYS_Flash_High", "Dedicated_Sram_384KB"))
    assert "OffChipFlash" in caught.value.why
    check_options(VelaOptions("ethos-u85-256", "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no section", "not a usable"),
        ("[a]\nx=1\n[a]\n", "not a usable"),
        ("[Memory_Mode.M]\n[System_Config.S]\naxi1_port=Dram\n", ""),
        ("[Memory_Mode.M]\ninherit=Memory_Mode.N\n[System_Config.S]\n", "inherits from .*N.*does not exist"),
        ("[Memory_Mode.M]\ninherit=Memory_Mode.M\n[System_Config.S]\n", "inherits from itself"),
        ("[Memory_Mode.M]\narena_mem_area=%(x)s\n[System_Config.S]\n", "not a usable"),
        ("[System_Config.S]\n", "no memory mode `M`"),
        ("", "no system configuration `S`"),
    ],
)
def test_broken_ini_is_invalid(tmp_path: Path, text: str, message: str) -> None:
    options = _with_ini(tmp_path / "x.ini", text)
    if message:
        with pytest.raises(Invalid, match=message):
            check_options(options)
    else:
        check_options(options)


def test_ini_that_is_no_text_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "x.ini"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Invalid, match="not a usable"):
        list_sections(str(path))
    path.write_bytes(b";" * ((1 << 20) + 1))
    with pytest.raises(Invalid, match="larger than"):
        list_sections(str(path))


@pytest.mark.parametrize("name", ["missing.ini", "", "Arm", "a\0b"])
def test_ini_that_cannot_be_read_is_invalid(name: str) -> None:
    with pytest.raises(Invalid, match="cannot read") as caught:
        list_sections(name)
    assert "Arm/vela.ini" in caught.value.fix


def test_ini_in_a_folder_below_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "mine.ini").write_text("[Memory_Mode.M]\n[System_Config.S]\n")
    assert list_sections("boards/mine.ini") == (("S",), ("M",))


def test_section_name_that_would_leave_the_folder_is_invalid(tmp_path: Path) -> None:
    text = "[Memory_Mode.M]\n[System_Config.../../S]\n"
    with pytest.raises(Invalid, match="no system configuration"):
        check_options(_with_ini(tmp_path / "x.ini", text, system_config="../../S"))


def test_missing_vela_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    with pytest.raises(ToolFailed, match="not installed") as caught:
        read_ini("Arm/vela.ini")
    assert caught.value.fix == "pip install ethos-u-vela"


def test_hints_name_what_exists() -> None:
    with pytest.raises(Invalid) as caught:
        check_options(_with_flags("--optimize=Size"))
    assert caught.value.fix == "did you mean `--optimise`?"
    with pytest.raises(Invalid) as caught:
        check_options(_with_flags("--accelerator-config=ethos-u55-64"))
    assert "contradicts `target`, which is `ethos-u55-128`" in caught.value.what
