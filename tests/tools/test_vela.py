"""Compiling with Vela: every accelerator, the same bytes everywhere, and refusals that say what and where."""

import math
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.targets import ACCELERATORS, find
from tosaic.formats.tosa_writer import names, serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Type, Value
from tosaic.tools import vela
from tosaic.tools.vela import Refused, VelaOptions
from tosaic.tools.vela_debug import canonicalize, read_tables
from tosaic.tools.vela_options import read_ini

U55 = vela.default_options(find("ethos-u55-128"))
U85 = vela.default_options(find("ethos-u85-256"))
PRODUCTS = {"u55": 0, "u65": 1, "u85": 2}


@pytest.mark.parametrize("name", ACCELERATORS)
def test_compiles_for_every_accelerator(conv: bytes, name: str) -> None:
    target = find(name)
    compiled = vela.compile(conv, vela.default_options(target))
    words = struct.unpack_from("<3I", compiled.cmd_data)
    assert compiled.cmd_data[:4] == b"COP1"
    # The driver's config word carries log2 of the MACs and the product.
    assert (1 << (words[2] & 15), words[2] >> 28) == (target.macs, PRODUCTS[target.family])
    assert [(io.shape, io.element_bytes, io.region) for io in compiled.inputs] == [((1, 1, 1, 8, 8, 8), 1, 1)]
    assert [(io.shape, io.element_bytes, io.region) for io in compiled.outputs] == [((1, 1, 1, 8, 8, 16), 1, 1)]
    assert (compiled.weight_region, compiled.scratch_region) == (0, 1)
    for io in (*compiled.inputs, *compiled.outputs):
        assert io.offset + math.prod(io.shape) <= compiled.scratch_size
    assert len(compiled.weight_data) >= 16 * 10
    assert compiled.summary["nn_macs"] == 8 * 8 * 16 * 3 * 3 * 8
    assert compiled.summary["cycles_total"] > 0
    assert "CPU operators = 0" in compiled.log


def test_summary_keeps_the_column_names_of_vela(conv: bytes) -> None:
    summary = vela.compile(conv, U55).summary
    assert summary["core_clock"] == 500e6
    assert summary["inference_time"] == pytest.approx(summary["cycles_total"] / 500e6)
    assert {"cycles_npu", "cycles_sram_access", "sram_memory_used", "off_chip_flash_total_bytes"} <= summary.keys()


def test_debug_database_leads_from_commands_to_tosa_ops(conv: bytes) -> None:
    compiled = vela.compile(conv, U55)
    tables = read_tables(compiled.debug_db)
    sources = [row[tables["source"].columns.index("operator")] for row in tables["source"].rows]
    assert sources.count("Conv2D") == 1 and sources.count("Rescale") == 1
    scheduled = {row[0] for row in tables["perf"].rows}
    assert {row[tables["queue"].columns.index("scheduled_id")] for row in tables["queue"].rows} == scheduled
    assert tempfile.gettempdir() not in compiled.debug_db


def _debug_db(first: int, memories: tuple[str, str]) -> str:
    """A database as Vela writes it, with its counter at `first` and its memories in the given order."""
    columns, cells = ",".join(f'"{name}_ac"' for name in memories), ",".join(str(len(name)) for name in memories)
    return (
        "<?xml version='1.0' encoding='UTF-8'?>\n"
        f'<debug source="/tmp/{first}/model">\n'
        f'<table name="perf">\n<![CDATA[\n"id","source_id","name","mac_count",{columns}\n'
        f'{first + 9},3,"a, b",7,{cells}\n{first + 4},5,"#{first}",7,{cells}\n]]>\n</table>\n'
        f'<table name="queue">\n<![CDATA[\n"offset","cmdstream_id","optimised_id","scheduled_id"\n'
        f"288,1,29,{first + 9}\n]]>\n</table>\n"
        "</debug>\n"
    )


