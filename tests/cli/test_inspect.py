"""`tosaic inspect`: every kind of file, told by its content."""

import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from support.cli import Command, Outcome
from tosaic import engines
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import blob as blobs
from tosaic.formats import pte, sidecar
from tosaic.npu.registers import COMMANDS
from tosaic.npu.stream import parse
from tosaic.report.cycles import estimate_delegate


@pytest.fixture
def lone(codes: tuple[Path, Outcome], tmp_path: Path) -> Path:
    """A .pte with int8 borders, without its sidecar and under a name that says nothing."""
    path = tmp_path / "firmware.bin"
    shutil.copy(codes[0], path)
    return path


@pytest.fixture
def blob(codes: tuple[Path, Outcome], tmp_path: Path) -> Path:
    path = tmp_path / "first.dat"
    path.write_bytes(pte.read(codes[0].read_bytes()).find().delegates[0].blob)
    return path


def test_pte(tosaic: Command, codes: tuple[Path, Outcome]) -> None:
    done = tosaic("inspect", codes[0], env={"COLUMNS": "120"})
    assert done.code == 0, done.stderr
    text = " ".join(done.stdout.split())
    border = codes[1].json["inputs"][0]
    for words in (
        "ExecuTorch program",
        "sidecar fits",
        "method `forward`",
        f"input 0 `x` int8 [1, 8, 8, 3] nhwc, scale {border['scale']:.9g}, zero point {border['zero_point']}",
        "`aten::sort.values` x1",
        "delegate 1 of `forward`",
        "backend `EthosUBackend`",
        "target ethos-u55-128",
        "weight_data",
        "format COP1",
        "input 0 [1, 1, 1, 8, 8, 3] 1 byte",
        "`CONV2D` x1",
        "of the MACs used), an estimate",
        "offset operation cycles limited by MACs used bytes read and written",
    ):
        assert words in text, words


def test_pte_as_json(tosaic: Command, codes: tuple[Path, Outcome]) -> None:
    found = tosaic("inspect", codes[0], "--json").json
    assert (found["schema"], found["kind"], found["bytes"]) == ("tosaic-inspect/2", "pte", codes[0].stat().st_size)
    (method,) = found["pte"]["methods"]
    report = codes[1].json
    for side in ("inputs", "outputs"):
        assert [port["scale"] for port in method[side]] == [border["scale"] for border in report[side]]
        assert [port["bytes"] for port in method[side]] == [192, 288] if side == "inputs" else [288, 288]
    for delegate, compiled in zip(method["delegates"], report["delegates"], strict=True):
        assert delegate["vela_cycles"] == compiled["vela"]["cycles_total"]
        assert delegate["blob"]["estimate"] == compiled["estimate"]
        assert sum(row["macs"] for row in compiled["estimate"]["rows"]) == compiled["estimate"]["macs"]
    assert method["operators"] == report["cpu_ops"]
    assert sum(method["planned"]) == sum(report["memory"]["planned"])
    assert sum(d["blob"]["blocks"]["weight_data"] for d in method["delegates"]) == report["memory"]["network"]
    assert [d["tosa"]["ops"] for d in method["delegates"]] == [d["tosa_ops"] for d in report["delegates"]]


def test_pte_alone_still_tells_its_borders(tosaic: Command, lone: Path, codes: tuple[Path, Outcome]) -> None:
    found = tosaic("inspect", lone, "--json").json["pte"]
    assert found["sidecar"] == "none"
    wanted = [(border["name"], border["scale"]) for border in codes[1].json["inputs"]]
    assert [(port["name"], port["scale"]) for port in found["methods"][0]["inputs"]] == wanted
    assert found["methods"][0]["delegates"][0]["tosa"] is None


def test_a_foreign_sidecar_is_not_used(tosaic: Command, lone: Path, floats: tuple[Path, Outcome]) -> None:
    shutil.copy(floats[0].with_suffix(".tosaic"), lone.with_suffix(".tosaic"))
    found = tosaic("inspect", lone, "--json").json["pte"]
    assert found["sidecar"] == "not used: the .tosaic file does not belong to this .pte"
    lone.with_suffix(".tosaic").write_bytes(b"PK\x03\x04 garbage")
    assert tosaic("inspect", lone, "--json").json["pte"]["sidecar"].startswith("not used")


def test_blob(tosaic: Command, blob: Path) -> None:
    done = tosaic("inspect", blob)
    assert done.code == 0, done.stderr
    assert "Ethos-U delegate" in done.stdout and "cmd_data" in done.stdout and "[1, 1, 1, 8, 8, 3]" in done.stdout
    found = tosaic("inspect", blob, "--json").json["blob"]
    assert found["scratch"] > 0 and found["commands"] == "COP1" and len(found["inputs"]) == 1


def test_tosa(tosaic: Command, codes: tuple[Path, Outcome]) -> None:
    for path in (codes[0].parent / "all").glob("*.tosa"):
        found = tosaic("inspect", path, "--json").json
        assert found["kind"] == "tosa" and found["tosa"]["bytes"] == path.stat().st_size
        done = tosaic("inspect", path)
        assert "TOSA graph" in done.stdout and all(kind in done.stdout for kind in found["tosa"]["ops"])
        text = tosaic("inspect", path, "--text").stdout
        assert text.startswith("graph(%x0: i8[") and all(f"{kind}(" in text for kind in found["tosa"]["ops"])


