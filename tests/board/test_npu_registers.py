"""The NPU's registers: the sequence of a driver, what is refused, and what a fault leaves in STATUS."""

import functools
import struct

import numpy as np
import pytest

from tosaic.board.core_devices import Clock
from tosaic.board.job import Npu, Queue, Status
from tosaic.board.memory import Block, Memory
from tosaic.board.npu_registers import NpuRegisters, Reg, WrongAccess, make_config, make_id
from tosaic.core.errors import ToolFailed
from tosaic.core.targets import ACCELERATORS as TARGETS
from tosaic.core.targets import find
from tosaic.doctor import _make_tosa
from tosaic.npu.accelerator import ACCELERATORS
from tosaic.npu.machine import Limits, execute
from tosaic.tools import vela

SRAM, DDR, TCM = 0x31000000, 0x70000000, 0x30000000
BASEP0, BASEP1 = 0x80, 0x88
RUN, CLEAR_IRQ = 1, 2
FAMILIES = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")


class Machine:
    """Memory with one addition of int32[1, 4], and an NPU before it."""

    def __init__(self, target: str = "ethos-u55-128", *, silent: bool = False) -> None:
        compiled = vela.compile(_make_tosa(), vela.default_options(find(target)))
        self.compiled = compiled
        self.commands = compiled.cmd_data[32:]
        self.ddr, self.sram = np.zeros(8192, np.uint8), np.zeros(4096, np.uint8)
        self.ddr[: len(self.commands)] = np.frombuffer(self.commands, np.uint8)
        self.ddr[4096 : 4096 + len(compiled.weight_data)] = np.frombuffer(compiled.weight_data, np.uint8)
        memory = Memory(
            (
                Block(TCM, np.zeros(1024, np.uint8), True, False, ""),
                Block(SRAM, self.sram, True, False, "axi0"),
                Block(DDR, self.ddr, False, False, "axi1"),
            )
        )
        self.npu = Npu(target, memory)
        self.lines: list[bool] = []
        self.notes: list[str] = []
        # So fast that a job takes longer than a look at a register.
        self.clock = Clock(10**12)
        self.registers = NpuRegisters(self.npu, self.clock, self.lines.append, self.notes.append, silent=silent)

    def put(self, offset: int, value: int) -> None:
        self.registers.write(offset, 4, value)

    def get(self, offset: int) -> int:
        return self.registers.read(offset, 4)

    def set_up(self) -> None:
        self.put(Reg.RESET, 1)
        self.put(Reg.QCONFIG, 1)
        self.put(Reg.REGIONCFG, 1)
        self.put(Reg.QBASE, DDR)
        self.put(Reg.QBASE_HI, 0)
        self.put(Reg.QSIZE, len(self.commands))
        self.put(BASEP0, DDR + 4096)
        self.put(BASEP1, SRAM)

    def fill(self) -> None:
        for number, io in enumerate(self.compiled.inputs):
            self.sram[io.offset : io.offset + 16].view(np.int32)[:] = [1 + number, 2, 3, -4]

    @property
    def result(self) -> list[int]:
        at = self.compiled.outputs[0].offset
        return self.sram[at : at + 16].view(np.int32).tolist()


@pytest.mark.parametrize("target", FAMILIES)
def test_sequence_of_a_driver(target: str) -> None:
    machine = Machine(target)
    assert machine.get(Reg.ID) and not machine.get(Reg.STATUS)
    machine.set_up()
    assert machine.get(Reg.PROT) == 1
    for _ in range(2):
        machine.fill()
        machine.put(Reg.CMD, 0xC | RUN)
        assert machine.lines[-1] and machine.result == [3, 4, 6, -8]
        assert machine.get(Reg.STATUS) == Status.IRQ_RAISED | Status.END_REACHED
        assert machine.get(Reg.QREAD) == len(machine.commands)
        machine.put(Reg.CMD, machine.get(Reg.CMD) & 0xC | CLEAR_IRQ)
        assert not machine.lines[-1] and machine.get(Reg.STATUS) == Status.END_REACHED
    assert machine.registers.jobs == 2 and not machine.notes


@pytest.mark.parametrize("target", [*FAMILIES, *(pytest.param(t, marks=pytest.mark.slow) for t in TARGETS)])
def test_identity_is_that_of_streams(target: str) -> None:
    """A driver compares ID and CONFIG with what Vela writes in front of the commands."""
    data = vela.compile(_make_tosa(), vela.default_options(find(target))).cmd_data
    config, version = struct.unpack_from("<II", data, 8)
    accelerator = ACCELERATORS[target]
    assert (make_config(accelerator), make_id(accelerator.family)) == (config, version)


