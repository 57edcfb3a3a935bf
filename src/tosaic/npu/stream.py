"""Parses cmd_data into commands: the driver's container, the instruction words, and their text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tosaic.npu.accelerator import ACCELERATORS, Accelerator, make_name
from tosaic.npu.errors import Malformed, UnknownField
from tosaic.npu.registers import COMMANDS, Command, Family

_CONFIG, _COMMAND_STREAM, _NOP = 1, 2, 5
#: Vela's own limit for a command stream, plus some room for the container.
MAX_BYTES = (16 << 20) + 1024
#: Words before the command stream in the second container format, and the marker of its description.
_ENTRY_WORDS, _METADATA = 15, int.from_bytes(b"VEUM", "little")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One command of a stream. `raw` holds the 16-bit parameter and, above it, the payload word."""

    offset: int
    command: Command
    raw: int

    def get(self, field: str) -> int:
        return next(f for f in self.command.fields if f.name == field).get(self.raw)


@dataclass(frozen=True, slots=True)
class Stream:
    """A command stream and the accelerator that it was compiled for."""

    accelerator: Accelerator
    words: memoryview

    def read(self, offset: int) -> Instruction:
        """Return the command at a byte offset."""
        at, rest = divmod(offset, 4)
        if rest or not 0 <= at < len(self.words):
            raise Malformed("there is no command", offset=offset, why=f"the stream has {4 * len(self.words)} bytes")
        word = self.words[at]
        command = COMMANDS[self.accelerator.family].get(word & 0xFFFF)
        if command is None:
            raise UnknownField("opcode", f"0x{word & 0xFFFF:04x}", offset=offset)
        if not command.has_payload:
            return Instruction(offset, command, word >> 16)
        if at + 1 == len(self.words):
            raise Malformed(f"{command.name} has no payload word", offset=offset, why="the stream ends")
        return Instruction(offset, command, word >> 16 | self.words[at + 1] << 16)

    def __iter__(self) -> Iterator[Instruction]:
        """Iterate over all commands in the order of their offsets, not of execution where there are branches."""
        offset = 0
        while offset < 4 * len(self.words):
            instruction = self.read(offset)
            yield instruction
            offset += 8 if instruction.command.has_payload else 4


def parse(cmd_data: bytes) -> Stream:
    """Parse the container: the accelerator it names, and the command words."""
    if len(cmd_data) > MAX_BYTES or len(cmd_data) % 4:
        raise Malformed("the command stream has a bad size", why=f"it is {len(cmd_data)} bytes long")
    words = memoryview(cmd_data).cast("I")
    if cmd_data[:4] == b"COP1":
        return _parse_actions(words)
    if cmd_data[:4] == b"COP2":
        return _parse_entry(words)
    raise Malformed("this is not an Ethos-U command stream", why=f"it begins with {cmd_data[:4]!r}, not with `COP1`")


def _parse_actions(words: memoryview) -> Stream:
    """Parse the first format: a list of actions for the driver, of which the command stream is the last."""
    accelerator: Accelerator | None = None
    at = 1
    while at < len(words):
        tag = words[at]
        action = tag & 0xFF
        if action == _CONFIG and at + 1 < len(words):
            accelerator = _read_accelerator(words[at + 1])
            at += 3
        elif action == _NOP:
            at += 1
        elif action == _COMMAND_STREAM:
            count = tag >> 16 | (tag >> 8 & 0xFF) << 16
            if accelerator is None:
                raise Malformed("the container does not name its accelerator")
            if at + 1 + count != len(words):
                raise Malformed(f"the container declares {count} words", why=f"it holds {len(words) - at - 1}")
            return Stream(accelerator, words[at + 1 :])
        else:
            raise UnknownField("driver action", action, why=f"at byte {4 * at} of the container")
    raise Malformed("the container has no command stream")


def _parse_entry(words: memoryview) -> Stream:
    """Parse the second format: one entry, which begins with data about the command stream that follows."""
    if len(words) < _ENTRY_WORDS:
        raise Malformed("the container is too short", why=f"it is {4 * len(words)} bytes long")
    version, length, kind, size, described = words[1], words[2] | words[3] << 32, words[4], words[5], words[6]
    if (version, kind, words[7], words[8]) != (1, 1, _METADATA, 1):
        raise UnknownField("container version", f"{version}, {kind}, 0x{words[7]:08x}, {words[8]}")
    if length != 4 * len(words) - 16 or size != 4 * len(words) - 24:
        raise Malformed("the container's sizes are wrong", why=f"{length} and {size} in {4 * len(words)} bytes")
    start, rest = divmod(28 + described, 4)
    if rest:
        raise Malformed("the container's command stream is not aligned", why=f"it begins at byte {28 + described}")
    return Stream(_read_accelerator(words[10]), words[start:])


def _read_accelerator(word: int) -> Accelerator:
    number, macs = word >> 28, 1 << (word & 0xF)
    found = ACCELERATORS.get(make_name(Family(number), macs)) if number in tuple(Family) else None
    if found is None:
        raise UnknownField("accelerator configuration", f"0x{word:08x}")
    return found


def disassemble(cmd_data: bytes) -> str:
    """Return the commands as text, one per line, in the layout of Vela's own listing."""
    return "".join(f"{describe(instruction)}\n" for instruction in parse(cmd_data))


def describe(instruction: Instruction) -> str:
    """Format one line of a listing: offset, payload, parameter, opcode, name, fields."""
    command, raw = instruction.command, instruction.raw
    payload = f"{raw >> 16:08x}" if command.has_payload else " " * 8
    words = f"{payload} {raw & 0xFFFF:04x} {command.opcode:04x}"
    parts = [f"0x{instruction.offset:06x}: {words} - {'NPU_' + command.name:<30} {raw & 0xFFFF:5d}"]
    for field in command.fields:
        value = field.get(raw)
        if field.names:
            name = field.names[value] if value < len(field.names) else ""
            text = f"{field.group}_{name}" if name else "****"
        else:
            text = f"0x{value:x}" if field.address else str(value)
        parts.append(f"{field.name} = {text}")
    return ", ".join(parts)
