"""Write the parts of the documentation that come from the code itself.

python docs/generate.py              writes operators.md
python docs/generate.py --measure    also the table in memory-modes.md: compiles mobilenet_v2 in every memory mode
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tosaic.core.errors import Invalid
from tosaic.core.output import write_files
from tosaic.core.targets import find, list_families
from tosaic.lower.constraints import RESULT
from tosaic.lower.registry import Constraint, Record
from tosaic.ops import registry

if TYPE_CHECKING:
    from tosaic.api.program import Program

DOCS = Path(__file__).parent
OPERATORS = DOCS / "operators.md"
MEMORY = DOCS / "memory-modes.md"
BEGIN, END = "<!-- measured by docs/generate.py -->\n", "<!-- end -->\n"

_INTRODUCTION = """# Operators

Made by `docs/generate.py` from the operator records: do not edit. `tosaic ops` prints the same, `tosaic ops --json`
gives it as data.

The list says what Tosaic can lower. Whether a call of an operator runs on the NPU also depends on its arguments and on
the target; the partitioner tries each one and gives a reason if it does not ([partitioner.md](partitioner.md)). An
elementwise operator that is not in the list still becomes a table if it has one int8 input
([quantization.md](quantization.md)). Recurrent layers and cells (`nn.LSTM`, `nn.GRU`, `nn.RNN`) are written out step by
step when they are quantized, and of anything else torch's own decomposition is taken, if all of it is in the list.

The column *quantized* says what the quantizer does:

| word | meaning |
|---|---|
| observe | inputs and output get a range of their own |
| exact | as observe, but its parameters are used as they are |
| share | inputs and output have one range: numbers are moved, not changed |
| weight | as observe, and the weights and bias are quantized too |
| decompose | replaced by simpler operators before ranges are measured |
| none | left as it is |
| depends | one of these, as the arguments say |

*table* marks elementwise operators: with one int8 input they become a lookup table. *bound* marks those that are fused
into the operator before them.
"""
_CONSTRAINTS = """\
What a target or its compiler cannot do. A call that does not keep to one of these runs on the CPU, and its reason says
which and what was found: "a stride above 3 needs a convolution that is neither depthwise nor dilated; here it is
depthwise and the stride is 4x4"."""
#: an accelerator of each family, and the modes to show for it
_MEASURED: tuple[tuple[str, str, str], ...] = tuple(
    (target, mode, flag)
    for target in ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
    for mode, flag in (
        ("Sram_Only", ""),
        ("Shared_Sram", ""),
        ("Shared_Sram", "--optimise=Size"),
        ("Dedicated_Sram", ""),
        ("Dedicated_Sram_384KB", ""),
    )
)


def write_operators() -> str:
    """Write the text of operators.md."""
    records = registry().records.values()
    sections = [_INTRODUCTION]
    for family in dict.fromkeys(record.family for record in records):
        rows = "\n".join(_write_row(record) for record in records if record.family == family)
        head = "| operator | quantized | | overloads |\n|---|---|---|---|"
        sections.append(f"## {family}\n\n{_describe_family(family)}\n\n{head}\n{rows}\n")
    constraints = "\n".join(_write_constraints(records))
    head = "| constraint | operators | targets | fix |\n|---|---|---|---|"
    sections.append(f"## Constraints\n\n{_CONSTRAINTS}\n\n{head}\n{constraints}\n")
    return "\n".join(sections)


def _describe_family(family: str) -> str:
    """Read what the file of a family says about itself."""
    return (sys.modules[f"tosaic.ops.{family}"].__doc__ or "").partition("\n\n")[0].replace("\n", " ").strip()


def _write_row(record: Record) -> str:
    quant = (
        "decompose" if record.decompose is not None else record.quant if isinstance(record.quant, str) else "depends"
    )
    kinds = ", ".join(word for word, holds in (("table", record.pointwise), ("bound", record.bounds)) if holds)
    overloads = ", ".join(f"`{name.removeprefix('aten.').removesuffix('.default')}`" for name in record.overloads)
    return f"| {record.name} | {quant} | {kinds} | {overloads} |"


def _write_constraints(records: Iterable[Record]) -> Iterator[str]:
    """Write one row per sentence, with all operators that have it."""
    owners: dict[tuple[str, str, str], list[str]] = {_describe_constraint(one): ["any"] for one in RESULT}
    for record in records:
        for one in record.constraints:
            owners.setdefault(_describe_constraint(one), []).append(record.name)
    for (sentence, families, fix), names in owners.items():
        yield f"| {sentence} | {', '.join(names)} | {families} | {fix} |"


def _describe_constraint(one: Constraint) -> tuple[str, str, str]:
    return one.sentence, ", ".join(list_families(one.targets)), one.fix


def write_memory() -> str:
    """Write the table of memory-modes.md."""
    head = "| target | memory mode | network | scratch | fast scratch | SRAM in all | cycles | time |"
    return "\n".join([head, "|---|---|--:|--:|--:|--:|--:|--:|", *_measure()]) + "\n"


def _measure() -> Iterator[str]:
    import tosaic
    from tosaic import zoo
    from tosaic.api.build import export
    from tosaic.ethosu import EthosUCompileSpec

    model, inputs = zoo.load("mobilenet_v2")
    quantized = tosaic.quantize(export(model, inputs), zoo.inputs("mobilenet_v2", 2, seed=1))
    for target, mode, flag in _MEASURED:
        name = f"| {find(target).name} | `{mode}`{f' with `{flag}`' if flag else ''}"
        try:
            spec = EthosUCompileSpec(target, memory_mode=mode, extra_flags=[flag] if flag else None)
        except Invalid:
            yield f"{name} | not available | | | | | |"
            continue
        program = tosaic.compile(quantized, inputs, spec)
        yield f"{name} | {_describe(program)} |"


def _describe(program: Program) -> str:
    memory = program.memory
    regions = (
        (memory.network, memory.network_in),
        (memory.scratch, memory.scratch_in),
        (memory.fast_scratch, memory.fast_scratch_in),
    )
    cells = [f"{size:,} {place}" if place else "none" for size, place in regions]
    sram = sum(size for size, place in regions if place == "Sram")
    (delegate,) = program.report().delegates
    cycles, seconds = int(delegate.vela["cycles_total"]), delegate.vela["inference_time"]
    return " | ".join([*cells, f"{sram:,}", f"{cycles:,}", f"{seconds * 1e3:.2f} ms"])


def place_table(page: str, table: str) -> str:
    """Put the table between the two marks of a page."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(arguments: Sequence[str]) -> None:
    files = {OPERATORS: write_operators().encode()}
    if "--measure" in arguments:
        files[MEMORY] = place_table(MEMORY.read_text(encoding="utf-8"), write_memory()).encode()
    write_files(files)


if __name__ == "__main__":
    main(sys.argv[1:])