def test_debug_database_is_freed_of_counters_addresses_and_paths() -> None:
    canonical = canonicalize(_debug_db(10, ("Sram", "shram")))
    assert canonicalize(_debug_db(99999, ("shram", "Sram"))) == canonical
    assert canonicalize(canonical) == canonical
    tables = read_tables(canonical)
    assert tables["perf"].columns == ("id", "source_id", "name", "mac_count", "Sram_ac", "shram_ac")
    assert tables["perf"].rows == (("2", "3", "a, b", "7", "4", "5"), ("1", "5", "#0", "7", "4", "5"))
    assert tables["queue"].rows == (("288", "1", "29", "2"),)


def test_debug_database_is_freed_of_the_order_of_addresses() -> None:
    """Vela lists the tensors of one time in any order."""

    def write(*rows: tuple[int, int]) -> str:
        lines = "".join(f'{number},{start},"t{number}"\n' for number, start in rows)
        table = f'<table name="tensors">\n<![CDATA[\n"id","start_time","name"\n{lines}]]>\n</table>\n'
        return f"<?xml version='1.0' encoding='UTF-8'?>\n<debug>\n{table}</debug>\n"

    canonical = canonicalize(write((12, 0), (3, 4), (10, 4), (11, 8)))
    assert canonicalize(write((12, 0), (10, 4), (3, 4), (11, 8))) == canonical
    names = [row[2] for row in read_tables(canonical)["tensors"].rows]
    assert names == ["t12", "t3", "t10", "t11"]


def test_fast_scratch_is_used_with_dedicated_sram() -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 128, 128, 16)))
    pool = ops.max_pool2d(b, x, kernel=(2, 2), stride=(2, 2), pad=(0, 0, 0, 0))
    graph = b.finish([ops.max_pool2d(b, pool, kernel=(2, 2), stride=(2, 2), pad=(0, 0, 0, 0))])
    compiled = vela.compile(serialize(graph), vela.default_options(find("ethos-u65-256")))
    assert compiled.fast_scratch_region == 2
    assert compiled.fast_scratch_size > 0


