from __future__ import annotations

import pytest

from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification

parse = Specification.parse


@pytest.mark.parametrize(
    "text",
    [
        "TOSA-1.0+INT",
        "TOSA-1.0+FP",
        "TOSA-1.0+INT+int16+int4+u55",
        "TOSA-1.0+INT+int16+int4+cf",
        "TOSA-1.0+INT+FP+int16+int4",
        "TOSA-1.0+FP+bf16+fp8e4m3+fp8e5m2+fft+var+cf+8k",
        "TOSA-1.0+INT+doubleround+inexactround",
    ],
)
def test_canonical_text_is_kept(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


def test_order_does_not_matter() -> None:
    first, second = parse("TOSA-1.0+FP+INT+int4+int16"), parse("TOSA-1.0+8k+int16+INT+int4+FP")
    assert str(first) == "TOSA-1.0+INT+FP+int16+int4"
    assert first.profiles == ("INT", "FP") and first.extensions == ("int16", "int4")
    assert first != second and second.level_8k
    assert parse("TOSA-1.0+INT+FP+int16+int4") == first
    assert len({first, parse("TOSA-1.0+INT+FP+int16+int4")}) == 1


def test_a_specification_made_by_hand_is_canonical_too() -> None:
    made = Specification("1.0", ("FP", "INT"), ("cf", "int16"))
    assert made == parse("TOSA-1.0+INT+FP+int16+cf") and hash(made) == hash(parse("TOSA-1.0+INT+FP+int16+cf"))


def test_extensions_count_for_equality() -> None:
    plain, wide = parse("TOSA-1.0+INT"), parse("TOSA-1.0+INT+int16")
    assert plain != wide and len({plain, wide}) == 2
    assert wide.supports("int16") and wide.supports("INT") and not wide.supports("FP")
    assert not plain.supports("int16")


@pytest.mark.parametrize(("old", "new"), [("TOSA-0.80+BI", "TOSA-1.0+INT"), ("TOSA-0.80+MI+8k", "TOSA-1.0+FP")])
def test_version_080_is_gone(old: str, new: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(old)
    assert "0.80 is no longer supported" in caught.value.what and caught.value.fix == f"use {new}"


@pytest.mark.parametrize(
    "text", ["", "TOSA", "TOSA-1.0", "TOSA-2.0+INT", "TOSA-1.0+INT+int7", "TOSA-1.0+int16", "TOSA-1.0+INT+INT", "INT"]
)
def test_malformed_text_shows_the_accepted_form(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(text)
    assert "TOSA-1.0+INT" in caught.value.fix and "+8k" in caught.value.fix


@pytest.mark.parametrize("text", ["TOSA-1.0+INT+bf16", "TOSA-1.0+FP+int16", "TOSA-1.0+FP+u55"])
def test_an_extension_needs_its_profile(text: str) -> None:
    with pytest.raises(Invalid, match="which is missing"):
        parse(text)
