"""Choices of a search: the front, the limits, the plot and the command lines."""

from tosaic.ir.text import from_text
from tosaic.report.choices import Choice, Limits, Options, find_front
from tosaic.report.fit import describe_limits, draw_plot, format_size
from tosaic.report.obstacles import Held, list_peak_tensors, list_weights
from tosaic.report.profile import Layer, MemoryPlan, Profile
from tosaic.report.schedule import Buffer


def make(
    cycles: int, sram: int, *, flash: int = 100, fallback: int = 0, sqnr: float | None = None, io: str = "float"
) -> Choice:
    options = Options("ethos-u55-128", io=io, arena_cache_size=cycles)
    return Choice(options, cycles, cycles / 1e9, sram, 0, flash, fallback, sqnr, "")


def test_the_front_has_what_nothing_beats() -> None:
    fast, small, worse, equal = make(10, 50), make(20, 30), make(21, 31), make(10, 50, io="int8")
    assert find_front([worse, equal, small, fast]) == [fast, small]
    accurate = make(30, 60, sqnr=40.0)
    assert accurate in find_front([fast, small, accurate])


def test_work_that_stays_on_the_cpu_is_no_gain() -> None:
    """Cycles of the CPU are not known, so a program with less on the NPU is never faster."""
    whole, part = make(10, 50), make(1, 50, fallback=3)
    assert find_front([part, whole])[0] is whole
    assert not part.beats(whole)


def test_limits() -> None:
    assert Limits(40, 90).list_excesses(make(10, 50)) == {"SRAM": 10, "flash": 10}
    assert Limits(50, 100, 0).list_excesses(make(10, 50)) == {}
    assert describe_limits(Limits(512 << 10, 1000)) == "512K of SRAM, 1,000 bytes of flash"
    assert [format_size(n) for n in (0, 1 << 20, 1536)] == ["0 bytes", "1M", "1,536 bytes"]


def test_command_lines_leave_out_defaults() -> None:
    options = Options("ethos-u55-128", "Shared_Sram", "size", 4096, "int8", "nhwc", "a8w4")
    words = options.name_command("my model.py", ())
    assert words == (
        "tosaic compile 'my model.py' -t ethos-u55-128 --optimize size --arena-cache-size 4096 --io int8 --layout nhwc"
        " --precision a8w4"
    )
    assert Options("ethos-u55-128").describe() == "defaults"


def test_the_plot_has_every_choice() -> None:
    lines = draw_plot([make(10, 50), make(20, 30), make(15, 40)])
    assert lines[-3].endswith("A") and lines[0].endswith("|B") and any("C" in line for line in lines)
    assert draw_plot([make(10, 50)])


def make_profile() -> Profile:
    """A plan with weights, a tensor that another replaces in place, one of Vela's own, and one in DRAM."""
    graph = from_text("""graph(%x0: i8[16]) {
  %1: i8[16] = ABS(%x0)
  %2: i8[16] = ABS(%1)
  return %2
}""")
    first, second = graph.ops[0].outputs[0], graph.ops[1].outputs[0]
    buffers = (
        Buffer("input_0", "Sram", "OpLocal", 0, 16, 0, 1, graph.inputs[0]),
        Buffer("t1", "Sram", "OpLocal", 16, 272, 0, 3, first),
        Buffer("t2", "Sram", "OpLocal", 16, 528, 2, 3, second),
        Buffer("WB_op2", "Sram", "OpBuffering", 528, 592, 1, 2),
        Buffer("own", "Sram", "OpLocal", 592, 600, 2, 2),
        Buffer("t3", "Dram", "OpLocal", 0, 9000, 2, 2),
    )
    layers = (
        Layer(0, "NPU", 0, "aten.abs.default", module="first", weight_bytes=10),
        Layer(1, "NPU", 0, "aten.abs.default", module="second", weight_bytes=20),
        Layer(2, "NPU", 0, "aten.abs.default", module="first", weight_bytes=15),
    )
    return Profile("forward", layers=layers, plans=(MemoryPlan(0, buffers, {0: 0, 2: 1}, {first: 0, second: 1}),))


def test_peak_tensors_are_those_that_live_together() -> None:
    held = list_peak_tensors(make_profile())
    assert held == [
        Held("second", "tensor `t2`", 512),
        Held("first", "tensor `t1`", 256),
        Held("second", "weights", 64),
        Held("second", "tensor `own`", 8),
    ]
    assert list_peak_tensors(Profile("forward")) == []


def test_weights_are_added_up_per_module() -> None:
    assert list_weights(make_profile()) == [Held("first", "weights", 25), Held("second", "weights", 20)]
