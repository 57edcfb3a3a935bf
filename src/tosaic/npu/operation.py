"""The operations of a command stream as records, each with the register values at the time it was issued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from tosaic.npu.accelerator import Accelerator
from tosaic.npu.errors import Malformed, UnknownField
from tosaic.npu.registers import COMMANDS, Family, Field
from tosaic.npu.stream import Instruction, Stream, parse


class Kind(Enum):
    """Kinds of operations; the values are the names of their commands."""

    STOP = "OP_STOP"
    IRQ = "OP_IRQ"
    CONV = "OP_CONV"
    DEPTHWISE = "OP_DEPTHWISE"
    POOL = "OP_POOL"
    ELEMENTWISE = "OP_ELEMENTWISE"
    RESIZE = "OP_RESIZE"
    DMA = "OP_DMA_START"
    DMA_WAIT = "OP_DMA_WAIT"
    KERNEL_WAIT = "OP_KERNEL_WAIT"
    PMU_MASK = "OP_PMU_MASK"
    BRANCH = "OP_BRANCH"

    @property
    def is_kernel(self) -> bool:
        return self in _KERNELS


_KERNELS = frozenset({Kind.CONV, Kind.DEPTHWISE, Kind.POOL, Kind.ELEMENTWISE, Kind.RESIZE})


def _list_fields(family: Family) -> Iterator[tuple[tuple[str, str], Field]]:
    """Yield the fields of all commands by (command, field); the first field is also listed as "". SET is stripped."""
    for command in COMMANDS[family].values():
        name = command.name.removeprefix("SET_")
        yield from (((name, ""), field) for field in command.fields[:1])
        yield from (((name, field.name), field) for field in command.fields)


_FIELDS = tuple(MappingProxyType(dict(_list_fields(family))) for family in Family)
#: The commands that set a register, by opcode: its name, the bits that may be set, and the words of the command.
_SETTERS = tuple(
    MappingProxyType(
        {
            opcode: (command.name.removeprefix("SET_"), command.mask, 1 + command.has_payload)
            for opcode, command in COMMANDS[family].items()
            if command.name.startswith("SET_")
        }
    )
    for family in Family
)
_NO_SETTER = ("", 0, 0)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `registers` holds the parameter and payload of each register set before it, by register name."""

    accelerator: Accelerator
    offset: int
    kind: Kind
    raw: int
    registers: Mapping[str, int]

    @property
    def family(self) -> Family:
        return self.accelerator.family

    @property
    def macs(self) -> int:
        return self.accelerator.macs

    @property
    def mode(self) -> str:
        """The name of the mode of a pool, elementwise operation or resize."""
        return self._name(self.kind.value, "", self.raw)

    def argument(self, field: str) -> int:
        """Return a field of the operation's own command word."""
        return _FIELDS[self.family][self.kind.value, field].get(self.raw)

    def get(self, register: str, field: str = "") -> int:
        """Return the value of a register's field, or of its first field."""
        return _FIELDS[self.family][register, field].get(self._raw(register))

    def name(self, register: str, field: str = "") -> str:
        """Return the name of a field's value, without the field's name as prefix."""
        return self._name(register, field, self._raw(register))

    @property
    def is_part_kernel_first(self) -> bool:
        """Whether the weights are in the order of parts of the kernel, and not of input channels."""
        return self.kind is Kind.CONV and self.get("KERNEL_STRIDE", "weight_order") == 1

    def unknown(self, register: str, field: str = "", why: str = "") -> UnknownField:
        """Make the error for a value that is decoded but whose effect is not known."""
        value: int | str = self.get(register, field)
        label = f"{register}.{field}" if field else register
        return UnknownField(label, value, offset=self.offset, why=why)

    def _raw(self, register: str) -> int:
        raw = self.registers.get(register)
        if raw is None:
            raise UnknownField(register, "unset", offset=self.offset, why=f"no command before {self.kind.value} set it")
        return raw

    def _name(self, command: str, field: str, raw: int) -> str:
        found = _FIELDS[self.family][command, field]
        value = found.get(raw)
        name = found.names[value] if value < len(found.names) else ""
        if not name:
            raise UnknownField(f"{command}.{found.name}", value, offset=self.offset)
        return name


