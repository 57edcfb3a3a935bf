"""Board profiles: those that come with Tosaic are complete, and those of users are checked."""

from pathlib import Path

import pytest

from tosaic.board import profile
from tosaic.core.errors import Invalid
from tosaic.core.targets import ACCELERATORS

GOOD = 'title = "Mine"\naccelerators = ["ethos-u55-128"]\nsram = 524288\n'


@pytest.mark.parametrize("name", profile.list_profiles())
def test_profiles_have_sources(name: str) -> None:
    found = profile.find_profile(name)
    assert found.sram > 100_000 and set(found.accelerators) <= set(ACCELERATORS)
    assert found.sources and all(source.startswith("https://") for source in found.sources)


def test_names() -> None:
    assert {"corstone-300", "corstone-320", "himax-we2", "imx-93"} <= set(profile.list_profiles())
    assert profile.find_profile("imx-93").cpu_tensors == "dram"
    with pytest.raises(Invalid, match="unknown board `himax`") as error:
        profile.find_profile("himax")
    assert "`himax-we2`" in error.value.fix


def test_a_profile_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + 'flash = 1_048_576\nsystem_config = "Ethos_U55_Deep_Embedded"\n')
    found = profile.find_profile(str(path))
    assert (found.name, found.title, found.sram, found.flash, found.dram) == ("mine", "Mine", 524288, 1 << 20, None)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("sram = 1\n", "title"),
        (GOOD + "flsh = 1\n", "flsh"),
        (GOOD.replace("524288", "-1"), "sram"),
        (GOOD.replace("524288", "true"), "sram"),
        (GOOD.replace("524288", "1e6"), "sram"),
        (GOOD.replace("524288", "1152921504606846976"), "sram"),
        (GOOD.replace("u55-128", "u99-1"), "accelerators"),
        (GOOD.replace('["ethos-u55-128"]', "[]"), "accelerators"),
        (GOOD.replace('["ethos-u55-128"]', '"ethos-u55-128"'), "accelerators"),
        (GOOD.replace('["ethos-u55-128"]', "[[1]]"), "accelerators"),
        (GOOD.replace('"Mine"', '"\\u001b[31m"'), "title"),
        (GOOD + f'unconfirmed = "{"x" * 1000}"\n', "unconfirmed"),
        (GOOD + 'cpu_tensors = "flash"\n', "cpu_tensors"),
        (GOOD + 'system_config = "Ethos_U85_SYS_DRAM_Mid"\n', "system_config"),
        (GOOD + f"sources = {['x'] * 30}\n", "sources"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(Invalid, match=f"`{field}` of the board profile"):
        profile.find_profile(str(path))


@pytest.mark.parametrize("data", [b"\xff\xfe", b"title = ", b"a = " + b"[" * 3000, b"#" * (1 << 17)])
def test_files_that_are_no_profile(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    with pytest.raises(Invalid):
        profile.find_profile(str(path))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no file") as caught:
        profile.find_profile(str(tmp_path / "board.toml"))
    assert caught.value.fix == "check the path"
    (tmp_path / "boards.toml").touch()
    with pytest.raises(Invalid, match="there is no file") as caught:
        profile.find_profile(str(tmp_path / "board.toml"))
    assert caught.value.fix == f"did you mean `{tmp_path / 'boards.toml'}`?"
