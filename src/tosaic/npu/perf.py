"""Estimates cycles and memory traffic from a command stream and the system's configuration alone.

Two streams for the same accelerator are measured by one rule, whichever compiler produced them. The estimate assumes
that the memories serve only the NPU and takes commands in the order of their offsets (a loop counts once). It has not
been compared with silicon.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import tee, zip_longest
from operator import itemgetter
from typing import Any

from tosaic.core.heap import collect_garbage_after
from tosaic.npu.accelerator import BRICK, KERNEL_PART, MAX_KERNELS, Accelerator
from tosaic.npu.cycles import Work, count_mac_cycles, count_output_cycles, read_work
from tosaic.npu.dma import read_transfer
from tosaic.npu.memory import INTERNAL
from tosaic.npu.operation import FeatureMap, Kind, Op, Shape, read_map, walk
from tosaic.npu.stream import Stream, parse
from tosaic.npu.system import MemoryPort, System, read_system
from tosaic.tools.vela_options import VelaOptions

#: Memory channels; the read channels are in the order of `Accelerator.outstanding_words`.
_DMA, _STREAM, _WEIGHTS, _FAST_WEIGHTS, _INPUT, _SCALES, _WRITES = range(7)
_BURST_BITS = 512
#: Fraction of a memory's throughput left when several channels use it.
_USABLE = 0.8
#: Upper bound for the memory of one row of an estimate, in bytes.
ROW_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that an operation moves to or from a memory, including repeated fetches by its blocks."""

    read: int = 0
    written: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.written + other.written)


@dataclass(frozen=True, slots=True)
class Row:
    """One operation. `bottleneck` is `mac`, `output`, `command`, `dma`, or the name of a memory.

    `start` is the cycle of the stream in which it begins.
    """

    offset: int
    kind: str
    mode: str
    cycles: int
    mac_cycles: int
    output_cycles: int
    memory_cycles: Mapping[str, int]
    bottleneck: str
    macs: int
    utilization: float
    traffic: Mapping[str, Traffic]
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + self.cycles

    @property
    def name(self) -> str:
        return f"{self.kind} {self.mode}".strip()


#: all but the offset, which is the first, and the start, which is the last
_ROW_FIELDS = tuple(one.name for one in fields(Row))[1:-1]
_CYCLES = _ROW_FIELDS.index("cycles")


@dataclass(frozen=True, slots=True)
class Estimate:
    """The whole stream. `cycles` overlaps DMAs and kernel operations as the wait commands allow."""

    accelerator: str
    clock: float
    rows: tuple[Row, ...]
    cycles: int
    macs: int
    utilization: float
    traffic: Mapping[str, Traffic]

    @property
    def seconds(self) -> float:
        return self.cycles / self.clock


def count_operations(cmd_data: bytes) -> int:
    """Count the commands that start an operation: the most rows that an estimate may have."""
    return sum(not instruction.command.name.startswith("SET_") for instruction in parse(cmd_data))


@collect_garbage_after()
def estimate(cmd_data: bytes | Stream, options: VelaOptions | System) -> Estimate:
    """Estimate cycles per operation and in total, with the bottleneck of each."""
    system = read_system(options) if isinstance(options, VelaOptions) else options
    stream = cmd_data if isinstance(cmd_data, Stream) else parse(cmd_data)
    accelerator = stream.accelerator
    timeline = Timeline()
    rows: list[Row] = []
    costs = _Costs(system)
    ahead, ops = tee(walk(stream))
    next(ahead, None)
    for op, after in zip_longest(ops, ahead):
        if op.kind.is_kernel:
            cost = costs.measure(op, overlaps=_overlaps(after))
            rows.append(Row(op.offset, *cost, start=timeline.start_kernel(cost[_CYCLES])))
        elif op.kind is Kind.DMA:
            row = _measure_dma(op, system)
            rows.append(replace(row, start=timeline.start_transfer(row.cycles, op.accelerator)))
        elif op.kind is Kind.KERNEL_WAIT:
            timeline.wait(timeline.kernels, op.argument("n"))
        elif op.kind is Kind.DMA_WAIT:
            timeline.wait(timeline.transfers, op.argument("k"))
    macs, cycles = sum(row.macs for row in rows), timeline.end()
    utilization = macs / (cycles * accelerator.macs) if cycles else 0.0
    return Estimate(accelerator.name, system.clock, tuple(rows), cycles, macs, utilization, _add_traffic(rows))


