"""`tosaic compile --precision`: 16-bit inputs and outputs, modules with another precision, and what is refused."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from support.cli import Command, Outcome

MODEL = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))

torch.manual_seed(0)
model = Small().eval()
inputs = (torch.randn(1, 3, 8, 8),)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def wide(tosaic: Command, small: Path) -> Outcome:
    """The model with 16-bit activations, inputs and outputs, and 4-bit weights in one of its layers."""
    options = ["--precision", "a16w8", "--precision-for", "head=a8w4", "--io", "int16"]
    header = ["--header", small.with_name("small.h"), "-o", small.with_suffix(".pte")]
    return tosaic("compile", small, *options, *header, "--json")


def test_the_report_tells(wide: Outcome) -> None:
    assert wide.code == 0, wide.stderr
    assert wide.json["options"]["precision"] == "a16w8"
    assert wide.json["options"]["precision_for"] == "head=a8w4"
    assert [t["dtype"] for t in (*wide.json["inputs"], *wide.json["outputs"])] == ["int16", "int16"]
    assert wide.json["cpu_ops"] == {}


def test_a_file_of_int16_numbers_runs(tosaic: Command, wide: Outcome, small: Path, tmp_path: Path) -> None:
    (border,) = wide.json["inputs"]
    given = np.random.default_rng(0).integers(-9000, 9000, border["shape"]).astype(np.int16)
    np.savez(tmp_path / "in.npz", x=given)
    pte, found = small.with_suffix(".pte"), {}
    for engine in ("npu", "tosa"):
        output = tmp_path / f"{engine}.npz"
        done = tosaic("run", pte, "--input", tmp_path / "in.npz", "--engine", engine, "-o", output)
        assert done.code == 0, done.stderr
        with np.load(output) as saved:
            found[engine] = saved["output_0"]
    assert found["npu"].dtype == np.int16
    assert np.array_equal(found["npu"], found["tosa"])
    done = tosaic("verify", pte)
    assert done.code == 0, done.stderr
    assert "PASS: bit-exact" in done.stdout


def test_the_header_quantizes_to_int16_as_torch(wide: Outcome, small: Path, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (border,) = wide.json["inputs"]
    scale = border["scale"]
    numbers = [-3.3, -0.5, 0.0, scale * 2.5, scale * 3.5, 2.7, 1e9]
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text(
        '#include <stdio.h>\n#include <stdlib.h>\n#include "small.h"\n'
        "int main(int argc, char **argv)\n{\n"
        '    printf("%u\\n", SMALL_INPUT0_BYTES);\n'
        "    for (int i = 1; i < argc; i++) {\n"
        "        SMALL_INPUT0_TYPE q = small_input0_quantize(strtof(argv[i], NULL));\n"
        '        printf("%d\\n", q);\n    }\n    return 0;\n}\n'
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{small.parent}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(program), "-lm"], check=True, timeout=60)
    done = subprocess.run([str(program), *map(repr, numbers)], check=True, capture_output=True, text=True, timeout=10)
    wanted = torch.ops.quantized_decomposed.quantize_per_tensor(
        torch.tensor(numbers), scale, 0, -(2**15), 2**15 - 1, torch.int16
    )
    assert list(map(int, done.stdout.split())) == [2 * 3 * 8 * 8, *wanted.tolist()]


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (["--precision-for", "haed=a16w8"], "no module or class `haed`", "did you mean `head`"),
        (["--precision-for", "head"], "`head` is not a module and its precision", "MODULE=PRECISION"),
        (["--precision-for", "head=w4"], "the precision of `head` is `w4`", "int8, a16w8, a8w4, float"),
        (["--precision-for", "head=a8w4", "--precision-for", "head=int8"], "`head` is given twice", "once"),
        (["--precision", "a16w8", "-t", "TOSA-1.0+FP"], "nothing is quantized", "leave out the precision"),
    ],
)
def test_refused(tosaic: Command, small: Path, tmp_path: Path, words: list[str], message: str, fix: str) -> None:
    done = tosaic("compile", small, "-o", tmp_path / "never.pte", *words)
    text = " ".join(done.stderr.split())
    assert done.code == 2
    assert message in text and fix in text
    assert list(tmp_path.iterdir()) == []
