"""The SPIR-V of graphs: outputs that are constants, and damaged code."""

from __future__ import annotations

import struct

import pytest

from tosaic.core.errors import Invalid
from tosaic.formats.spirv import find_zero_outputs

HEADER = (0x07230203, 0x10500, 0, 99, 0)


def assemble(*instructions: tuple[int, ...]) -> bytes:
    """Encode instructions, each an opcode with its operands."""
    words = [w for opcode, *operands in instructions for w in ((len(operands) + 1) << 16 | opcode, *operands)]
    return struct.pack(f"<{5 + len(words)}I", *HEADER, *words)


def test_finds_the_outputs_that_are_null() -> None:
    code = assemble(
        (43, 1, 10, 0),  # OpConstant: id 10 is 0
        (43, 1, 11, 1),
        (43, 1, 12, 2),
        (46, 2, 20),  # OpConstantNull: id 20
        (4184, 2, 21, 10),  # OpGraphInputARM: id 21
        (4185, 20, 12),  # OpGraphSetOutputARM: output 2
        (4185, 21, 11),
        (4185, 20, 10),
    )
    assert find_zero_outputs(code) == (0, 2)


def test_an_index_may_be_null_itself() -> None:
    assert find_zero_outputs(assemble((46, 2, 20), (46, 1, 10), (4185, 20, 10))) == (0,)


@pytest.mark.parametrize("word", [0, 9 << 16 | 43])
def test_damaged_code_is_refused(word: int) -> None:
    with pytest.raises(Invalid, match="SPIR-V"):
        find_zero_outputs(assemble() + struct.pack("<I", word))
