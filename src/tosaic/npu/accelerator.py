"""Differences between Ethos-U accelerators: cores, memories, block sizes and rates, one record each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tosaic.npu.registers import Family

#: Channels in a brick of the layout NHCWB16.
BRICK = 16
#: Kernels are cut into parts of at most this many rows and columns, less where they are dilated.
KERNEL_PART = 8
#: Input channels that the MACs process at once.
INPUT_GROUP = 8
#: Kernel operations that may be in flight: the next one starts when the oldest has ended.
MAX_KERNELS = 2
#: Bytes of internal RAM that hold look-up tables: the last bytes on U55 and U65, all of it on U85.
LUT_BYTES = 2048

#: Rows and columns of a microblock by its name in a U85 command stream.
_U85_MICROBLOCKS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"U1X1": (1, 1), "U1X2": (1, 2), "U1X4": (1, 4), "U2X2": (2, 2), "U2X4": (2, 4), "U4X4": (4, 4)}
)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Parameters of one accelerator.

    cores              number of cores that share the output channels of a convolution
    max_transfers      DMAs that may be in flight
    port_bytes         bytes that a memory port moves per cycle (one beat)
    ram_bytes          internal RAM of one core
    shares_table_ram   whether other data overwrites look-up tables, because they have no reserved RAM
    microblock         rows, columns and channels of output that the MACs of a U55 or U65 core compute at once; on U85
                       every operation selects its own
    accumulation_wait  cycles between dependent sums, in 32 bits and in wider accumulators
    output_cycles      cycles of the output stage per element. U55 and U65: 32-bit unary, 32-bit binary, product of 32
                       bits, other product or wide accumulator, plain sum, scaled sum, maximum, all else. U85: 8, 16 and
                       32 bits, then 32-bit input to fewer bits and to 32 bits.
    outstanding_words  words of 16 bytes that each read channel of a U85 may have in flight: DMA, elementwise input,
                       weights, fast weights, input, scales
    depthwise_padding  kernel elements that a U85 adds to every round of a depthwise stream, for 8- and 16-bit input
    """

    family: Family
    macs: int
    cores: int
    max_transfers: int
    port_bytes: int
    ram_bytes: int
    shares_table_ram: bool
    microblock: tuple[int, int, int] | None
    accumulation_wait: tuple[int, int]
    output_cycles: tuple[float, ...]
    outstanding_words: tuple[int, ...] = ()
    depthwise_padding: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """The name that Vela and `tosaic targets` use."""
        return make_name(self.family, self.macs)

    @property
    def parallel_microblocks(self) -> int:
        """Microblocks in flight at once: each U65 core has its own, the cores of a U85 share one."""
        return 1 if self.family.has_u85_units else self.cores

    @property
    def cores_per_microblock(self) -> int:
        return self.cores // self.parallel_microblocks

    def find_microblock(self, name: str) -> tuple[int, int, int]:
        """Return the rows, columns and channels of a U85's microblock by its name in a stream."""
        height, width = _U85_MICROBLOCKS[name]
        return height, width, self.macs // INPUT_GROUP // (height * width)


def make_name(family: Family, macs: int) -> str:
    """Return the name of an accelerator, whether or not it exists."""
    return f"ethos-{family.name.lower()}-{macs}"


def find_input_block(part_kernel: bool, bits: int) -> int:
    """Return how many input channels a block has on U55 and U65."""
    return 16 if part_kernel or bits == 16 else 32


def _make_u55(
    macs: int, microblock: tuple[int, int, int], ram: int, wait: tuple[int, int], output: tuple[float, ...]
) -> Accelerator:
    return Accelerator(
        Family.U55,
        macs,
        cores=1,
        max_transfers=1,
        port_bytes=8,
        ram_bytes=ram << 10,
        shares_table_ram=ram == 16,
        microblock=microblock,
        accumulation_wait=wait,
        output_cycles=output,
    )


def _make_u65(macs: int, output: tuple[float, ...]) -> Accelerator:
    return Accelerator(
        Family.U65,
        macs,
        cores=macs // 256,
        max_transfers=2,
        port_bytes=16,
        ram_bytes=48 << 10,
        shares_table_ram=False,
        microblock=(2, 2, 8),
        accumulation_wait=(2, 2),
        output_cycles=output,
    )


def _make_u85(
    macs: int,
    cores: int,
    output: tuple[float, ...],
    words: tuple[int, ...],
    padding: tuple[int, int],
    wait: tuple[int, int] = (2, 2),
) -> Accelerator:
    return Accelerator(
        Family.U85,
        macs,
        cores=cores,
        max_transfers=4,
        port_bytes=16,
        ram_bytes=LUT_BYTES,
        shares_table_ram=False,
        microblock=None,
        accumulation_wait=wait,
        output_cycles=output,
        outstanding_words=words,
        depthwise_padding=padding,
    )


_OUTPUT_256 = (0.625, 1.125, 0.5, 0.375, 0.5, 0.75, 0.125, 0.25)

#: All accelerators by name.
ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType(
    {
        accelerator.name: accelerator
        for accelerator in (
            _make_u55(32, (1, 1, 4), 16, (3, 7), (2.0, 3.0, 3.0, 3.0, 4.0, 6.0, 1.0, 2.0)),
            _make_u55(64, (1, 1, 8), 16, (2, 3), (1.0, 1.5, 1.5, 1.5, 2.0, 3.0, 0.5, 1.0)),
            _make_u55(128, (1, 2, 8), 24, (2, 3), (0.75, 1.25, 0.75, 0.75, 1.0, 1.5, 0.25, 0.5)),
            _make_u55(256, (2, 2, 8), 48, (2, 2), _OUTPUT_256),
            _make_u65(256, _OUTPUT_256),
            _make_u65(512, (0.3125, 0.5625, 0.25, 0.1875, 0.25, 0.375, 0.0625, 0.125)),
            _make_u85(128, 1, (0.5, 0.5, 0.5, 1.0, 1.0), (64, 64, 128, 128, 104, 16), (0, 2), wait=(2, 3)),
            _make_u85(256, 1, (0.25, 0.25, 0.25, 0.5, 0.5), (104, 104, 128, 128, 128, 16), (0, 2)),
            _make_u85(512, 2, (0.125, 0.125, 0.25, 0.25, 0.25), (128, 128, 256, 256, 128, 16), (2, 2)),
            _make_u85(1024, 4, (0.0625, 0.125, 0.25, 0.125, 0.25), (256, 256, 416, 208, 256, 16), (6, 6)),
            _make_u85(2048, 4, (0.03125, 0.0625, 0.125, 0.0625, 0.125), (256, 256, 512, 256, 256, 16), (6, 6)),
        )
    }
)