def decode(cmd_data: bytes) -> tuple[Op, ...]:
    """Return all operations in the order of their offsets. With branches, execution may see other register values."""
    return tuple(walk(cmd_data))


def walk(cmd_data: bytes | Stream) -> Iterator[Op]:
    """Yield operations like `decode`, one at a time: each holds a copy of all registers."""
    stream = cmd_data if isinstance(cmd_data, Stream) else parse(cmd_data)
    state, words, setters = State(stream), stream.words, _SETTERS[stream.accelerator.family]
    at, end = 0, len(words)
    while at < end:
        word = words[at]
        name, mask, size = setters.get(word & 0xFFFF, _NO_SETTER)
        if size and at + size <= end:
            raw = word >> 16 if size == 1 else word >> 16 | words[at + 1] << 16
            if not raw & ~mask:
                state.registers[name] = raw
                at += size
                continue
        # An operation; or a damaged command, for which this raises the error.
        instruction = stream.read(4 * at)
        op = state.take(instruction)
        if op is not None:
            yield op
        at += 1 + instruction.command.has_payload


class State:
    """The register values at one point of a stream."""

    def __init__(self, stream: Stream) -> None:
        self._accelerator = stream.accelerator
        self.registers: dict[str, int] = {}

    def take(self, instruction: Instruction) -> Op | None:
        """Set a register, or return the operation that the instruction starts."""
        command, raw = instruction.command, instruction.raw
        if raw & ~command.mask:
            raise UnknownField(f"{command.name} reserved bits", f"0x{raw & ~command.mask:x}", offset=instruction.offset)
        if command.name.startswith("SET_"):
            self.registers[command.name.removeprefix("SET_")] = raw
            return None
        registers = MappingProxyType(dict(self.registers))
        return Op(self._accelerator, instruction.offset, Kind(command.name), raw, registers)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, columns and channels of a feature map."""

    height: int
    width: int
    depth: int

    @property
    def size(self) -> int:
        return self.height * self.width * self.depth

    def __iter__(self) -> Iterator[int]:
        return iter((self.height, self.width, self.depth))


class Storage(Enum):
    """Location of a feature map: in memory, or in one of the buffers that chain operations of a U85."""

    TILES = "TILE2X2"
    CHAINED = "CHAINED"
    NONE = "NONE"


@dataclass(frozen=True, slots=True)
class Element:
    """The element type of a feature map or scalar."""

    bits: int
    signed: bool
    zero_point: int

    @property
    def dtype(self) -> str:
        return f"<{'i' if self.signed else 'u'}{self.bits // 8}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Memory layout of elements: up to four tiles, in `bricks` of 16 channels or channel by channel."""

    bases: tuple[int, int, int, int]
    width0: int
    height0: int
    height1: int
    stride_y: int
    stride_x: int
    stride_c: int
    bricks: bool


@dataclass(frozen=True, slots=True)
class FeatureMap(Element):
    """Location and format of a tensor; `name` is the register group: IFM, IFM2 or OFM.

    Only feature maps in tiles have a layout.
    """

    name: str
    offset: int
    region: int
    storage: Storage
    layout: Layout | None


def read_element(op: Op, name: str) -> Element:
    """Read the element type that the registers of a group describe."""
    signed = op.get(f"{name}_PRECISION", "activation_type") == 1
    bits = 8 << op.get(f"{name}_PRECISION", "activation_precision")
    if bits == 64 and not _holds_accumulators(op, name):
        raise op.unknown(f"{name}_PRECISION", "activation_precision", "64-bit feature maps are not supported")
    zero = op.get(f"{name}_ZERO_POINT")
    return Element(bits, signed, zero - (1 << 16) if signed and zero >> 15 else zero)


def _holds_accumulators(op: Op, name: str) -> bool:
    """Tell whether a feature map holds the accumulators of 48 bits that a RESIZE of 16 bits writes."""
    if name == "OFM":
        return op.kind is Kind.RESIZE
    return name == "IFM2" and op.family.has_u85_units and op.name("ACC_FORMAT", "acc_input") == "IFM2"


def read_map(op: Op, name: str) -> FeatureMap:
    """Read the feature map that the registers of a group describe."""
    element, storage = read_element(op, name), _read_storage(op, name)
    return FeatureMap(
        bits=element.bits,
        signed=element.signed,
        zero_point=element.zero_point,
        name=name,
        offset=op.offset,
        region=op.get(f"{name}_REGION"),
        storage=storage,
        layout=_read_layout(op, name) if storage is Storage.TILES else None,
    )


