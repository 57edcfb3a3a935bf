"""The reader of .bpte files: what ExecuTorch writes, and typed errors for everything else."""

from __future__ import annotations

import re
from pathlib import Path

import executorch.devtools.bundled_program.schema as schema_package
import numpy as np
import pytest
import torch

from tosaic.core.errors import Invalid, TosaicError
from tosaic.driver.bundle import make_bundle
from tosaic.formats import bpte, pte_schema


@pytest.fixture(scope="module")
def bundle(add_pte: dict[str, bytes]) -> bytes:
    x = torch.arange(5, dtype=torch.int32)
    return make_bundle(add_pte["inline"], [([x], [x + x]), ([x * 3], [x * 6])])


def test_program_and_cases(bundle: bytes, add_pte: dict[str, bytes]) -> None:
    found = bpte.read(bundle)
    assert found.program == add_pte["inline"]
    assert [(suite.method, len(suite.cases)) for suite in found.suites] == [("forward", 2)]
    second = found.find("forward")[1]
    assert (second.inputs[0].tolist(), second.outputs[0].tolist()) == ([0, 3, 6, 9, 12], [0, 6, 12, 18, 24])
    assert second.inputs[0].dtype == np.int32
    assert found.find("backward") == ()


def test_schema_is_the_installed_one() -> None:
    folder = Path(next(iter(schema_package.__path__)))
    text = re.sub(r"//.*", "", (folder / "bundled_program_schema.fbs").read_text())
    tables = {
        name: re.findall(r"(\w+)\s*:", body) for name, body in re.findall(r"table (\w+) \{(.*?)\n?\}", text, re.DOTALL)
    }
    theirs = {"BundledTensor": "Tensor", "BundledValue": "Value"}
    # A union is two fields in the file.
    tables["Value"] = ["val_type", *tables["Value"]]
    for name, fields in pte_schema.BUNDLE_FIELDS.items():
        assert list(fields) == [field for field in tables[theirs.get(name, name)] if field != "force_align"]
    (members,) = re.findall(r"union ValueUnion \{(.*?)\}", text, re.DOTALL)
    assert re.findall(r"\w+", members) == ["Tensor", "Int", "Bool", "Double"]
    assert f'file_identifier "{bpte.IDENTIFIER.decode()}"' in text


def test_channels_last(add_pte: dict[str, bytes]) -> None:
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    case = bpte.read(make_bundle_of(add_pte["inline"], x)).find("forward")[0]
    assert np.array_equal(case.inputs[0], x.numpy())


def make_bundle_of(pte: bytes, x: torch.Tensor) -> bytes:
    """A bundle whose input is stored with channels last, written without ExecuTorch's check of the program."""
    from executorch.devtools.bundled_program.schema import bundled_program_schema as schema
    from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer
    from executorch.exir.scalar_type import ScalarType

    data = x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).contiguous().numpy().tobytes()
    tensor = schema.Tensor(ScalarType.FLOAT, list(x.shape), data, bytes([0, 2, 3, 1]))
    case = schema.BundledMethodTestCase([schema.Value(tensor)], [])
    program = schema.BundledProgram(0, [schema.BundledMethodTestSuite("forward", [case])], pte)

    class Made:
        def serialize_to_schema(self) -> schema.BundledProgram:
            return program

    return bytes(serialize_from_bundled_program_to_flatbuffer(Made()))


def test_damaged_files_are_refused(bundle: bytes) -> None:
    with pytest.raises(Invalid, match="BP08 is missing"):
        bpte.read(b"\x1c\0\0\0BP07" + bytes(16))
    with pytest.raises(Invalid, match=r"the \.bpte file is damaged"):
        bpte.read(bundle[:40])
    with pytest.raises(Invalid, match=r"only .* are left"):
        bpte.read(bundle, max_memory=100)


def test_mutated_files_give_typed_errors(bundle: bytes) -> None:
    rng = np.random.default_rng(0)
    program = bpte.read(bundle).program
    start = bundle.index(program)
    # Tables and tensors; the program has a reader of its own.
    places = np.asarray([*range(8, start), *range(start + len(program), len(bundle))])
    refused = 0
    for _ in range(3000):
        data = bytearray(bundle)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.choice(places))] = int(rng.integers(0, 256))
        try:
            bpte.read(bytes(data))
        except TosaicError:
            refused += 1
    assert refused > 300