class _Costs:
    """The rows of kernel operations. Networks repeat an operation at other addresses, where it costs the same."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._known: dict[object, tuple[Any, ...]] = {}
        self._readers: dict[int, Callable[[Mapping[str, int]], object]] = {}

    def measure(self, op: Op, *, overlaps: bool) -> tuple[Any, ...]:
        """Return the fields of an operation's row, without its offset and start."""
        key = op.kind, op.raw, overlaps, self._read_registers(op)
        known = self._known.get(key)
        if known is None:
            row = _measure_kernel(op, self._system, overlaps=overlaps)
            known = self._known[key] = tuple(getattr(row, name) for name in _ROW_FIELDS)
        return known

    def _read_registers(self, op: Op) -> object:
        """Read all registers but addresses and those of DMAs."""
        # Registers are never unset, and keep the order in which they were first set: their number says which there are.
        count = len(op.registers)
        if count not in self._readers:
            names = [name for name in op.registers if "_BASE" not in name and not name.startswith("DMA")]
            self._readers[count] = itemgetter(*names, *names[:1]) if names else len
        return self._readers[count](op.registers)


def _add_traffic(rows: Sequence[Row]) -> dict[str, Traffic]:
    """Add up the traffic of all rows; those of equal operations share one mapping."""
    shared = {id(row.traffic): row.traffic for row in rows}
    total: dict[str, Traffic] = {}
    for key, count in Counter(id(row.traffic) for row in rows).items():
        for name, moved in shared[key].items():
            total[name] = total.get(name, Traffic()) + Traffic(moved.read * count, moved.written * count)
    return total


def _overlaps(op: Op | None) -> bool:
    """Tell whether a kernel operation may begin before the previous one has ended."""
    return op is not None and op.kind.is_kernel and op.get("BLOCKDEP") > 0


class Timeline:
    """End times of kernel operations and DMAs, if each begins as soon as the previous commands allow."""

    def __init__(self) -> None:
        self._now = 0
        self.kernels: deque[int] = deque([0], maxlen=4)
        self.transfers: deque[int] = deque([0], maxlen=8)

    def start_kernel(self, cycles: int) -> int:
        """Start a kernel operation and return the cycle in which it begins."""
        start = max(self._now, self.kernels[-1])
        self.kernels.append(start + cycles)
        # Two may be in flight: the third is not issued before the first has ended.
        self.wait(self.kernels, MAX_KERNELS)
        return start

    def start_transfer(self, cycles: int, accelerator: Accelerator) -> int:
        """Start a DMA and return the cycle in which it begins."""
        start = max(self._now, self.transfers[-1])
        self.transfers.append(start + cycles)
        self.wait(self.transfers, accelerator.max_transfers)
        return start

    def wait(self, ends: deque[int], allowed: int) -> None:
        """Delay the next command until at most `allowed` of these are still in flight."""
        if len(ends) > allowed:
            self._now = max(self._now, ends[-1 - allowed])

    def end(self) -> int:
        return max(self._now, self.kernels[-1], self.transfers[-1])


