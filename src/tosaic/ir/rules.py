"""RULES: for each TOSA operator, the function that checks it and gives the types of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tosaic.core.errors import Invalid
from tosaic.ir.graph import Type, Value
from tosaic.ir.rule import Attrs, Rule
from tosaic.ir.rules_data import DATA_RULES
from tosaic.ir.rules_elementwise import ELEMENTWISE_RULES
from tosaic.ir.rules_tensor import TENSOR_RULES
from tosaic.ir.signature import SIGNATURES, Signature


def _need_signature(signature: Signature, inputs: Sequence[Value], attrs: Attrs) -> None:
    least = len(signature.operands) - signature.variadic
    if len(inputs) < least or (len(inputs) > least and not signature.variadic):
        want = f"{least} or more" if signature.variadic else str(least)
        raise Invalid(f"takes {want} inputs ({', '.join(signature.operands)}), not {len(inputs)}")
    if set(attrs) != set(signature.names):
        have, want = ", ".join(attrs) or "none", ", ".join(signature.names) or "none"
        raise Invalid(f"has the attributes {want}, not {have}")


def _name(kind: str, rule: Rule) -> Rule:
    """The rule with arity and attribute names checked first, and its errors prefixed with the op's kind."""
    signature = SIGNATURES[kind]

    def checked(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
        try:
            _need_signature(signature, inputs, attrs)
            return rule(inputs, attrs)
        except Invalid as error:
            raise Invalid(f"{kind}: {error.what}") from None

    return checked


RULES: Mapping[str, Rule] = MappingProxyType(
    {kind: _name(kind, ({**TENSOR_RULES, **ELEMENTWISE_RULES, **DATA_RULES})[kind]) for kind in SIGNATURES}
)
