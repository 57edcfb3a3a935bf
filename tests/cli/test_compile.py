"""`tosaic compile`: files, summary, JSON and header."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support.cli import Command, Outcome
from tosaic.api import build as api
from tosaic.api import model_file
from tosaic.core.errors import Invalid
from tosaic.core.output import write_files
from tosaic.core.targets import find
from tosaic.formats import pte, sidecar
from tosaic.formats.tosa_reader import read as read_tosa
from tosaic.ir.text import to_text
from tosaic.passes import PASSES

REPORT = {
    "schema",
    "model",
    "target",
    "options",
    "pte_bytes",
    "delegates",
    "cpu_ops",
    "reasons",
    "inputs",
    "outputs",
    "memory",
    "memory_uses",
    "data_bytes",
    "verify",
    "seconds",
    "warnings",
    "files",
}


def test_summary_tells_all(floats: tuple[Path, Outcome], cpu_line: int, tiny: Path) -> None:
    path, done = floats
    assert done.code == 0, done.stderr
    text = " ".join(done.stdout.split())
    for words in (
        "tiny for ethos-u55-128",
        "`Ethos_U55_High_End_Embedded`, `Shared_Sram`",
        "delegate 0 12 nodes",
        "delegate 1 10 nodes",
        "`aten::sort.values` x1",
        "bytes: scratch",
        "tensors of the CPU",
        "bytes: the program",
        "MHz), an estimate",
        "input 1 `y` float32 [1, 8, 6, 6] nchw",
        "export 0.",
        "why at most 1024 numbers are put in order",
        "fix split the dimension",
        "fix compile with `--io int8`, for a program with quantized inputs and outputs",
        "warning: no calibration data: ranges come from the example input only; pass samples with `--calibration`",
        f"tiny.pte` ({path.stat().st_size:,} bytes)",
    ):
        assert words in text, words
    assert 'io="int8"' not in done.stdout and "Vela's" not in done.stdout
    head = [line.split()[0] for line in done.stdout.splitlines()[1:4]]
    assert head == ["SRAM", "flash", "NPU"]
    assert f"{tiny}:{cpu_line}" in done.stdout.replace("\n", "").replace(" ", "")
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["load", "export", "quantize", "compile", "pack"]
    assert "\x1b" not in done.stdout + done.stderr
    sidecar.read(path.with_suffix(".tosaic").read_bytes()).check(path.read_bytes())


def test_json_has_the_versioned_schema(codes: tuple[Path, Outcome], cpu_line: int) -> None:
    path, done = codes
    assert done.code == 0, done.stderr
    report = done.json
    assert set(report) == REPORT
    assert (report["schema"], report["model"], report["target"]) == ("tosaic-report/3", "tiny", "ethos-u55-128")
    assert report["pte_bytes"] == path.stat().st_size == report["files"][str(path)]
    assert [border["shape"] for border in report["inputs"]] == [[1, 8, 8, 3], [1, 6, 6, 8]]
    assert all(border["dtype"] == "int8" and border["scale"] > 0 for border in report["inputs"] + report["outputs"])
    (left,) = [reason for reason in report["reasons"] if not reason["is_io"]]
    assert left["op"] == "aten.sort.default" and left["where"].endswith(f"tiny.py:{cpu_line}")
    assert report["verify"] is None
    assert report["memory_uses"]["flash"] == {"the program": report["pte_bytes"]}
    assert report["memory_uses"]["SRAM"]["scratch"] == report["memory"]["scratch"]
    assert report["memory"]["network_in"] == "OffChipFlash" and report["memory"]["scratch_in"] == "Sram"
    assert sum(delegate["vela"]["nn_macs"] for delegate in report["delegates"]) == 9216


def test_intermediates_are_kept(codes: tuple[Path, Outcome]) -> None:
    folder = codes[0].parent / "all"
    graphs = sorted(folder.glob("*.tosa"))
    assert len(graphs) == len(list(folder.glob("*.vela.bin"))) == 2
    beside = sidecar.read(codes[0].with_suffix(".tosaic").read_bytes())
    assert [path.read_bytes() for path in graphs] == [delegate.tosa for delegate in beside.delegates]
    assert [path.name.split("_")[1] for path in graphs] == ["tag000", "tag001"]


def test_intermediates_show_the_graph_after_each_pass(codes: tuple[Path, Outcome]) -> None:
    folder = codes[0].parent / "all"
    stages = ["lower", *(step.name for step in PASSES if step.when(find("ethos-u55-128")))]
    for path in folder.glob("*.tosa"):
        texts = [path.with_name(f"{path.stem}.{i}_{name}.tosa.txt").read_text() for i, name in enumerate(stages)]
        assert texts[-1] == to_text(read_tosa(path.read_bytes()))


def test_header_compiles_and_quantizes_as_torch(codes: tuple[Path, Outcome], tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    border = codes[1].json["inputs"][0]
    numbers = [-1e9, -3.3, -0.5, 0.0, 0.01, border["scale"] * 2.5, border["scale"] * 3.5, 2.7, 1e9, float("nan")]
    source = tmp_path / "main.c"
    source.write_text(
        '#include <stdio.h>\n#include <stdlib.h>\n#include "tiny.h"\n'
        "int main(int argc, char **argv)\n{\n"
        "    static const int shape[TINY_INPUT0_RANK] = TINY_INPUT0_SHAPE;\n"
        '    printf("%d %d %u %d %.9g %s\\n", TINY_INPUT_COUNT, shape[1], TINY_INPUT0_BYTES, TINY_INPUT0_ZERO_POINT,'
        " (double)TINY_INPUT0_SCALE, TINY_INPUT0_LAYOUT);\n"
        "    for (int i = 1; i < argc; i++) {\n"
        "        TINY_INPUT0_TYPE q = tiny_input0_quantize(strtof(argv[i], NULL));\n"
        '        printf("%d %.9g\\n", q, (double)tiny_input0_dequantize(q));\n    }\n'
        "    return TINY_OUTPUT1_QUANTIZED ? 0 : 1;\n}\n"
    )
    program = tmp_path / "main"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{codes[0].parent}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(program), "-lm"], check=True, timeout=60)
    arguments = [repr(number) for number in numbers]
    done = subprocess.run([str(program), *arguments], check=True, capture_output=True, text=True, timeout=10)
    first, *rows = done.stdout.splitlines()
    scale, zero = border["scale"], border["zero_point"]
    count, height, size, zero_point, told, layout = first.split()
    assert (count, height, size, zero_point, layout) == ("2", "8", "192", str(zero), "nhwc")
    assert torch.tensor(float(told)) == torch.tensor(scale)
    values = torch.tensor(numbers[:-1])
    wanted = torch.ops.quantized_decomposed.quantize_per_tensor(values, scale, zero, -128, 127, torch.int8)
    back = torch.ops.quantized_decomposed.dequantize_per_tensor(wanted, scale, zero, -128, 127, torch.int8)
    assert [int(row.split()[0]) for row in rows] == [*wanted.tolist(), -128]
    torch.testing.assert_close(torch.tensor([float(row.split()[1]) for row in rows[:-1]]), back, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+FP"])
def test_tosa_targets_give_tosa_files(
    tosaic: Command, tiny: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = tosaic("compile", tiny, "-t", target)
    assert done.code == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny_0.tosa", "tiny_1.tosa"]
    kinds = {op.kind for path in tmp_path.iterdir() for op in read_tosa(path.read_bytes()).ops}
    assert {"CONV2D", "ADD"} <= kinds
    assert ("RESCALE" in kinds) == ("INT" in target)


def test_a_tosa_target_gives_a_pte_on_request(tosaic: Command, tmp_path: Path) -> None:
    done = tosaic("compile", "add", "-t", "TOSA-1.0+INT", "-o", tmp_path / "add.pte", "--no-sidecar")
    assert done.code == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["add.pte"]
    (delegate,) = pte.read((tmp_path / "add.pte").read_bytes()).find().delegates
    assert delegate.id == "TOSABackend"
    assert [op.kind for op in read_tosa(delegate.blob).ops] == ["ADD"]


def test_nothing_is_delegated_on_request(tosaic: Command, tmp_path: Path) -> None:
    done = tosaic("compile", "add", "--no-delegate", "-o", tmp_path / "add.pte", "--json")
    assert done.code == 0, done.stderr
    assert done.json["cpu_ops"] == {"aten::add.out": 1} and done.json["delegates"] == []
    assert done.json["reasons"][0]["why"] == "delegation is switched off"


def test_memory_mode_is_used(tosaic: Command, tmp_path: Path) -> None:
    options = ["--memory-mode", "Sram_Only", "--system-config", "Ethos_U55_Deep_Embedded"]
    done = tosaic("compile", "add", *options, "-o", tmp_path / "add.pte", "--json")
    assert done.json["options"]["memory_mode"] == "Sram_Only"
    assert done.json["memory"]["network_in"] == "Sram"


@pytest.mark.parametrize("kind", ["npz", "npy", "pt", "folder"])
def test_calibration_from_files(tosaic: Command, tmp_path: Path, kind: str) -> None:
    model = tmp_path / "relu.py"
    model.write_text("import torch\nmodel = torch.nn.ReLU().eval()\ninputs = torch.linspace(0, 1, 4).reshape(2, 2)\n")
    samples = torch.linspace(-4.0, 12.0, 12).reshape(3, 2, 2)
    path = tmp_path / ("data" if kind == "folder" else f"data.{kind}")
    match kind:
        case "npz":
            np.savez(path, x=samples.numpy())
        case "npy":
            np.save(path, samples.numpy())
        case "pt":
            torch.save([sample.clone() for sample in samples], path)
        case _:
            path.mkdir()
            for i, sample in enumerate(samples):
                np.save(path / f"{i}.npy", sample.numpy())
    options = ["--io", "int8", "-t", "TOSA-1.0+INT", "-o", tmp_path / "relu.tosa", "--json"]
    done = tosaic("compile", model, "--calibration", path, *options)
    assert done.code == 0, done.stderr
    assert done.json["warnings"] == []
    (border,) = done.json["inputs"]
    assert border["scale"] == pytest.approx(16.0 / 255.0, rel=1e-3)


def test_unused_calibration_is_told(tosaic: Command, tmp_path: Path) -> None:
    torch.save([torch.ones(5, dtype=torch.int32)], tmp_path / "data.pt")
    done = tosaic("compile", "add", "--calibration", tmp_path / "data.pt", "-o", tmp_path / "add.pte", "--json")
    assert done.json["warnings"] == ["the calibration data was not used: nothing is quantized"]


def test_one_tensor_given_twice_is_two_inputs(tosaic: Command, tmp_path: Path) -> None:
    source = tmp_path / "twice.py"
    source.write_text(
        "import torch\n"
        "class model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.eval()\n"
        "    def forward(self, x, y):\n        return x - y\n"
        "x = torch.ones(4, dtype=torch.int32)\n"
        "inputs = (x, x)\n"
    )
    done = tosaic("compile", source, "-o", tmp_path / "twice.pte")
    assert done.code == 0, done.stderr
    plan = pte.read((tmp_path / "twice.pte").read_bytes()).find()
    first, second = (plan.values[i] for i in plan.inputs)
    assert isinstance(first, pte.Tensor) and isinstance(second, pte.Tensor)
    assert plan.inputs[0] != plan.inputs[1] and first.allocation != second.allocation
    module, inputs = model_file.load(str(source))
    program = api.compile(module, inputs, "TOSA-1.0+INT")
    one, zero = torch.ones(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    assert program.run(one, zero)[0].tolist() == [1, 1, 1, 1]


def test_codes_that_a_cpu_operator_reads_are_dequantized_for_it(tiny: Path) -> None:
    module, inputs = model_file.load(str(tiny))
    assert inputs is not None
    floats = api.compile(module, inputs, "TOSA-1.0+INT")
    codes = api.compile(module, inputs, "TOSA-1.0+INT", io="int8")
    given = [
        torch.ops.quantized_decomposed.quantize_per_tensor(x, b.scale, b.zero_point, -128, 127, torch.int8)
        for x, b in zip(inputs, codes.inputs, strict=True)
    ]
    wanted = floats.run(*inputs)
    for got, border, want in zip(codes.run(*given), codes.outputs, wanted, strict=True):
        assert border.scale is not None and border.zero_point is not None
        numbers = (torch.from_numpy(got).float() - border.zero_point) * border.scale
        torch.testing.assert_close(numbers, torch.from_numpy(want))
    assert "aten::sort.values" in codes.cpu_ops


def test_narrow_terminals_get_every_word(tosaic: Command, tmp_path: Path) -> None:
    path = tmp_path / "add.pte"
    wide = tosaic("compile", "add", "--no-delegate", "-o", path, env={"COLUMNS": "200"})
    narrow = tosaic("compile", "add", "--no-delegate", "-o", path, env={"COLUMNS": "36"})
    assert max(map(len, narrow.stdout.splitlines())) <= 36

    def squeeze(text: str) -> str:
        return re.sub(r"\d\.\ds", "", "".join(text.split()))

    assert squeeze(narrow.stdout) == squeeze(wide.stdout)


def test_files_are_all_written_or_none(tmp_path: Path) -> None:
    good, blocked = tmp_path / "good.pte", tmp_path / "file" / "x.h"
    good.write_bytes(b"old")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Invalid, match="cannot write"):
        write_files({good: b"new", blocked: b"text"})
    assert good.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "good.pte"]
    write_files({good: b"new", tmp_path / "deep" / "er" / "y": b"1"})
    assert good.read_bytes() == b"new" and (tmp_path / "deep" / "er" / "y").read_bytes() == b"1"


def test_a_process_of_its_own_prints_no_noise(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from tosaic.cli import main; main()",
        "compile",
        "softmax",
        "-t",
        "ethos-u55-128",
        "-o",
        "x.pte",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["load", "export", "quantize", "compile", "pack"]
    assert done.stdout.startswith("softmax for ethos-u55-128\n") and "\x1b" not in done.stdout


def test_the_python_api_prints_no_noise() -> None:
    code = """
import tosaic, torch
from tosaic.ethosu import EthosUPartitioner
from tosaic.quantizer import EthosUQuantizer
program = tosaic.compile(torch.nn.Linear(4, 2).eval(), (torch.randn(1, 4),))
assert program.run(torch.randn(1, 4))[0].shape == (1, 2) and program.verify().ok
import logging, warnings
assert not logging.root.manager.disable and logging.getLogger("torchao").level == logging.NOTSET
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
