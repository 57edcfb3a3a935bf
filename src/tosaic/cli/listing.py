"""What `tosaic ops` and `tosaic targets` print."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tosaic.cli.guard import print_json
from tosaic.core.errors import Invalid
from tosaic.core.specification import EXTENSIONS, PROFILES
from tosaic.core.targets import ACCELERATORS, VGF, Family, Target, find, list_families
from tosaic.lower.constraints import RESULT
from tosaic.lower.registry import Constraint, Record
from tosaic.ops import registry
from tosaic.report.operators import Support, find_record, list_parts, list_support, refuse_name
from tosaic.report.terminal import Page
from tosaic.tools.vela_options import BUNDLED_INI, VelaOptions, check_options, list_sections

OPS_SCHEMA = "tosaic-ops/2"
OPERATOR_SCHEMA = "tosaic-operator/1"
TARGETS_SCHEMA = "tosaic-targets/1"
_QUANT_WORDS = (
    ("observe", "inputs and output each get a range"),
    ("exact", "input and output get a range; parameters are used as they are"),
    ("share", "output keeps the range of the input"),
    ("weight", "as observe, and the weights and bias are quantized too"),
    ("decompose", "replaced by simpler operators before ranges are measured"),
    ("none", "not quantized"),
    ("depends", "one of these, depending on the arguments"),
)


def list_ops(name: str | None, as_json: bool) -> None:
    """List the operators that can run on the NPU and their constraints, or show one of them."""
    record = None if name is None else find_record(name)
    if record is not None:
        _show_operator(record, as_json)
        return
    wanted = None if name is None else _find_target(name)
    records = registry().records.values()
    rows = [_describe_op(record, wanted) for record in records]
    common = _describe_constraints(RESULT, wanted)
    if as_json:
        target = None if wanted is None else wanted.name
        plain = {"schema": OPS_SCHEMA, "target": target, "ops": rows, "constraints": common}
        print_json(plain)
        return
    page = Page()
    for family in dict.fromkeys(row["family"] for row in rows):
        page.title(family, gap=family != rows[0]["family"])
        members = [row for row in rows if row["family"] == family]
        page.rows(("operator", "quantized", "overloads"), ((r["name"], r["quant"], _shorten(r)) for r in members))
    page.title("how they are quantized")
    page.pairs(_QUANT_WORDS)
    owned = [(row["name"], one["sentence"]) for row in rows for one in row["constraints"]]
    page.title("constraints")
    head = ("operator", f"constraint{'' if wanted is None else f' on {wanted.name}'}")
    page.rows(head, [*(("any", one["sentence"]) for one in common), *owned])


def _find_target(name: str) -> Target:
    """Find a target; a name that is like no target is a misspelled operator."""
    try:
        return find(name)
    except Invalid:
        if re.match(r"(ethos|tosa|vgf|u)[-_]?\d|ethos|tosa|vgf", name.lower()):
            raise
        raise refuse_name(name) from None


def _show_operator(record: Record, as_json: bool) -> None:
    """Show one operator: what it can do on each family of targets."""
    support, parts, quant = list_support(record), list_parts(record), _name_quant(record)
    if as_json:
        targets = {
            one.family: {
                "how": one.how,
                "samples": one.samples,
                "executed": one.executed,
                "constraints": [record.constraints.index(each) for each in one.constraints],
            }
            for one in support
        }
        plain = {"schema": OPERATOR_SCHEMA, **_describe_op(record, None), "decomposition": parts, "targets": targets}
        print_json(plain)
        return
    page = Page()
    page.title(f"{record.name} ({record.family})", gap=False)
    pairs = [("overloads", ", ".join(record.overloads)), ("quantized", f"{quant}: {dict(_QUANT_WORDS)[quant]}")]
    page.pairs([*pairs, *([("made of", ", ".join(parts))] if parts else [])])
    page.title("on each family of targets")
    rows = [(one.family, one.how or "on the CPU", _number(record, one), one.verdict) for one in support]
    page.rows(("family", "how", "constraints", "tests"), rows)
    if record.constraints:
        page.title("constraints")
    for number, each in enumerate(record.constraints, 1):
        page.line(f"{number}. {each.sentence}")
        page.line(f"fix: {each.fix}", indent=3)


def _number(record: Record, one: Support) -> str:
    """List the numbers of the constraints of a family."""
    return ", ".join(str(record.constraints.index(each) + 1) for each in one.constraints) or "none"


def _describe_op(record: Record, target: Target | None) -> dict[str, Any]:
    return {
        "name": record.name,
        "family": record.family,
        "overloads": list(record.overloads),
        "quant": _name_quant(record),
        "constraints": _describe_constraints(record.constraints, target),
    }


def _shorten(row: dict[str, Any]) -> str:
    """Write the overloads without the parts that most of them share."""
    return ", ".join(name.removeprefix("aten.").removesuffix(".default") for name in row["overloads"])


def _name_quant(record: Record) -> str:
    if record.decompose is not None:
        return "decompose"
    return record.quant if isinstance(record.quant, str) else "depends"


def _describe_constraints(constraints: Iterable[Constraint], target: Target | None) -> list[dict[str, Any]]:
    """Describe the constraints of one target, or of all."""
    return [
        {"sentence": one.sentence, "targets": list_families(one.targets), "fix": one.fix}
        for one in constraints
        if target is None or one.targets(target)
    ]


def list_targets(as_json: bool) -> None:
    """List the targets with their defaults, memory modes and system configurations."""
    families: dict[Family, Target] = {target.family: target for target in ACCELERATORS.values()}
    choices = {family: _list_choices(target) for family, target in families.items()}
    if as_json:
        accelerators = [asdict(target) for target in (*ACCELERATORS.values(), VGF)]
        tosa = {"profiles": list(PROFILES), "extensions": {name: list(of) for name, of in EXTENSIONS.items()}}
        plain = {"schema": TARGETS_SCHEMA, "accelerators": accelerators, "families": choices, "tosa": tosa}
        print_json(plain)
        return
    page = Page()
    head = ("target", "MACs", "system configuration", "memory mode")
    rows = [(t.name, str(t.macs), t.system_config, t.memory_mode) for t in ACCELERATORS.values()]
    page.rows(head, rows)
    for family, choice in choices.items():
        page.title(f"Ethos-{family.upper()}: sections of `{BUNDLED_INI}`")
        page.pairs((label.replace("_", " "), ", ".join(names)) for label, names in choice.items())
    page.title("VGF: for Vulkan devices, writes a .pte file")
    page.pairs([("target", f"`{VGF.name}`, accepts {VGF.tosa_spec}")])
    page.title("TOSA: writes a .tosa file")
    extensions = ", ".join(f"+{name} ({' or '.join(of)})" for name, of in EXTENSIONS.items())
    targets = ", ".join(f"TOSA-1.0+{profile}" for profile in PROFILES)
    page.pairs([("targets", targets), ("extensions", extensions)])


def _list_choices(target: Target) -> dict[str, list[str]]:
    """List the sections of the bundled configuration file that fit an accelerator."""
    systems, modes = list_sections(BUNDLED_INI)
    fitting = [name for name in systems if name.startswith(f"Ethos_{target.family.upper()}_")]
    return {
        "system_configs": fitting,
        "memory_modes": [name for name in modes if any(_fits(target, system, name) for system in fitting)],
    }


def _fits(target: Target, system_config: str, memory_mode: str) -> bool:
    try:
        check_options(VelaOptions(target.name, system_config, memory_mode))
    except Invalid:
        return False
    return True