def test_same_result_in_any_folder_process_and_order(
    conv: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = vela.compile(conv, U55)
    with pytest.raises(Refused):
        vela.compile(serialize(_gather_graph()[0]), U55)
    assert vela.compile(conv, U55) == first
    folder = tmp_path / "a folder ü 日本"
    folder.mkdir()
    monkeypatch.setenv("PYTHONHASHSEED", "123")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    vela.worker().close()
    try:
        vela.compile(conv, U85)
        assert vela.compile(conv, U55) == first
    finally:
        vela.worker().close()
    assert list(folder.iterdir()) == []


def test_user_ini_with_spaces_and_unicode_in_its_path(conv: bytes, tmp_path: Path) -> None:
    path = tmp_path / "my boards ü" / "größe 1.ini"
    path.parent.mkdir()
    path.write_bytes(read_ini("Arm/vela.ini"))
    options = VelaOptions(U55.accelerator, U55.system_config, U55.memory_mode, str(path))
    assert vela.compile(conv, options) == vela.compile(conv, U55)


def test_user_ini_is_really_read(conv: bytes, tmp_path: Path) -> None:
    path = tmp_path / "board.ini"
    text = read_ini("Arm/vela.ini").decode()
    path.write_text(
        text.replace(
            "[System_Config.Ethos_U55_High_End_Embedded]\ncore_clock=500e6", "[System_Config.Mine]\ncore_clock=250e6"
        )
    )
    options = VelaOptions(U55.accelerator, "Mine", U55.memory_mode, str(path))
    assert vela.compile(conv, options).summary["core_clock"] == 250e6


def test_extra_flags_reach_vela(conv: bytes) -> None:
    flags = vela.normalize_flags("--cop-format COP2 --verbose-allocation")
    compiled = vela.compile(conv, VelaOptions(U85.accelerator, U85.system_config, U85.memory_mode, extra_flags=flags))
    assert compiled.cmd_data[:4] == b"COP2"
    assert len(compiled.log) > len(vela.compile(conv, U85).log)


def test_value_that_vela_does_not_take_is_invalid(conv: bytes) -> None:
    options = VelaOptions(U55.accelerator, U55.system_config, U55.memory_mode, extra_flags=("--cop-format=COP9",))
    with pytest.raises(Invalid) as caught:
        vela.compile(conv, options)
    assert "COP9" in caught.value.why


def _gather_graph() -> tuple[Graph, Value]:
    b = Builder()
    values = b.input(Type(DType.I8, (1, 10, 8)))
    rows = ops.gather(b, values, b.input(Type(DType.I32, (1, 4))))
    return b.finish([ops.reshape(b, rows, (4, 8))]), rows


def _compare_graph() -> tuple[Graph, Value]:
    b = Builder()
    x, y = (b.input(Type(DType.I32, (1, 4, 4, 8))) for _ in range(2))
    larger = ops.greater(b, ops.add(b, x, y), y)
    return b.finish([ops.select(b, larger, x, y)]), larger


def _select_graph() -> tuple[Graph, Value]:
    b = Builder()
    condition = b.input(Type(DType.BOOL, (1, 4, 4, 8)))
    chosen = ops.select(b, condition, *(b.input(Type(DType.I8, (1, 4, 4, 8))) for _ in range(2)))
    return b.finish([chosen]), chosen


def _resize_graph() -> tuple[Graph, Value]:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 4, 4, 8)))
    larger = ops.resize(b, x, scale=(6, 2, 6, 2), offset=(0, 0), border=(0, 0), mode="NEAREST")
    return b.finish([larger]), larger


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (_gather_graph(), "Gather"),
        (_compare_graph(), "Greater"),
        # Vela rewrites before it checks: the names lead back to the SELECT.
        (_select_graph(), "NotEqual"),
        (_resize_graph(), "Resize"),
    ],
    ids=["gather", "greater", "select", "resize x3"],
)
def test_refused_operator_is_found_by_name(made: tuple[Graph, Value], kind: str) -> None:
    graph, culprit = made
    with pytest.raises(Refused) as caught:
        vela.compile(serialize(graph), U55)
    assert caught.value.why == f"Non-passthrough operation ({kind}) could not run on NPU"
    assert caught.value.kinds == (kind,)
    assert caught.value.names == (names(graph)[culprit],)
    assert vela.compile(serialize(graph), U85).outputs


def test_every_operator_of_the_refused_kind_is_a_candidate() -> None:
    b = Builder()
    x, y = (b.input(Type(DType.I32, (1, 4))) for _ in range(2))
    first, second = ops.greater(b, x, y), ops.greater(b, y, x)
    graph = b.finish([ops.logical_and(b, first, second)])
    with pytest.raises(Refused) as caught:
        vela.compile(serialize(graph), U55)
    assert set(caught.value.names) == {names(graph)[first], names(graph)[second]}


@pytest.mark.parametrize("options", [U55, U85], ids=["u55", "u85"])
def test_unsupported_dtype_is_refused_by_kind(options: VelaOptions) -> None:
    b = Builder()
    x = b.input(Type(DType.F32, (1, 4)))
    with pytest.raises(Refused) as caught:
        vela.compile(serialize(b.finish([ops.add(b, x, x)])), options)
    assert caught.value.kinds == ("Add",)
    assert caught.value.names == ()
    assert caught.value.why.endswith("Add: Invalid argument input1; Input data type not supported for this operator")


@pytest.mark.parametrize("data", [b"", b"hello", b"\x08\0\0\0TOSA" + b"x" * 20], ids=["empty", "text", "damaged"])
def test_bytes_that_are_no_tosa_are_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        vela.compile(data, U55)
    assert caught.value.why
    assert caught.value.kinds == caught.value.names == ()


