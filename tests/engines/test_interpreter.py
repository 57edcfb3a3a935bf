"""The interpreter: CPU programs against torch, delegates by stand-ins, and inputs that do not fit."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from executorch.exir import schema, to_edge_transform_and_lower
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary, serialize_pte_binary
from executorch.exir.scalar_type import ScalarType

from support.programs import Mixed
from tosaic.core.errors import Invalid, TosaicError
from tosaic.engines import reference
from tosaic.engines.interpreter import Method, Npu, TensorType
from tosaic.engines.kernels import find_kernel
from tosaic.formats.blob import find_fast_scratch
from tosaic.formats.npy import Array
from tosaic.formats.pte import Operator, read


def double(_blob: bytes, _specs: object, inputs: list[Array], _outputs: list[TensorType]) -> list[Array]:
    return [inputs[0] * 2]


def make_reference(tosa: dict[bytes, bytes]):
    """An executor that computes a blob by the .tosa it was made from."""

    def execute(blob: bytes, _specs: object, inputs: list[Array], _outputs: list[TensorType]) -> list[Array]:
        return reference.run(tosa[blob], inputs)

    return execute


@pytest.mark.parametrize("form", ["inline", "segment"])
def test_softmax_is_torch(softmax_pte: dict[str, bytes], form: str) -> None:
    method = Method(read(softmax_pte[form]))
    assert method.inputs == method.outputs == [TensorType(np.dtype(np.float32), (2, 2))]
    x = torch.randn(2, 2)
    (result,) = method.run([x.numpy()])
    assert np.array_equal(result, torch.softmax(x, -1).numpy())
    assert [(call.kind, call.name) for call in method.calls] == [("kernel", "aten::_softmax.out")]


def test_many_kernels_are_torch(mixed_pte: bytes, mixed: Mixed) -> None:
    method = Method(read(mixed_pte))
    x = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    mixed.calls.zero_()
    found: list[Array] = []
    for _ in range(2):
        expected, found = mixed(x), method.run([x.numpy()])
        assert len(found) == len(expected) == 5
        for theirs, ours in zip(expected, found, strict=True):
            assert (ours.shape, str(ours.dtype)) == (tuple(theirs.shape), str(theirs.dtype).removeprefix("torch."))
            np.testing.assert_allclose(ours.astype(np.float64), theirs.detach().numpy(), atol=1e-6)
    # The state is kept from run to run.
    assert found[4].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("which", [True, False])
def test_branch(branch_pte: bytes, which: bool) -> None:
    x = np.float32([1, 2, 3])
    (result,) = Method(read(branch_pte)).run([np.array(which), x])
    assert np.array_equal(result, x + 1 if which else x * 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_number_that_is_fixed_may_be_given_in_less_precision(dtype: type[np.float64]) -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * factor

    x = torch.ones(2)
    edge = to_edge_transform_and_lower(torch.export.export(Scale(), (x, 3.2)), partitioner=[])
    method = Method(read(edge.to_executorch().buffer))
    (result,) = method.run([x.numpy(), np.array(3.2, dtype)])
    assert np.array_equal(result, x.numpy() * np.float32(3.2))
    for other in (np.array(3.25, dtype), np.array(3, np.int32)):
        with pytest.raises(Invalid, match="is fixed to"):
            method.run([x.numpy(), other])


@pytest.mark.parametrize("rows", [2, 8])
def test_shapes_up_to_the_bound(dynamic_pte: bytes, rows: int) -> None:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    (result,) = Method(read(dynamic_pte)).run([x])
    assert np.array_equal(result, x.reshape(-1) + rows)
    with pytest.raises(Invalid, match=r"input 0 is float32\[9, 4\].*float32\[8, 4\] at most"):
        Method(read(dynamic_pte)).run([np.zeros((9, 4), np.float32)])


@pytest.mark.parametrize("form", ["inline", "segment"])
def test_delegated_add(add_pte: dict[str, bytes], form: str) -> None:
    seen: list[object] = []

    def execute(blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]):
        seen.extend([blob[:15], dict(specs)["target"], inputs[0].dtype, outputs])
        return double(blob, specs, inputs, outputs)

    method = Method(read(add_pte[form]), executors={"EthosUBackend": execute})
    (result,) = method.run([np.arange(5, dtype=np.int32)])
    assert result.tolist() == [0, 2, 4, 6, 8]
    assert seen == [b"vela_bin_stream", b"ethos-u55-128", np.dtype(np.int32), [TensorType(np.dtype(np.int32), (5,))]]
    assert [(call.kind, call.name, call.index) for call in method.calls] == [("delegate", "EthosUBackend", 0)]


def test_two_delegates_with_several_borders(conv, conv_inputs: tuple[torch.Tensor, ...]) -> None:
    method = Method(read(conv.pte["inline"]), executors={"EthosUBackend": make_reference(conv.tosa)})
    found = method.run([x.numpy() for x in conv_inputs])
    assert [call.index for call in method.calls if call.kind == "delegate"] == [0, 1]
    assert any(call.name.startswith("quantized_decomposed::quantize") for call in method.calls)
    for ours, theirs in zip(found, conv.quantized(*conv_inputs), strict=True):
        step = np.abs(theirs.numpy()).max() / 100
        np.testing.assert_allclose(ours.astype(np.float64), theirs.numpy(), atol=2 * step)


def test_text_of_a_constant_method(add_pte: dict[str, bytes]) -> None:
    (text,) = Method(read(add_pte["inline"]), "note").run([])
    assert text == "made by a test"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "0 inputs were given, but the program takes 1"),
        ([np.zeros(5, np.int32)] * 2, "2 inputs were given"),
        ([np.zeros(5, np.int64)], "input 0 is int64[5], but the program takes int32[5]"),
        ([np.zeros((1, 5), np.int32)], "input 0 is int32[1, 5], but the program takes int32[5]"),
        ([np.zeros(5, ">i4")], "input 0 is >i4[5]"),
    ],
)
def test_inputs_that_do_not_fit(add_pte: dict[str, bytes], inputs: list[Array], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        Method(read(add_pte["inline"]), executors={"EthosUBackend": double}).run(inputs)
    assert message in str(caught.value)


def test_strided_input(add_pte: dict[str, bytes]) -> None:
    method = Method(read(add_pte["inline"]), executors={"EthosUBackend": double})
    (result,) = method.run([np.arange(10, dtype=np.int32)[::-2]])
    assert result.tolist() == [18, 14, 10, 6, 2]


def test_backend_without_an_executor(add_pte: dict[str, bytes]) -> None:
    with pytest.raises(Invalid, match="delegate 0 is for `EthosUBackend`"):
        Method(read(add_pte["inline"]), executors={}).run([np.zeros(5, np.int32)])


@pytest.mark.parametrize("result", [np.zeros(4, np.int32), np.zeros(5, np.int8)])
def test_executor_that_gives_something_else(add_pte: dict[str, bytes], result: Array) -> None:
    method = Method(read(add_pte["inline"]), executors={"EthosUBackend": lambda *_: [result]})
    with pytest.raises(Invalid, match=r"delegate 0 returns .*, but the program takes int32\[5\]"):
        method.run([np.zeros(5, np.int32)])


def edit(data: bytes, change) -> bytes:
    """A .pte whose program was changed."""
    file = deserialize_pte_binary(data)
    change(file.program.execution_plan[0])
    return bytes(serialize_pte_binary(PTEFile(file.program)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scalar_type", ScalarType.CHAR, "int8[5], the blob 4-byte integers of shape [1, 1, 1, 1, 1, 5]"),
        ("scalar_type", ScalarType.FLOAT, "float32[5], the blob 4-byte"),
        ("sizes", [4], "int32[4], the blob 4-byte integers of shape [1, 1, 1, 1, 1, 5]"),
        ("scalar_type", ScalarType.SHORT, "int16[5], the blob 4-byte"),
    ],
)
def test_border_that_is_not_the_blobs(add_pte: dict[str, bytes], field: str, value: object, message: str) -> None:
    data = edit(add_pte["inline"], lambda plan: setattr(plan.values[1].val, field, value))
    with pytest.raises(Invalid) as caught:
        Method(read(data))
    assert "output 0 of delegate 0 does not fit its blob" in str(caught.value)
    assert message in str(caught.value)


def test_delegate_with_too_many_values(add_pte: dict[str, bytes]) -> None:
    data = edit(add_pte["inline"], lambda plan: plan.chains[0].instructions[0].instr_args.args.append(1))
    with pytest.raises(Invalid, match="called with 3 values"):
        Method(read(data))


def test_delegate_sees_memory_order(add_pte: dict[str, bytes]) -> None:
    """A channels-last tensor reaches a delegate as the bytes lie, and its result is read the same way."""

    def change(plan: schema.ExecutionPlan) -> None:
        plan.delegates[0].id = "Other"
        for value in plan.values:
            if isinstance(value.val, schema.Tensor):
                value.val.sizes, value.val.dim_order = [1, 2, 3, 4], [0, 2, 3, 1]
        plan.non_const_buffer_sizes = [0, 96 * 2]
        for index, offset in ((0, 0), (1, 96)):
            tensor = plan.values[index].val
            assert isinstance(tensor, schema.Tensor)
            tensor.allocation_info = schema.AllocationDetails(1, offset, 0)

    shapes: list[tuple[int, ...]] = []

    def execute(_blob: bytes, _specs: object, inputs: list[Array], outputs: list[TensorType]) -> list[Array]:
        shapes.extend([inputs[0].shape, outputs[0].shape])
        return [inputs[0] + np.int32([100, 200])]

    x = np.arange(24, dtype=np.int32).reshape(1, 2, 3, 4)
    (result,) = Method(read(edit(add_pte["inline"], change)), executors={"Other": execute}).run([x])
    assert shapes == [(1, 3, 4, 2), (1, 3, 4, 2)]
    assert np.array_equal(result, x + np.int32([100, 200]).reshape(1, 2, 1, 1))


def test_endless_program(branch_pte: bytes) -> None:
    def change(plan: schema.ExecutionPlan) -> None:
        plan.values.append(schema.EValue(schema.Bool(False)))
        jump = schema.JumpFalseCall(len(plan.values) - 1, 0)
        plan.chains[0].instructions = [schema.Instruction(jump)]

    method = Method(read(edit(branch_pte, change)), max_steps=100)
    with pytest.raises(Invalid, match="does not end within 100 instructions"):
        method.run([np.array(True), np.zeros(3, np.float32)])


def test_more_memory_than_there_is(softmax_pte: dict[str, bytes]) -> None:
    data = edit(softmax_pte["inline"], lambda plan: setattr(plan, "non_const_buffer_sizes", [0, 1 << 50]))
    with pytest.raises(Invalid, match="planned memory of method `forward` needs 1,125,899,906,842,624 bytes"):
        Method(read(data))


def test_kernel_that_fails_names_the_instruction(softmax_pte: dict[str, bytes]) -> None:
    data = edit(softmax_pte["inline"], lambda plan: setattr(plan.values[2], "val", schema.Int(7)))
    with pytest.raises(Invalid, match=r"the kernel `aten::_softmax\.out` failed") as caught:
        Method(read(data)).run([np.zeros((2, 2), np.float32)])
    assert "instruction 0 of method `forward`" in caught.value.where
    assert "Dimension out of range" in caught.value.why


@pytest.mark.parametrize(
    "name",
    ["load_library::x", "aten::from_file", "torch::classes", "aten::nothing", "aten::__class__", "x", "llama::a"],
)
def test_operators_out_of_reach(name: str) -> None:
    with pytest.raises(Invalid, match="no kernel for"):
        find_kernel(Operator(name, "out"))


def test_damaged_programs_end_in_an_error_or_a_result(add_pte: dict[str, bytes], mixed_pte: bytes) -> None:
    import random

    rng, ran = random.Random(3), 0
    x = {add_pte["inline"]: np.zeros(5, np.int32), mixed_pte: np.zeros((1, 3, 6, 6), np.float32)}
    for round_ in range(150):
        good = list(x)[round_ % 2]
        bad = bytearray(good)
        bad[rng.randrange(8, len(bad))] = rng.randrange(256)
        try:
            Method(read(bytes(bad)), executors={"EthosUBackend": double}, max_steps=1000).run([x[good]])
            ran += 1
        except TosaicError as error:
            assert str(error)
    assert ran


@pytest.mark.parametrize("name", ["add", "conv"])
def test_simulated_npu_is_the_reference_model(name: str, request: pytest.FixtureRequest) -> None:
    made, rng = request.getfixturevalue(name), np.random.default_rng(5)
    ours = Method(
        read(made.pte["segment"]), executors={"EthosUBackend": Npu(check_uninitialized=True, check_waits=True)}
    )
    theirs = Method(read(made.pte["inline"]), executors={"EthosUBackend": make_reference(made.tosa)})
    inputs = [(rng.standard_normal(shape) * 3).astype(dtype) for dtype, shape in ours.inputs]
    for _ in range(2):
        for a, b in zip(ours.run(inputs), theirs.run(inputs), strict=True):
            assert np.array_equal(a, b)
    assert np.array_equal(Method(read(made.pte["inline"])).run(inputs)[0], theirs.run(inputs)[0])


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        (b'{"memory_mode": "Shared_Sram"}', 0),
        (b"--memory-mode=Dedicated_Sram", 0x60000),
        (b'{"memory_mode": "Dedicated_Sram_384KB"}', 384 << 10),
        (b"Dedicated_Sram_2MB", 2 << 20),
    ],
)
def test_sram_of_the_npu(flags: bytes, size: int) -> None:
    assert find_fast_scratch([("target", b"ethos-u65-512"), ("compile_flags", flags)]) == size


def test_torch_is_imported_by_run_only() -> None:
    code = "import sys, tosaic.engines.interpreter; sys.exit(' '.join({'torch', 'executorch'} & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_frozen_plan_is_not_changed_by_a_run(add_pte: dict[str, bytes]) -> None:
    before = read(add_pte["inline"])
    Method(before, executors={"EthosUBackend": double}).run([np.ones(5, np.int32)])
    assert dataclasses.asdict(before.find()) == dataclasses.asdict(read(add_pte["inline"]).find())