@dataclass(slots=True)
class _TrafficMeter:
    """Collects the traffic of one operation: bytes by memory, and by memory and channel with the cost of bursts."""

    accelerator: Accelerator
    memories: dict[str, MemoryPort] = field(default_factory=dict[str, MemoryPort])
    moved: dict[str, Traffic] = field(default_factory=dict[str, Traffic])
    channels: dict[str, dict[int, float]] = field(default_factory=dict[str, dict[int, float]])

    def add(self, memory: MemoryPort, channel: int, size: int, burst: int = 0) -> None:
        """Add `size` bytes in bursts of `burst` bytes, or of the memory's own burst length."""
        self.memories[memory.name] = memory
        moved = Traffic(0, size) if channel == _WRITES else Traffic(size)
        self.moved[memory.name] = self.moved.get(memory.name, Traffic()) + moved
        length = min(memory.burst, burst) if burst else memory.burst
        by_channel = self.channels.setdefault(memory.name, {})
        by_channel[channel] = by_channel.get(channel, 0.0) + size * memory.burst / max(1, length)

    def cycles(self) -> dict[str, int]:
        """Return the cycles that each memory needs: for its bandwidth and, on U85, for its slowest channel."""
        found: dict[str, int] = {}
        for name, channels in self.channels.items():
            memory = self.memories[name]
            slowest = max(size / self._bandwidth(memory, channel) for channel, size in channels.items())
            found[name] = int(max(sum(channels.values()) / memory.bandwidth, slowest))
        return found

    def _bandwidth(self, memory: MemoryPort, channel: int) -> float:
        words = self.accelerator.outstanding_words
        if not words:
            return memory.bandwidth
        outstanding = memory.max_writes if channel == _WRITES else memory.max_reads
        under_way = outstanding * memory.ports * _USABLE
        if channel != _WRITES:
            under_way = min(under_way, words[channel] / max(1, memory.burst // 16))
        latency = memory.write_latency if channel == _WRITES else memory.read_latency
        return min(memory.bandwidth, memory.burst * under_way / max(1, latency) * _USABLE)


def _measure_kernel(op: Op, system: System, *, overlaps: bool) -> Row:
    """Measure a kernel operation; `overlaps` means that the next one begins while this one writes its last block."""
    work = read_work(op)
    traffic = _TrafficMeter(op.accelerator)
    _add_feature_maps(work, system, traffic)
    if op.kind in (Kind.CONV, Kind.DEPTHWISE):
        _add_weights(work, system, traffic)
    memory_cycles = traffic.cycles()
    mac, output, total, limit = _measure_compute(work, system, overlaps)
    bottleneck, cycles = limit, total
    for name, needed in memory_cycles.items():
        if needed > cycles:
            bottleneck, cycles = name, needed
    mode = op.mode if op.kind in (Kind.POOL, Kind.ELEMENTWISE, Kind.RESIZE) else ""
    utilization = work.macs / (cycles * op.macs) if cycles else 0.0
    return Row(
        op.offset,
        op.kind.name,
        mode,
        cycles,
        mac,
        output,
        memory_cycles,
        bottleneck,
        work.macs,
        utilization,
        traffic.moved,
    )


def _measure_compute(work: Work, system: System, overlaps: bool) -> tuple[int, int, int, str]:
    """Return the cycles of the MACs, the output stage, and both with the first and last blocks, and the bottleneck."""
    op = work.op
    per_element = count_output_cycles(work)
    first, last = _count_block(work, system, "IFM"), _count_block(work, system, "OFM")
    if work.window is None:
        elements = work.ofm.size
        output = per_element * elements
        issue = (max(first, last) / work.block_size + per_element) / 4 * elements
        return 0, int(output), int(max(output, issue)), "command" if issue > output else "output"
    mac, output = count_mac_cycles(work), per_element * work.ofm_block.size
    if op.kind in (Kind.CONV, Kind.DEPTHWISE) and "SCALE_REGION" in op.registers:
        latency = system.find(op.get("SCALE_REGION")).read_latency
        output = max(output, 10 * work.ofm_block.depth * latency / 256)
    blocks = work.blocks
    issue = ((abs(first - last) if blocks > 1 else 0) + mac + output) / 4
    limit = "mac" if mac > output else "output"
    if issue > max(mac, output):
        limit = "command"
    slower, other = max(mac, output, issue), max(min(mac, output), issue)
    # The slower stage is always busy; the other adds its first or last block.
    total = slower * blocks + other + (0 if _overlaps(op) else first) + (0 if overlaps else last)
    return int(mac * blocks), int(output * blocks), int(total), limit


def _count_block(work: Work, system: System, name: str) -> float:
    """Count the cycles to load the first block of input, or to write the last block of output."""
    fm = read_map(work.op, name) if name == "OFM" or _reads(work.op, "IFM") else None
    if fm is None or fm.layout is None:
        return 0.0
    memory = system.find(fm.region)
    block = work.ofm_block if name == "OFM" else work.ifm_block
    shape = work.ofm if name == "OFM" else work.ifm
    burst = min(memory.burst, _find_burst(work.op, fm, block, shape, name == "OFM"))
    latency = memory.write_latency if name == "OFM" else memory.read_latency
    return latency + block.size * (fm.bits / 8) * memory.burst / burst / memory.bandwidth


def _reads(op: Op, name: str) -> bool:
    """Tell whether an input is read from memory: neither missing, nor a scalar."""
    if name == "IFM" and op.kind is Kind.POOL and op.mode == "NONE":
        return False
    if name == "IFM2" and op.kind is not Kind.ELEMENTWISE:
        matrix = op.family.has_u85_units and op.kind is Kind.CONV and bool(op.argument("weights_ifm2"))
        return matrix or (op.family.has_u85_units and op.name("ACC_FORMAT", "acc_input") == "IFM2")
    if name == "IFM2" and op.mode in ("ABS", "CLZ", "NOT", "LRELU"):
        return False
    if op.kind is Kind.ELEMENTWISE and op.family.has_u85_units:
        return op.name(f"{name}_BROADCAST") != "SCALAR"
    return name == "IFM" or not op.get("IFM2_BROADCAST", "broadcast_constant")


def _find_burst(op: Op, fm: FeatureMap, block: Shape, shape: Shape, write: bool) -> int:
    """Return how many bytes of a block are contiguous in memory."""
    cores = op.accelerator.parallel_microblocks if write else 1
    item = fm.bits // 8
    if fm.layout is not None and fm.layout.bricks:
        return max(1, BRICK * item * block.width * cores)
    if shape.depth == block.depth and not (write and block.depth * item > 16):
        return max(1, item * block.width * block.depth)
    return max(1, min(_BURST_BITS // 8, BRICK * item * cores, block.depth * item) if write else item * block.depth)


def _add_feature_maps(work: Work, system: System, traffic: _TrafficMeter) -> None:
    op = work.op
    channel = _STREAM if work.window is None else _INPUT
    for name in ("IFM", "IFM2"):
        fm = read_map(op, name) if _reads(op, name) else None
        if fm is not None and fm.layout is not None:
            elements = _count_fetched(work) if name == "IFM" and work.window is not None else _count_input(work, name)
            burst = _find_burst(op, fm, work.ifm_block, work.ifm, write=False)
            traffic.add(system.find(fm.region), channel, elements * fm.bits // 8, burst)
    target = read_map(op, "OFM")
    if target.layout is not None:
        depth = -(-work.ofm.depth // BRICK) * BRICK if target.layout.bricks else work.ofm.depth
        size = work.ofm.height * work.ofm.width * depth * target.bits // 8
        burst = _find_burst(op, target, work.ofm_block, work.ofm, write=True)
        traffic.add(system.find(target.region), _WRITES, size, burst)


def _count_input(work: Work, name: str) -> int:
    """Count the elements of an input without a window, fewer where it is broadcast."""
    op, shape = work.op, work.ifm
    if op.kind is Kind.CONV:
        return work.ofm.depth * work.ifm.depth
    if op.kind is not Kind.ELEMENTWISE:
        return shape.size
    if op.family.has_u85_units:
        mode = op.name(f"{name}_BROADCAST")
        axes = "" if mode == "NONE" else mode
    else:
        fields = {"H": "broadcast_h", "W": "broadcast_w", "C": "broadcast_c"}
        axes = "" if name == "IFM" else "".join(a for a, f in fields.items() if op.get("IFM2_BROADCAST", f))
    height, width, depth = (1 if axis in axes else size for axis, size in zip("HWC", shape, strict=True))
    return height * width * depth


def _count_fetched(work: Work) -> int:
    """Count the input elements that all output blocks fetch: windows overlap, and each output depth reads all input."""
    assert work.window is not None
    rows = -(-work.ofm.height // work.ofm_block.height)
    columns = -(-work.ofm.width // work.ofm_block.width)
    depths = -(-work.ofm.depth // work.ofm_block.depth) if work.op.kind is Kind.CONV else 1
    parts = -(-work.window.taps_y // KERNEL_PART) * -(-work.window.taps_x // KERNEL_PART)
    pixels = work.ifm_block.height * work.ifm_block.width
    return pixels * work.ifm.depth * rows * columns * depths * parts


def _add_weights(work: Work, system: System, traffic: _TrafficMeter) -> None:
    """Add the traffic of weights and scales, which are read again for every block of rows and columns."""
    op = work.op
    if op.family.has_u85_units and op.kind is Kind.CONV and op.argument("weights_ifm2"):
        return
    again = -(-work.ofm.height // work.ofm_block.height) * -(-work.ofm.width // work.ofm_block.width)
    fast = op.family.has_u85_units and op.name("WEIGHT_FORMAT") == "FWD"
    names = ("WEIGHT", "WEIGHT1", "WEIGHT2", "WEIGHT3")
    size = sum(op.get(f"{name}_LENGTH") for name in names if f"{name}_LENGTH" in op.registers)
    traffic.add(system.find(op.get("WEIGHT_REGION")), _FAST_WEIGHTS if fast else _WEIGHTS, size * again)
    scales = sum(op.get(f"{name}_LENGTH") for name in ("SCALE", "SCALE1") if f"{name}_LENGTH" in op.registers)
    traffic.add(system.find(op.get("SCALE_REGION")), _SCALES, scales * again)


def _measure_dma(op: Op, system: System) -> Row:
    transfer = read_transfer(op)
    size = transfer.planes * transfer.rows * transfer.length
    traffic = _TrafficMeter(op.accelerator)
    cycles = 0
    for region, channel in ((transfer.source, _DMA), (transfer.target, _WRITES)):
        if region == INTERNAL:
            continue
        memory = system.find(region)
        traffic.add(memory, channel, size)
        latency = memory.write_latency if channel == _WRITES else memory.read_latency
        cycles = max(cycles, latency + traffic.cycles()[memory.name])
    return Row(op.offset, op.kind.name, "", cycles, 0, 0, traffic.cycles(), "dma", 0, 0.0, traffic.moved)