def _crashing_tosa() -> bytes:
    """A tensor with a dimension of 0, which our own builder would not make."""
    serializer_package = pytest.importorskip("tosa_serializer")
    serializer = serializer_package.TosaSerializer("", targetMajor=1, targetMinor=0, targetPatch=0, targetDraft=False)
    block = serializer.currRegion.currBasicBlock
    for name in ("x", "y"):
        block.addTensor(name, [1, 0], serializer_package.DType.INT32)
    block.addInput("x")
    attribute = serializer_package.TosaSerializerAttribute()
    attribute.AddAttribute()
    block.addOperator(serializer_package.Op.ADD, ["x", "x"], ["y"], attribute, None)
    block.addOutput("y")
    return serializer.serialize()


def test_crash_of_vela_is_a_tool_failure_and_the_next_compile_works(conv: bytes) -> None:
    before = vela.compile(conv, U55)
    with pytest.raises(ToolFailed, match="Vela crashed with SIG") as caught:
        vela.compile(_crashing_tosa(), U55)
    assert not isinstance(caught.value, Refused)
    assert vela.compile(conv, U55) == before


def _large_kernel() -> bytes:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 70, 70, 4)))
    weight, bias = b.const(np.ones((4, 65, 65, 4), np.int64), DType.I8), b.const(np.zeros(4, np.int64), DType.I32)
    acc = ops.conv2d(b, x, weight, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=DType.I32)
    return serialize(b.finish([ops.rescale(b, acc, DType.I8, multiplier=[1 << 30], shift=[44])]))


def test_large_kernel_is_taken() -> None:
    assert vela.compile(_large_kernel(), U55).outputs[0].shape == (1, 1, 1, 6, 6, 4)


def test_timeout_reaches_the_worker() -> None:
    with pytest.raises(ToolFailed, match=r"within 0\.001 s"):
        vela.compile(_large_kernel(), U55, timeout=0.001)
    assert vela.compile(_large_kernel(), U55).cmd_data


def test_input_that_nothing_reads_is_left_out_by_vela() -> None:
    b = Builder()
    x = b.input(Type(DType.I32, (1, 4)))
    b.input(Type(DType.I32, (1, 9)))
    compiled = vela.compile(serialize(b.finish([ops.add(b, x, x)])), U55)
    assert [io.shape[-1] for io in compiled.inputs] == [4]


def test_inputs_and_outputs_are_in_the_order_of_the_graph() -> None:
    b = Builder()
    shapes = [(1, 2), (3, 2), (1, 1)]
    x, y, z = (b.input(Type(DType.I32, shape)) for shape in shapes)
    late = ops.add(b, z, y)
    graph = b.finish([ops.add(b, x, x), ops.sub(b, late, x), late])
    for options in (U55, U85):
        compiled = vela.compile(serialize(graph), options)
        assert [io.shape[-2:] for io in compiled.inputs] == shapes
        assert [io.shape[-2:] for io in compiled.outputs] == [(1, 2), (3, 2), (3, 2)]


def test_graph_without_weights() -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 8, 8, 4)))
    pool = ops.max_pool2d(b, x, kernel=(2, 2), stride=(2, 2), pad=(0, 0, 0, 0))
    compiled = vela.compile(serialize(b.finish([pool])), U55)
    assert set(compiled.weight_data) <= {0}
    assert compiled.outputs[0].shape == (1, 1, 1, 4, 4, 4)


def test_operator_that_only_the_rewriting_made_leads_back_to_its_source() -> None:
    b = Builder()
    x = b.input(Type(DType.I48, (1, 4)))
    narrow = ops.rescale(b, x, DType.I32, multiplier=[1 << 14], shift=[20], scale32=False)
    other = b.input(Type(DType.I32, (1, 4)))
    graph = b.finish([narrow, ops.add(b, other, other)])
    with pytest.raises(Refused) as caught:
        vela.compile(serialize(graph), U55)
    assert caught.value.kinds == ("Add",)
    assert names(graph)[narrow] in caught.value.names
