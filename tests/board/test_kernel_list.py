"""The firmware's CPU kernels as a set: what programs need is there, and signatures are those of the operators."""

from __future__ import annotations

import importlib

import pytest
import torch

from support.boards import needs_cross_gcc, needs_zig
from support.cpu_operators import PATH, find_operators, read_list, write_list
from support.handmade import Spec, call
from tosaic.board.build import build
from tosaic.board.elf import read_elf
from tosaic.board.kernels import list_kernels
from tosaic.ops import registry

#: Operators of the list that have no kernel, by the reason.
MISSING = {
    "ExecuTorch cannot write them to a .pte file: they have no variant with `out`": {
        "aten::native_channel_shuffle",
    },
    "no runtime of ExecuTorch has a kernel, so that a .pte with them is of no use": {
        "aten::__lshift__.Scalar_out",
        "aten::__rshift__.Scalar_out",
        "aten::_upsample_bicubic2d_aa.out",
        "aten::_upsample_nearest_exact1d.out",
        "aten::_upsample_nearest_exact2d.out",
        "aten::_upsample_nearest_exact3d.out",
        "aten::adaptive_max_pool2d.out",
        "aten::adaptive_max_pool3d.out",
        "aten::avg_pool3d.out",
        "aten::bitwise_and.Scalar_Tensor_out",
        "aten::bitwise_left_shift.Scalar_Tensor_out",
        "aten::bitwise_or.Scalar_Tensor_out",
        "aten::bitwise_right_shift.Scalar_Tensor_out",
        "aten::bitwise_xor.Scalar_Tensor_out",
        "aten::cummax.out",
        "aten::cummin.out",
        "aten::cumprod.out",
        "aten::diagonal_scatter.out",
        "aten::dist.out",
        "aten::erfc.out",
        "aten::erfinv.out",
        "aten::exp2.out",
        "aten::hypot.out",
        "aten::kthvalue.values",
        "aten::max_pool3d_with_indices.out",
        "aten::median.dim_values",
        "aten::median.out",
        "aten::remainder.Scalar_Tensor_out",
        "aten::round.decimals_out",
        "aten::signbit.out",
        "aten::sort.values",
        "aten::sort.values_stable",
        "aten::upsample_nearest1d.out",
        "aten::upsample_nearest2d.out",
        "aten::upsample_nearest3d.out",
        "aten::upsample_trilinear3d.out",
    },
    "antialiased resizing is not there yet": {
        "aten::_upsample_bilinear2d_aa.out",
    },
}
#: What programs contain beside the operators of a model: the ends of delegates, views, and state.
ALWAYS = {
    "quantized_decomposed::quantize_per_tensor.out",
    "quantized_decomposed::dequantize_per_tensor.out",
    "quantized_decomposed::dequantize_per_channel.out",
    "executorch_prim::et_view.default",
    "aten::copy_",
}
#: A letter of a signature for each type of a schema.
LETTERS = {
    "Tensor": "T",
    "number": "d",
    "float": "d",
    "int": "i",
    "bool": "b",
    "str": "s",
    "List[int]": "I",
    "List[float]": "D",
    "List[Tensor]": "L",
    "List[Optional[Tensor]]": "l",
}


def test_every_operator_has_a_kernel() -> None:
    needed, known = set(read_list()) | ALWAYS, set(list_kernels())
    explained = set().union(*MISSING.values())
    assert needed - known - explained == set()
    assert explained & known == set(), "these have kernels now"


def test_the_list_is_current() -> None:
    """A few records; the test below takes all."""
    kept = read_list()
    for operator, types in find_operators(["hardswish", "isclose", "unbind"]).items():
        assert types <= kept.get(operator, set()), operator


@pytest.mark.slow
def test_the_whole_list_is_current() -> None:
    assert write_list(find_operators(registry().records)) == PATH.read_text("utf-8")


def make_signature(schema: torch.FunctionSchema) -> str:
    letters = ""
    for arg in schema.arguments:
        name = str(arg.type)
        optional = name.startswith("Optional[")
        letter = LETTERS[name.removeprefix("Optional[").removesuffix("]") if optional else name]
        is_written = arg.alias_info is not None and arg.alias_info.is_write
        letters += {"T": "O", "L": "W"}.get(letter, letter) if is_written else letter
        letters += "?" if optional else ""
    return letters


def test_signatures() -> None:
    """They are the schemas of the operators; `*` stands for a type that a kernel does not look at."""
    importlib.import_module("executorch.kernels.quantized")
    importlib.import_module("executorch.exir.passes.dim_order_ops_registry")
    for operator, kernel in list_kernels().items():
        namespace, _, rest = operator.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if namespace == "executorch_prim" or operator in ("aten::_local_scalar_dense", "aten::sym_numel"):
            continue
        schema = getattr(packet, overload or "default")._schema
        expected = make_signature(schema)
        results = "r" if overload == "int" and name == "sym_size" else ""
        ours = kernel.signature
        if "*" in ours:
            at = ours.index("*")
            expected = expected[:at] + "*" + expected[at:].removeprefix("i?")
        assert ours == expected + results, operator


@pytest.mark.parametrize(
    "toolchain", [pytest.param("zig", marks=needs_zig), pytest.param("gcc", marks=needs_cross_gcc)]
)
def test_all_kernels_in_one_firmware(toolchain: str) -> None:
    """Nothing that they call is missing on a board, and no compiler has a warning."""
    data = call("aten::neg", "out", (Spec((4,)),), Spec((4,)))
    elf = read_elf(build(data, "corstone-300", toolchain=toolchain, operators=list_kernels()).elf)
    assert {kernel.function for kernel in list_kernels().values()} <= set(elf.symbols)
