"""One definition is all that an operator needs: it can be built, verified, printed and parsed."""

from __future__ import annotations

import pytest

from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.ir.build import Builder
from tosaic.ir.definition import Attribute, Bound, Field, Limit, OpDef, allow, constant, tensor
from tosaic.ir.graph import DType, Op, Type
from tosaic.ir.infer import need_type
from tosaic.ir.ops import DEFINITIONS
from tosaic.ir.text import from_text, to_text
from tosaic.ir.verifier import verify


def infer_repeat(op: Op) -> Type:
    x, times = op.operand("image"), op.get("times", int)
    need_type(op, "gain", Type(x.dtype, (1,)))
    if times < 1:
        raise Invalid(f"times {times} must be at least 1")
    return Type(x.dtype, (times, *x.shape))


REPEAT = OpDef(
    "REPEAT",
    (tensor("image"), constant("gain")),
    (Attribute("times", Field.INT), Attribute("mirrored", Field.BOOL)),
    infer=infer_repeat,
    legal=allow("in", "i8: INT", "f32: FP"),
    bounds=(Bound("times", lambda op: (op.get("times", int),), Limit.STRIDE),),
)
INT = Specification.parse("TOSA-1.0+INT")
TEXT = """\
graph(%x0: i8[2,3]) {
  %c0 = CONST i8[1] [5]
  %1: i8[4,2,3] = REPEAT(%x0, %c0) times=4 mirrored=True
  return %1
}
"""


def test_a_definition_is_built_verified_printed_and_parsed() -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (2, 3)))
    (y,) = b.emit(REPEAT, (x, b.zero_point(5, DType.I8)), times=4, mirrored=True)
    graph = b.finish([y])
    verify(graph, INT)
    assert to_text(graph) == TEXT
    again = from_text(TEXT, {**DEFINITIONS, "REPEAT": REPEAT})
    verify(again, INT)
    assert to_text(again) == TEXT
    (op,) = (op for op in again.ops if op.definition is REPEAT)
    assert op.operand("image") is again.inputs[0]
    assert op.attrs == {"times": 4, "mirrored": True}


@pytest.mark.parametrize(
    ("old", "new", "spec", "reason"),
    [
        ("times=4", "times=0", INT, "op 1 REPEAT: times 0 must be at least 1"),
        ("times=4 ", "", INT, "op 1 REPEAT: has the attributes times, mirrored, not mirrored"),
        ("i8[4,2,3]", "i8[4,3,2]", INT, "expected (i8[4,2,3])"),
        ("(%x0, %c0)", "(%x0)", INT, "takes 2 inputs (image, gain), not 1"),
        ("i8[1] [5]", "i16[1] [5]", INT, "gain must be i8[1], not i16[1]"),
        ("i8", "i8", Specification.parse("TOSA-1.0+FP"), "i8 needs INT"),
        ("i8", "i16", INT, "TOSA 1.0 has no REPEAT of i16"),
        ("4", "9000", Specification.parse("TOSA-1.0+INT+8k"), "times (9000,) is above 8192"),
    ],
)
def test_the_verifier_reads_the_definition(old: str, new: str, spec: Specification, reason: str) -> None:
    graph = from_text(TEXT.replace(old, new), {**DEFINITIONS, "REPEAT": REPEAT})
    with pytest.raises(Invalid) as caught:
        verify(graph, spec)
    assert reason in caught.value.what


def test_an_operand_that_must_be_constant() -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (1,)))
    graph = b.finish(b.emit(REPEAT, (x, x), times=1))
    with pytest.raises(Invalid, match="REPEAT: gain must be a constant"):
        verify(graph, INT)
