"""The .pte reader against exir's own, against the installed schema, and against damaged files."""

import copy
import random
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import executorch
import numpy as np
import pytest
import torch
from executorch.exir import schema
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary, serialize_pte_binary
from executorch.exir.scalar_type import ScalarType

from tosaic.core.dtypes import BY_SCALAR_TYPE
from tosaic.core.errors import Invalid
from tosaic.formats import pte, pte_schema
from tosaic.formats.pte import Plan, Pte, read

SCHEMA = Path(executorch.__path__[0]) / "schema"


@pytest.fixture(params=["add", "conv", "softmax", "mixed"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["inline", "segment"])
def data(name: str, request: pytest.FixtureRequest) -> bytes:
    made = request.getfixturevalue(f"{name}_pte")
    return made if isinstance(made, bytes) else made[request.param]


def parse_schema() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The fields of each table and the members of each union in the installed program.fbs."""
    text = re.sub(r"//[^\n]*", "", (SCHEMA / "program.fbs").read_text())
    blocks = re.findall(r"(table|union)\s+(\w+)\s*\{(.*?)\}", text, re.DOTALL)
    unions = {name: re.findall(r"\w+", body) for kind, name, body in blocks if kind == "union"}
    tables: dict[str, list[str]] = {}
    for kind, name, body in blocks:
        if kind == "table":
            fields = re.findall(r"(\w+)\s*:\s*([\w\[\]]+)", re.sub(r"\([^)]*\)", "", body))
            tables[name] = [
                slot for field, type in fields for slot in ([f"{field}_type", field] if type in unions else [field])
            ]
    return tables, unions


def test_field_numbers_are_those_of_the_installed_schema() -> None:
    tables, unions = parse_schema()
    assert {name: list(fields) for name, fields in pte_schema.FIELDS.items()} == {
        name: tables[name] for name in pte_schema.FIELDS
    }
    assert {name: list(members) for name, members in pte_schema.UNIONS.items()} == unions
    # Every table is read but the ones that only help people.
    assert tables.keys() - pte_schema.FIELDS.keys() == {
        "ContainerMetadata",
        "Null",
        "Frame",
        "FrameList",
        "NonConstBufferDevice",
    }
    assert f'file_identifier "{pte_schema.IDENTIFIER.decode()}"' in (SCHEMA / "program.fbs").read_text()


def test_dtypes_are_those_of_the_installed_schema() -> None:
    numbers = re.findall(r"^\s+(\w+) = (\d+),$", (SCHEMA / "scalar_type.fbs").read_text(), re.MULTILINE)
    # Complex numbers stand there as a comment, and exir writes them all the same.
    assert {int(number) for _, number in numbers} | {9, 10} == set(BY_SCALAR_TYPE)
    for number, element in BY_SCALAR_TYPE.items():
        name = element.name
        assert getattr(torch, name).itemsize == element.bytes, name
        assert ScalarType(number).name.lower().replace("_", "") in {
            name.replace("_", ""),
            {"uint8": "byte", "int8": "char", "int16": "short", "int32": "int", "int64": "long"}.get(name, ""),
            {"float16": "half", "float32": "float", "float64": "double"}.get(name, ""),
            {"complex64": "complexfloat", "complex128": "complexdouble"}.get(name, ""),
        }


def test_same_as_exir(data: bytes) -> None:
    ours, theirs = read(data), deserialize_pte_binary(data)
    assert ours.version == theirs.program.version
    assert ours.size == len(data)
    assert [plan.name for plan in ours.plans] == [plan.name for plan in theirs.program.execution_plan]
    for mine, other in zip(ours.plans, theirs.program.execution_plan, strict=True):
        assert_same_plan(mine, other, theirs)


def assert_same_plan(mine: Plan, other: schema.ExecutionPlan, file: PTEFile) -> None:
    assert list(mine.inputs) == other.inputs
    assert list(mine.outputs) == other.outputs
    assert list(mine.buffer_sizes) == other.non_const_buffer_sizes
    assert [(op.name, op.overload) for op in mine.operators] == [(op.name, op.overload) for op in other.operators]
    for delegate, expected in zip(mine.delegates, other.delegates, strict=True):
        assert delegate.id == expected.id
        assert delegate.blob == bytes(file.program.backend_delegate_data[expected.processed.index].data)
        assert delegate.compile_specs == tuple((spec.key, bytes(spec.value)) for spec in expected.compile_specs)
    for chain, expected in zip(mine.chains, other.chains, strict=True):
        assert [describe(step) for step in chain.instructions] == [
            (type(step.instr_args).__name__, *vars(step.instr_args).values()) for step in expected.instructions
        ]
    for value, expected in zip(mine.values, other.values, strict=True):
        assert_same_value(value, expected.val, file)


def describe(step: pte.Instruction) -> tuple[object, ...]:
    fields = (getattr(step, name) for name in step.__dataclass_fields__)
    return (type(step).__name__, *(list(field) if isinstance(field, tuple) else field for field in fields))


def assert_same_value(mine: pte.Value, other: object, file: PTEFile) -> None:
    match other:
        case schema.Tensor():
            assert isinstance(mine, pte.Tensor)
            assert mine.dtype == BY_SCALAR_TYPE[other.scalar_type].name
            assert (list(mine.shape), list(mine.dim_order)) == (other.sizes, list(other.dim_order))
            assert mine.dynamism == ("static", "bound", "unbound")[other.shape_dynamism]
            place = other.allocation_info
            assert mine.allocation == (place and pte.Allocation(place.memory_id, place.memory_offset))
            if not other.data_buffer_idx:
                assert mine.data is None
            else:
                # exir's reader keeps the padding.
                assert mine.data is not None
                assert len(mine.data) == mine.nbytes
                assert bytes(file.program.constant_buffer[other.data_buffer_idx].storage).startswith(mine.data)
        case schema.Null():
            assert mine is None
        case schema.Int() | schema.Bool() | schema.Double() | schema.String():
            (expected,) = vars(other).values()
            assert mine == expected
            assert type(mine) is type(expected)
        case _:
            assert type(mine).__name__ == type(other).__name__
            assert list(getattr(mine, "items")) == getattr(other, "items")  # noqa: B009


def test_blob_is_aligned_and_where_it_says(add_pte: dict[str, bytes], conv_pte: dict[str, bytes]) -> None:
    for made in (add_pte, conv_pte):
        for place, data in made.items():
            for delegate in read(data).find().delegates:
                assert delegate.location == place
                assert delegate.offset % 16 == 0
                assert data[delegate.offset :].startswith(delegate.blob)
                assert delegate.blob.startswith(b"vela_bin_stream\0")
    assert len(read(conv_pte["inline"]).find().delegates) == 2


def write(program: schema.Program, **parts: object) -> bytes:
    return bytes(serialize_pte_binary(PTEFile(program=program, **parts)))


def make_program(*values: object, **fields: object) -> schema.Program:
    plan = schema.ExecutionPlan(
        name="forward",
        container_meta_type=schema.ContainerMetadata("", ""),
        values=[schema.EValue(value) for value in values],
        inputs=[],
        outputs=[],
        chains=[schema.Chain([], [], [], None)],
        operators=[],
        delegates=[],
        non_const_buffer_sizes=[0, 64],
    )
    for name, value in fields.items():
        setattr(plan, name, value)
    return schema.Program(0, [plan], [schema.Buffer(b"")], [], [], schema.SubsegmentOffsets(0, []))


def make_tensor(**changes: object) -> schema.Tensor:
    fields = {
        "scalar_type": ScalarType.FLOAT,
        "storage_offset": 0,
        "sizes": [2, 3],
        "dim_order": [0, 1],
        "requires_grad": False,
        "layout": 0,
        "data_buffer_idx": 0,
        "allocation_info": schema.AllocationDetails(1, 16, 0),
        "shape_dynamism": schema.TensorShapeDynamism.STATIC,
    }
    return schema.Tensor(**(fields | changes))


def test_every_kind_of_value() -> None:
    values = [
        schema.Null(),
        schema.Int(-(1 << 62)),
        schema.Bool(True),
        schema.Double(-0.1),
        schema.String("grün"),
        schema.IntList([1, 1]),
        schema.DoubleList([1.5, -2.5]),
        schema.BoolList([True, False]),
        make_tensor(),
        schema.TensorList([8]),
        schema.OptionalTensorList([-1, 8]),
    ]
    assert read(write(make_program(*values))).find().values == (
        None,
        -(1 << 62),
        True,
        -0.1,
        "grün",
        pte.IntList((1, 1)),
        pte.DoubleList((1.5, -2.5)),
        pte.BoolList((True, False)),
        pte.Tensor("float32", (2, 3), (0, 1), pte.Allocation(1, 16)),
        pte.TensorList((8,)),
        pte.OptionalTensorList((-1, 8)),
    )


def test_initial_data_of_a_mutable_tensor_and_named_data() -> None:
    from executorch.exir._serialize._named_data_store import NamedDataStore

    store = NamedDataStore()
    store.add_named_data("weights", b"12345678")
    start = np.arange(6, dtype=np.float32)
    program = make_program(make_tensor(data_buffer_idx=1))
    made = write(
        program,
        mutable_data=[schema.Buffer(b""), schema.Buffer(start.tobytes())],
        named_data=store.get_named_data_store_output(),
    )
    found = read(made)
    (tensor,) = found.find().values
    assert isinstance(tensor, pte.Tensor)
    assert tensor.data == start.tobytes()
    assert found.named_data == {"weights": b"12345678"}


def test_external_tensor_has_a_name_and_no_data() -> None:
    info = schema.ExtraTensorInfo(fully_qualified_name="a.w", location=schema.TensorDataLocation.EXTERNAL)
    found = read(write(make_program(make_tensor(allocation_info=None, extra_tensor_info=info, data_buffer_idx=5))))
    assert found.find().values == (pte.Tensor("float32", (2, 3), (0, 1), name="a.w", external=True),)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (make_program(make_tensor(sizes=[2, -3])), "shape"),
        (make_program(make_tensor(dim_order=[0, 0])), "dim order"),
        (make_program(make_tensor(dim_order=[0])), "dim order"),
        (make_program(make_tensor(sizes=[1] * 17, dim_order=list(range(17)))), "shape"),
        (make_program(make_tensor(storage_offset=1)), "storage offset"),
        (make_program(make_tensor(sizes=[2, 7])), "56 bytes at 16 of planned buffer 1, which has 64"),
        (make_program(make_tensor(allocation_info=schema.AllocationDetails(2, 0, 0))), "planned buffer 2"),
        (make_program(make_tensor(allocation_info=schema.AllocationDetails(1, 0, 9))), "planned buffer 1"),
        (make_program(make_tensor(allocation_info=None, data_buffer_idx=3)), "refers to data 3"),
        (make_program(schema.IntList([0])), "another type"),
        (make_program(schema.IntList([1 << 40])), "members of the list in value 0"),
        (make_program(schema.TensorList([-1])), "members of the list in value 0"),
        (make_program(schema.Int(1), schema.OptionalTensorList([0])), "another type"),
        (make_program(inputs=[0]), "inputs and outputs"),
        (make_program(non_const_buffer_sizes=[0, -5]), "negative buffer size"),
        (make_program(chains=[schema.Chain([], [], [schema.Instruction(schema.KernelCall(0, []))], None)]), "op_index"),
        (make_program(chains=[schema.Chain([], [], [schema.Instruction(schema.FreeCall(1))], None)]), "value_index"),
        (
            make_program(
                schema.Bool(True), chains=[schema.Chain([], [], [schema.Instruction(schema.JumpFalseCall(0, 2))], None)]
            ),
            "destination_instruction",
        ),
    ],
)
def test_what_no_runtime_takes(program: schema.Program, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(write(program))
    assert message in str(caught.value)
    assert "at offset" in str(caught.value)


def test_unknown_method(softmax_pte: dict[str, bytes]) -> None:
    with pytest.raises(Invalid, match="no method `backward`") as caught:
        read(softmax_pte["inline"]).find("backward")
    assert "`forward`" in caught.value.why


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\x10\0\0\0TOSA" + bytes(100), b"PK\3\4" + bytes(60)])
def test_other_files(data: bytes) -> None:
    with pytest.raises(Invalid):
        read(data)


def test_header_that_lies(add_pte: dict[str, bytes]) -> None:
    good = add_pte["segment"]
    assert good[8:12] == b"eh00"
    for at, value in ((16, len(good) + 1), (24, len(good) + 1), (24, 8), (32, 1 << 60), (12, 3)):
        bad = good[:at] + struct.pack("<Q", value) + good[at + 8 :]
        with pytest.raises(Invalid):
            read(bad)


def test_blob_that_many_delegates_share_is_kept_once(add_pte: dict[str, bytes]) -> None:
    for form in ("inline", "segment"):
        program = deserialize_pte_binary(add_pte[form]).program
        plan = program.execution_plan[0]
        plan.delegates = [copy.deepcopy(plan.delegates[0]) for _ in range(50)]
        data = bytes(serialize_pte_binary(PTEFile(program), extract_delegate_segments=form == "segment"))
        assert len({id(delegate.blob) for delegate in read(data).find().delegates}) == 1


def test_300_mutations_and_truncations(add_pte: dict[str, bytes], mixed_pte: bytes) -> None:
    rng, refused, began = random.Random(0), 0, time.process_time()
    for round_ in range(300):
        good = (add_pte["inline"], add_pte["segment"], mixed_pte)[round_ % 3]
        bad = bytearray(good[: rng.randrange(len(good))] if round_ % 5 == 0 else good)
        for _ in range(rng.randrange(1, 6)):
            if bad:
                at = rng.randrange(len(bad))
                bad[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", rng.randbytes(4)])[: len(bad) - at]
        try:
            assert isinstance(read(bytes(bad)), Pte)
        except Invalid as error:
            refused += 1
            assert str(error)
    assert refused > 100
    assert time.process_time() - began < 10


def test_import_is_light() -> None:
    code = (
        "import sys, tosaic.formats.pte, tosaic.formats.sidecar; "
        "sys.exit(' '.join({'torch', 'executorch', 'torchao'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
