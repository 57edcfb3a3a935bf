"""Reads the SPIR-V of a .vgf file as far as Tosaic has to look into it: the outputs of a graph that are constants."""

from __future__ import annotations

import struct

from tosaic.core.errors import Invalid

#: the words before the first instruction: magic number, version, generator, bound of ids, schema
_HEADER_WORDS = 5
_CONSTANT, _CONSTANT_NULL, _GRAPH_SET_OUTPUT = 43, 46, 4185


def find_zero_outputs(code: bytes) -> tuple[int, ...]:
    """Return the indices of the graph outputs that are set to a null constant, in ascending order."""
    words = struct.unpack_from(f"<{len(code) // 4}I", code)
    numbers: dict[int, int] = {}
    nulls: set[int] = set()
    found: set[int] = set()
    at = _HEADER_WORDS
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        if length == 0 or at + length > len(words):
            raise Invalid(f"the SPIR-V code is damaged: an instruction of {length} words at word {at} of {len(words)}")
        operands = words[at + 1 : at + length]
        if opcode == _CONSTANT and len(operands) == 3:
            numbers[operands[1]] = operands[2]
        elif opcode == _CONSTANT_NULL and len(operands) == 2:
            nulls.add(operands[1])
            numbers[operands[1]] = 0
        elif opcode == _GRAPH_SET_OUTPUT and len(operands) == 2 and operands[0] in nulls and operands[1] in numbers:
            found.add(numbers[operands[1]])
        at += length
    return tuple(sorted(found))
