"""The targets and how they are found."""

import pytest

from tosaic.core.errors import Invalid
from tosaic.core.targets import ACCELERATORS, find

SIZES = {"u55": (32, 64, 128, 256), "u65": (256, 512), "u85": (128, 256, 512, 1024, 2048)}
NAMES = tuple(f"ethos-{family}-{macs}" for family, sizes in SIZES.items() for macs in sizes)


def test_there_are_eleven_accelerators() -> None:
    assert tuple(ACCELERATORS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_accelerator_knows_its_family_and_macs(name: str) -> None:
    target = find(name)
    assert target.name == name
    assert name == f"ethos-{target.family}-{target.macs}"
    assert target.is_npu


@pytest.mark.parametrize(
    ("name", "spec", "system", "memory"),
    [
        ("ethos-u55-128", "TOSA-1.0+INT+int16+int4+u55", "Ethos_U55_High_End_Embedded", "Shared_Sram"),
        ("ethos-u65-512", "TOSA-1.0+INT+int16+int4+u55", "Ethos_U65_High_End", "Dedicated_Sram_384KB"),
        ("ethos-u85-256", "TOSA-1.0+INT+int16+int4+cf", "Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
    ],
)
def test_defaults_by_family(name: str, spec: str, system: str, memory: str) -> None:
    target = find(name)
    assert (target.tosa_spec, target.system_config, target.memory_mode) == (spec, system, memory)


def test_case_of_an_accelerator_does_not_matter() -> None:
    assert find("Ethos-U55-128") is find("ethos-u55-128")


@pytest.mark.parametrize("text", ["TOSA-1.0+INT", "TOSA-1.0+FP", "TOSA-1.0+INT+FP+int16+cf", "TOSA-1.0+FP+bf16+8k"])
def test_tosa_target(text: str) -> None:
    target = find(text)
    assert (target.name, target.family, target.macs, target.tosa_spec) == (text, "tosa", 0, text)
    assert (target.system_config, target.memory_mode) == ("", "")
    assert not target.is_npu


@pytest.mark.parametrize(("old", "new"), [("TOSA-0.80+BI", "TOSA-1.0+INT"), ("TOSA-0.80+MI", "TOSA-1.0+FP")])
def test_old_tosa_names_the_new_one(old: str, new: str) -> None:
    with pytest.raises(Invalid, match=r"0\.80 is no longer supported") as caught:
        find(old)
    assert new in caught.value.fix


@pytest.mark.parametrize("text", ["TOSA-1.0", "TOSA-1.0+BI", "TOSA-2.0+INT", "TOSA", "tosa-1.0+int"])
def test_malformed_tosa_is_invalid(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        find(text)
    assert text in caught.value.what


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ethos-u55-127", "ethos-u55-128"),
        ("u55-128", "ethos-u55-128"),
        ("ethos-u85-4096", "ethos-u85-"),
        ("ethosu65-256", "ethos-u65-256"),
    ],
)
def test_unknown_accelerator_names_near_ones(name: str, near: str) -> None:
    with pytest.raises(Invalid, match="unknown target") as caught:
        find(name)
    assert near in caught.value.fix


@pytest.mark.parametrize("name", ["", "cortex-m55", "gpu"])
def test_far_off_name_lists_all(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        find(name)
    assert "`ethos-u55-32`" in caught.value.fix and "TOSA-1.0+INT" in caught.value.fix