REFUSED = {
    "a byte": (lambda m: m.registers.write(Reg.QSIZE, 1, 0), "registers are words of 4 bytes"),
    "unaligned": (lambda m: m.registers.read(2, 4), "registers are words of 4 bytes"),
    "unknown": (lambda m: m.get(0x7C), "an Ethos-U55 has no register there"),
    "of another family": (lambda m: m.get(Reg.AXI_SRAM), "an Ethos-U55 has no register there"),
    "read-only": (lambda m: m.put(Reg.STATUS, 0), "STATUS is written"),
    "read-only ID": (lambda m: m.put(Reg.ID, 0), "ID is written"),
    "before reset": (lambda m: Machine.put(Machine(), Reg.QSIZE, 16), "QSIZE is written before the NPU is reset"),
    "run before reset": (lambda m: Machine.put(Machine(), Reg.CMD, RUN), "the NPU is started before it is reset"),
    "base": (lambda m: m.put(BASEP1, SRAM + 8), "BASEP1 is 0x31000008"),
    "queue": (lambda m: m.put(Reg.QBASE, DDR + 4), "QBASE is 0x70000004"),
    "wide address": (lambda m: m.put(BASEP1 + 4, 1), "BASEP1_HI is 0x1"),
    "size 0": (lambda m: m.put(Reg.QSIZE, 0), "QSIZE is 0"),
    "odd size": (lambda m: m.put(Reg.QSIZE, 18), "QSIZE is 18"),
    "huge size": (lambda m: m.put(Reg.QSIZE, 1 << 30), "QSIZE is 1073741824"),
    "port": (lambda m: m.put(Reg.QCONFIG, 4), "QCONFIG is 0x4"),
    "region ports": (lambda m: m.put(Reg.REGIONCFG, 1 << 16), "REGIONCFG is 0x10000"),
    "command": (lambda m: m.put(Reg.CMD, 1 << 5), "CMD is 0x20"),
    "levels": (lambda m: m.put(Reg.RESET, 4), "RESET is 0x4"),
    "counters": (lambda m: m.put(0x184, 1 << 4), "PMCNTENSET is 0x10"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_accesses_are_refused(name: str) -> None:
    access, message = REFUSED[name]
    machine = Machine()
    machine.set_up()
    with pytest.raises(ToolFailed) as caught:
        access(machine)
    assert message in str(caught.value)


def test_queue_must_be_set_after_each_reset() -> None:
    machine = Machine()
    machine.set_up()
    machine.put(Reg.RESET, 1)
    with pytest.raises(WrongAccess, match="without QBASE"):
        machine.put(Reg.CMD, RUN)


def test_interrupt_must_be_cleared() -> None:
    machine = Machine()
    machine.set_up()
    machine.put(Reg.CMD, RUN)
    with pytest.raises(WrongAccess, match="before its last interrupt was cleared"):
        machine.put(Reg.CMD, RUN)


def test_silent_npu_stays_running() -> None:
    machine = Machine(silent=True)
    machine.set_up()
    machine.put(Reg.CMD, RUN)
    assert machine.get(Reg.STATUS) == Status.RUNNING and not machine.lines[-1]
    with pytest.raises(WrongAccess, match="while the NPU runs"):
        machine.put(Reg.QSIZE, 16)
    machine.put(Reg.RESET, 1)
    assert machine.get(Reg.STATUS) == 0


def _damage(machine: Machine) -> None:
    machine.ddr[:2] = 0xFF


FAULTS = {
    "damaged command": (_damage, Status.PARSE_ERROR, "command at offset 0x000000"),
    "outside memory": (lambda m: m.put(BASEP1, SRAM + 4080), Status.BUS_ERROR, "outside region 1 at 0x31000ff0"),
    "no memory": (lambda m: m.put(BASEP1, 0x20000000), Status.BUS_ERROR, "there is no region 1"),
    "tightly coupled memory": (lambda m: m.put(BASEP1, TCM), Status.BUS_ERROR, "there is no region 1"),
    "constant": (lambda m: m.put(BASEP1, DDR), Status.BUS_ERROR, "it can only be read"),
    "commands elsewhere": (
        lambda m: m.put(Reg.QBASE, TCM),
        Status.BUS_ERROR,
        "no access to the commands",
    ),
    "queue too short": (lambda m: m.put(Reg.QSIZE, 64), Status.PARSE_ERROR, "there is no command"),
    "queue too long": (lambda m: m.put(Reg.QSIZE, 4096), Status(0), "the commands stop after"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_set_status(name: str) -> None:
    change, status, note = FAULTS[name]
    machine = Machine()
    machine.set_up()
    change(machine)
    machine.put(Reg.CMD, RUN)
    assert machine.lines[-1] and machine.get(Reg.STATUS) == Status.IRQ_RAISED | status
    assert note in machine.notes[0]
    machine.put(Reg.CMD, CLEAR_IRQ)
    if status:
        with pytest.raises(WrongAccess, match="only a reset clears it"):
            machine.put(Reg.CMD, RUN)


def test_commands_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tosaic.board.job.execute", functools.partial(execute, limits=Limits(commands=10)))
    machine = Machine()
    machine.set_up()
    machine.put(Reg.CMD, RUN)
    assert machine.get(Reg.STATUS) == Status.RUNNING and not machine.lines[-1]
    assert "the stream does not end" in machine.notes[0]


@pytest.mark.parametrize("target", FAMILIES)
def test_counters_are_the_estimate(target: str) -> None:
    machine = Machine(target)
    machine.set_up()
    pmu = 0x1180 if "u85" in target else 0x180
    machine.put(pmu + 0x200, 0x82)
    machine.put(pmu + 0x204, 0x30)
    machine.put(pmu + 0x4, 1 << 31 | 1)
    machine.put(pmu, 7)
    machine.put(Reg.CMD, RUN)
    end = machine.registers.find_next()
    assert end is not None and machine.get(Reg.STATUS) == Status.RUNNING and not machine.lines[-1]
    machine.clock.now = end
    assert machine.get(Reg.STATUS) == Status.IRQ_RAISED | Status.END_REACHED and machine.lines[-1]
    queue = Queue(DDR, len(machine.commands), {0: DDR + 4096, 1: SRAM})
    found = machine.npu.estimate(queue, machine.npu.find_ports(queue))
    assert found is not None and machine.get(pmu + 0x20) == found.cycles > 0 == machine.get(pmu + 0x24)
    assert machine.get(pmu + 0x180) > 0
    # The second counter is not enabled.
    assert machine.get(pmu + 0x184) == 0
    machine.put(pmu, 6)
    assert machine.get(pmu + 0x20) == machine.get(pmu + 0x180) == 0