def _read_storage(op: Op, name: str) -> Storage:
    if not op.family.has_u85_units:
        return Storage.TILES
    storage = op.name(f"{name}_PRECISION", "activation_storage")
    if storage == "TILE3X1":
        raise op.unknown(f"{name}_PRECISION", "activation_storage", "a row of three tiles is not supported")
    return Storage(storage)


def _read_layout(op: Op, name: str) -> Layout:
    return Layout(
        bases=_read_bases(op, name),
        width0=op.get(f"{name}_WIDTH0_M1") + 1,
        height0=op.get(f"{name}_HEIGHT0_M1") + 1,
        height1=op.get(f"{name}_HEIGHT1_M1") + 1,
        stride_y=_read_stride(op, f"{name}_STRIDE_Y"),
        stride_x=_read_stride(op, f"{name}_STRIDE_X"),
        stride_c=_read_stride(op, f"{name}_STRIDE_C"),
        bricks=op.name(f"{name}_PRECISION", "activation_format") == "NHCWB16",
    )


def _read_bases(op: Op, name: str) -> tuple[int, int, int, int]:
    first, second, third, fourth = (op.get(f"{name}_BASE{tile}") for tile in range(4))
    return first, second, third, fourth


def _read_stride(op: Op, register: str) -> int:
    """Read a stride of 40 bits; a negative one reverses an output."""
    value = op.get(register)
    return value - (1 << 40) if value >> 39 else value


@dataclass(frozen=True, slots=True)
class Window:
    """The kernel of a window operation over its input, which is first upscaled (optionally) and padded."""

    height: int
    width: int
    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    top: int
    left: int
    bottom: int
    right: int
    upscale: str

    @property
    def taps_y(self) -> int:
        return (self.height - 1) // self.dilation_y + 1

    @property
    def taps_x(self) -> int:
        return (self.width - 1) // self.dilation_x + 1

    def span(self, ofm: Shape) -> tuple[int, int]:
        """Return the rows and columns of padded input that the output needs."""
        return (ofm.height - 1) * self.stride_y + self.height, (ofm.width - 1) * self.stride_x + self.width


def read_window(op: Op) -> Window:
    """Read the window that the kernel and padding registers describe."""
    stride = {name: op.get("KERNEL_STRIDE", name) for name in ("stride_x_lsb", "stride_x_msb", "stride_y_lsb")}
    stride_y_msb = op.get("KERNEL_STRIDE", "stride_y_msb")
    if op.get("KERNEL_STRIDE", "decomposition"):
        raise op.unknown("KERNEL_STRIDE", "decomposition", "kernels split into 4x4 parts are not supported")
    return Window(
        height=op.get("KERNEL_HEIGHT_M1") + 1,
        width=op.get("KERNEL_WIDTH_M1") + 1,
        stride_y=(stride["stride_y_lsb"] | stride_y_msb << 1) + 1,
        stride_x=(stride["stride_x_lsb"] | stride["stride_x_msb"] << 1) + 1,
        dilation_y=op.get("KERNEL_STRIDE", "dilation_y") + 1,
        dilation_x=op.get("KERNEL_STRIDE", "dilation_x") + 1,
        top=op.get("IFM_PAD_TOP"),
        left=op.get("IFM_PAD_LEFT"),
        bottom=op.get("IFM_PAD_BOTTOM"),
        right=op.get("IFM_PAD_RIGHT"),
        upscale=op.name("IFM_UPSCALE"),
    )


def read_ofm_shape(op: Op) -> Shape:
    """Read the output's shape, before any transposition."""
    return Shape(op.get("OFM_HEIGHT_M1") + 1, op.get("OFM_WIDTH_M1") + 1, op.get("OFM_DEPTH_M1") + 1)


def input_extent(op: Op, window: Window, ofm: Shape) -> tuple[int, int]:
    """Return the rows and columns of input that a window operation reads, before padding and after upscaling."""
    rows, columns = window.span(ofm)
    height, width = rows - window.top - window.bottom, columns - window.left - window.right
    if height < 1 or width < 1:
        raise Malformed("the padding leaves no input", offset=op.offset, why=f"it has {height}x{width}")
    return height, width
