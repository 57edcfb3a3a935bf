"""Choices of a search: the front, the limits, the plot and the command lines."""

import pytest

from tosaic.formats.sidecar import DelegateFiles
from tosaic.report.choices import Choice, FitReport, Limits, Options, find_front
from tosaic.report.fit import describe_limits, draw_plot, format_size
from tosaic.report.layer_costs import list_peak_tensors, list_weights


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
    report = FitReport("my model.py", Limits(), "", None, (), (), None, {}, (), 0)
    words = report.name_command(Choice(options, 1, 1.0, 1, 0, 1, 0, None, ""))
    assert words == (
        "tosaic compile 'my model.py' -t ethos-u55-128 --optimize size --arena-cache-size 4096 --io int8 --layout nhwc"
        " --precision a8w4"
    )
    assert Options("ethos-u55-128").describe() == "defaults"


def test_the_plot_has_every_choice() -> None:
    lines = draw_plot([make(10, 50), make(20, 30), make(15, 40)])
    assert lines[-3].endswith("A") and lines[0].endswith("|B") and any("C" in line for line in lines)
    assert draw_plot([make(10, 50)])


TABLES = """<table name="tensors">
<![CDATA[
"id","memory","usage","start_time","end_time","size","name"
0,"Sram","OpLocal",0,1,"0x100","t1"
1,"Sram","OpLocal",1,2,"0x200","t2_copy1"
2,"Sram","OpBuffering",2,2,"0x40","WB_op2"
3,"Dram","OpLocal",1,1,"0x9000","t3"
4,"Sram","OpLocal","x",2,"0x9000","t4"
5,"Sram"
]]>
</table>
"""


def test_peak_tensors_are_those_that_live_together() -> None:
    origins = ({"module": "first", "tosa": ["t1:CONV2D"]}, {"module": "second", "tosa": ["t2:ADD"]})
    held = list_peak_tensors(DelegateFiles(b"", origins, TABLES))
    assert [(one.layer, one.bytes) for one in held] == [("second", 512), ("first", 256)]


@pytest.mark.parametrize("text", ["", "<table", '<table name="tensors">\n<![CDATA[\n]]>\n</table>\n'])
def test_damaged_databases_have_no_peak(text: str) -> None:
    assert list_peak_tensors(DelegateFiles(b"", (), text)) == []
    assert list_weights(DelegateFiles(b"", (), text)) == []
