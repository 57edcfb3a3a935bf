"""The virtual board: devices, interrupts, the host, and programs that do wrong or never end."""

import shutil
from pathlib import Path

import pytest

from support.boards import build_program, needs_board
from tosaic.board.description import find_board
from tosaic.board.elf import read_elf
from tosaic.board.execution import Execution
from tosaic.board.memory import make_memory
from tosaic.board.qemu import PROGRAM, run_qemu
from tosaic.board.virtual import VirtualOptions, run_virtual
from tosaic.core.errors import Invalid, ToolFailed

BOARD = find_board("corstone-300")
pytestmark = needs_board

FILES = """
int main(void) {
    char line[80];
    uint32_t place[2] = {(uint32_t)line, sizeof line};
    call_host(0x15, place);
    say(line);
    uint32_t file = open_file("input-0.bin", 1);
    uint32_t size = call_host(0x0C, &file);
    char data[16] = {0};
    uint32_t block[3] = {file, (uint32_t)data, size};
    call_host(0x06, block);
    call_host(0x02, &file);
    data[0] = 'H';
    file = open_file("output-0.bin", 5);
    uint32_t written[3] = {file, (uint32_t)data, size};
    call_host(0x05, written);
    call_host(0x02, &file);
    return open_file("no such file", 1) == UINT32_MAX ? 0 : 7;
}
"""
#: Interrupts are disabled while it looks, as in a program that may not miss one.
TIMER = """
static volatile uint32_t ticks;
static volatile float sum;
void on_tick(void) { ticks++; sum += 0.5f; }
int main(void) {
    ticks = 0;
    sum = 0.0f;
    REG(0xE000E014) = 24999;
    REG(0xE000E018) = 0;
    REG(0xE000E010) = 7;
    volatile float kept = 2.25f;
    float product = kept * 2.0f;
    __asm__ volatile("cpsid i");
    while (ticks < 5) {
        sleep();
        __asm__ volatile("cpsie i\\n isb\\n cpsid i");
    }
    __asm__ volatile("cpsie i");
    return ticks == 5 && sum == 2.5f && product == 4.5f ? 0 : 7;
}
"""


def run(elf: bytes, *, seconds: float = 5.0, count: bool = False) -> Execution:
    return run_virtual(BOARD, elf, "ethos-u55-128", [b"hello"], VirtualOptions(seconds, count))


@pytest.mark.parametrize("runner", ["virtual", "qemu"])
def test_host_and_files(runner: str, tmp_path: Path) -> None:
    if runner == "qemu" and not shutil.which(PROGRAM):
        pytest.skip("QEMU is not installed: install the package qemu-system-arm")
    elf = build_program(tmp_path, FILES)
    done = run(elf) if runner == "virtual" else run_qemu(BOARD, elf, "ethos-u55-128", [b"hello"], seconds=20.0)
    assert (done.exit_code, done.log) == (0, "firmware -i input-0.bin -o output")
    assert done.files == {"input-0.bin": b"hello", "output-0.bin": b"Hello"}


def test_firmware_has_no_files_of_this_machine(tmp_path: Path) -> None:
    secret, target = tmp_path / "secret", tmp_path / "target"
    secret.write_text("secret")
    body = f'int main(void) {{ open_file("{target}", 5); return open_file("{secret}", 1) == UINT32_MAX ? 0 : 7; }}'
    done = run(build_program(tmp_path, body))
    assert done.exit_code == 0 and not target.exists() and str(target) in done.files


def test_timer_and_interrupts(tmp_path: Path) -> None:
    assert run(build_program(tmp_path, TIMER)).exit_code == 0


def test_interrupts_of_a_working_cpu(tmp_path: Path) -> None:
    """With counted instructions time passes while the CPU works, and the timer interrupts it."""
    body = """
static volatile uint32_t ticks, work;
void on_tick(void) { ticks++; }
int main(void) {
    ticks = work = 0;
    REG(0xE000E014) = 9999;
    REG(0xE000E018) = 0;
    REG(0xE000E010) = 7;
    while (ticks < 10) { work++; }
    return 0;
}
"""
    done = run(build_program(tmp_path, body), count=True)
    assert done.exit_code == 0 and done.instructions is not None and 100_000 <= done.instructions < 110_000


def test_runs_are_the_same(tmp_path: Path) -> None:
    elf = build_program(tmp_path, TIMER)
    first, second = (run(elf, count=True) for _ in range(2))
    assert first == second and first.instructions is not None and 100 < first.instructions < 1000