def test_sidecar(tosaic: Command, codes: tuple[Path, Outcome]) -> None:
    path = codes[0].with_suffix(".tosaic")
    done = tosaic("inspect", path)
    assert done.code == 0, done.stderr
    assert "Tosaic sidecar" in done.stdout and "samples" in done.stdout and "NPU cycles" in done.stdout
    found = tosaic("inspect", path, "--json").json
    assert found["sidecar"]["target"] == "ethos-u55-128" and found["sidecar"]["samples"] == 1
    assert len(found["sidecar"]["delegates"]) == 2
    assert found["sidecar"]["pte_sha256"] == tosaic("inspect", codes[0], "--json").json["sha256"]


def test_text_needs_a_graph(tosaic: Command, lone: Path, codes: tuple[Path, Outcome]) -> None:
    assert tosaic("inspect", codes[0], "--text").stdout.count("graph(") == 2
    done = tosaic("inspect", lone, "--text")
    assert done.code == 2 and "this file contains no TOSA graph" in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, this is text",
        b"PK\x03\x04 but no zip",
        b"\0\0\0\0ET12",
        b"\0\0\0\0TOSA\xff\xff\xff\xff",
        b"vela_bin_stream\0",
    ],
    ids=["empty", "text", "zip", "pte", "tosa", "blob"],
)
def test_garbage(tosaic: Command, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thing"
    path.write_bytes(content)
    done = tosaic("inspect", path)
    assert done.code == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and str(path) in done.stderr and "Traceback" not in done.stderr


def test_truncated_files(tosaic: Command, tmp_path: Path, codes: tuple[Path, Outcome], blob: Path) -> None:
    tosa = next((codes[0].parent / "all").glob("*.tosa"))
    for source in (codes[0], codes[0].with_suffix(".tosaic"), blob, tosa):
        data = source.read_bytes()
        path = tmp_path / "cut"
        path.write_bytes(data[: len(data) * 2 // 3])
        done = tosaic("inspect", path)
        assert done.code == 2, source


def test_missing_file(tosaic: Command, tmp_path: Path) -> None:
    done = tosaic("inspect", tmp_path / "nothing.pte")
    assert done.code == 2 and "there is no file" in done.stderr


def test_no_torch_is_needed(codes: tuple[Path, Outcome]) -> None:
    code = (
        "import sys\nfrom tosaic.cli import app\n"
        "try:\n    app()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "assert not {'torch', 'executorch', 'torchao'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, "inspect", str(codes[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_commands_of_every_delegate(tosaic: Command, codes: tuple[Path, Outcome], blob: Path) -> None:
    done = tosaic("inspect", codes[0], "--commands")
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    titles = [line for line in lines if line.startswith("# ")]
    assert [title.partition(",")[0] for title in titles] == ["# delegate 0 of `forward`", "# delegate 1 of `forward`"]
    assert all("ethos-u55-128" in title for title in titles)
    assert sum("NPU_OP_STOP" in line for line in lines) == 2
    assert sum("NPU_OP_CONV " in line for line in lines) >= 1
    first = tosaic("inspect", blob, "--commands").stdout.splitlines()
    assert first[1:] == lines[1 : lines.index(titles[1])]


def test_commands_where_there_are_none(tosaic: Command, codes: tuple[Path, Outcome]) -> None:
    done = tosaic("inspect", codes[0].with_suffix(".tosaic"), "--commands")
    assert (done.code, done.stdout) == (2, "")
    assert "no Ethos-U command stream" in done.stderr


@pytest.mark.parametrize("kind", ["tosa", "vgf", "blob", "commands"])
def test_the_limit_holds_for_every_reader(
    tosaic: Command, codes: tuple[Path, Outcome], tmp_path: Path, kind: str
) -> None:
    """A limit that the bytes of a file keep, but not what is made of them."""
    probe = Path(engines.__file__).with_name("probe.pte").read_bytes()
    data = {
        "tosa": sidecar.read(codes[0].with_suffix(".tosaic").read_bytes()).delegates[0].tosa,
        "vgf": pte.read(probe).find().delegates[0].blob,
        "blob": pte.read(codes[0].read_bytes()).find().delegates[0].blob,
    }
    path = tmp_path / "x.bin"
    path.write_bytes(data["blob" if kind == "commands" else kind])
    flags = ["--commands"] if kind == "commands" else []
    assert tosaic("inspect", path, *flags).code == 0
    done = tosaic("inspect", path, *flags, "--max-memory", path.stat().st_size + 64)
    assert done.code == 2, done.stdout
    assert "bytes of memory" in done.stderr and "`--max-memory`" in done.stderr


def test_an_estimate_keeps_no_registers_and_counts_its_rows(codes: tuple[Path, Outcome]) -> None:
    """A command of four bytes starts an operation, which holds a copy of all registers while it is looked at."""
    stream = blobs.unpack(pte.read(codes[0].read_bytes()).find().delegates[0].blob).cmd_data
    words = list(parse(stream).words)
    wait = next(c.opcode for c in COMMANDS[parse(stream).accelerator.family].values() if c.name == "OP_KERNEL_WAIT")
    more = [*words[:-1], *[wait] * 50_000, words[-1]]
    head, tag = stream[: -4 * len(words) - 4], stream[-4 * len(words) - 4]
    tag |= (len(more) >> 16) << 8 | (len(more) & 0xFFFF) << 16
    data = head + struct.pack(f"<{1 + len(more)}I", tag, *more)
    assert len(parse(data).words) == len(more)
    tracemalloc.start()
    found = estimate_delegate(data, ())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None and peak < 16 << 20
    with pytest.raises(Invalid, match="the estimate of a command stream needs"):
        estimate_delegate(data, (), Budget(0, 1 << 20))