WRONG = {
    "write outside": (
        "REG(0x30010000) = 1;",
        "it writes 4 bytes to 0x30010000, but no section of the program is there",
    ),
    "read outside": ("return (int)REG(0x70000000);", "it reads 4 bytes at 0x70000000, but no section"),
    "write to code": ("REG(0x10000000) = 1;", "but its section does not allow that"),
    "jump outside": ("((void (*)(void))0x20000001)();", "it jumps to 0x20000000"),
    "jump to data": ("((void (*)(void))0x30000001)();", "it jumps to 0x30000000, but its section does not allow"),
    "bad instruction": ('__asm__ volatile("udf #0");', "Invalid instruction"),
    "end of sleep": ("sleep();", "no enabled interrupt is pending, and the system timer is off"),
    "reset": ("REG(0xE000ED0C) = 0x05FA0004;", "the virtual board does not start again"),
    "other device": ("REG(0xE000E7FC) = 1;", "the virtual board does not model it"),
    "host memory": ("call_host(0x02, (void *)0x20000000);", "this is not within one part of its memory"),
    "host call": ("call_host(0x77, (void *)0);", "there is no such call here"),
    "silent UART": ('REG(0x49303008) = 0; say("x");', "bit 0 of its CTRL is not set"),
    "NPU": ("REG(0x58102008) = 1;", "its state is still undefined"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_end_with_a_reason(name: str, tmp_path: Path) -> None:
    statement, reason = WRONG[name]
    elf = build_program(tmp_path, f'int main(void) {{ say("begin\\n"); {statement} return 0; }}')
    with pytest.raises(ToolFailed) as caught:
        run(elf)
    assert reason in str(caught.value) and caught.value.log == "begin\n"
    assert name.startswith("jump") or "where: `" in str(caught.value)


def test_endless_program_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=r"did not end within 0\.5 s"):
        run(build_program(tmp_path, "int main(void) { for (;;) { } }"), seconds=0.5)


def test_sleep_after_the_log_is_an_end(tmp_path: Path) -> None:
    done = run(build_program(tmp_path, 'int main(void) { say("done\\n\\x04"); for (;;) { sleep(); } }'))
    assert (done.exit_code, done.log) == (0, "done\n")


def test_exit_code_reaches_the_caller(tmp_path: Path) -> None:
    assert run(build_program(tmp_path, "int main(void) { return 42; }")).exit_code == 42


def test_missing_handler(tmp_path: Path) -> None:
    body = "int main(void) { REG(0xE000E100) = 1; REG(0xE000E200) = 1; sleep(); return 0; }"
    with pytest.raises(ToolFailed, match="no handler for exception 16"):
        run(build_program(tmp_path, body))


def test_firmware_for_another_board(tmp_path: Path) -> None:
    elf = build_program(tmp_path, "static volatile char room[100000]; int main(void) { return room[room[1]]; }")
    other = find_board("corstone-320")
    with pytest.raises(Invalid, match="the firmware is not for Corstone-320"):
        run_virtual(other, elf, "ethos-u85-256")


def test_no_vector_table(tmp_path: Path) -> None:
    """The program fits into the memories of Corstone-320, but the CPU starts somewhere else there."""
    elf = build_program(tmp_path, "int main(void) { return 0; }")
    with pytest.raises(Invalid, match="is not for Corstone-320") as caught:
        run_virtual(find_board("corstone-320"), elf, "ethos-u85-256")
    assert "looks for a vector table at 0x11000000" in caught.value.why


def test_damaged_elf_files(tmp_path: Path) -> None:
    """Every cut and 2,000 changed bytes give an Invalid, or an ELF file whose memory is checked like any other."""
    import random

    elf = build_program(tmp_path, "int main(void) { return 0; }")
    many = elf[:48] + b"\xff\xff" + elf[50:]
    for data in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + elf[6:], elf[:100], elf[:18] + b"\x3e" + elf[19:], many):
        with pytest.raises(Invalid):
            read_elf(data)
    chance = random.Random(0)
    for _ in range(2000):
        damaged = bytearray(elf)
        start = chance.choice([0, len(elf) - 2000])
        damaged[start + chance.randrange(2000 if start else 200)] = chance.randrange(256)
        try:
            make_memory(BOARD, read_elf(bytes(damaged)))
        except Invalid:
            continue
