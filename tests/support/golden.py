"""Golden files: the graph of one sample of every operator record, and of every pass before and after, as text."""

from __future__ import annotations

from collections.abc import Mapping

from support import TESTS, samples
from support.pass_graphs import GRAPHS
from tosaic.api.build import make_spec
from tosaic.core.targets import find
from tosaic.driver.delegate import lower_region
from tosaic.driver.partition import partition
from tosaic.fx.source import Source
from tosaic.ir.text import to_text
from tosaic.ops import registry
from tosaic.passes import PASSES

GOLDEN = TESTS / "golden"
OPS, PASS_FILES, CYCLES = GOLDEN / "ops", GOLDEN / "passes", GOLDEN / "cycles.txt"
SUFFIX = ".tosa.txt"

#: The targets of quantized samples by family, in the order in which they are tried.
_TARGETS: Mapping[str, str] = {
    "u55": "ethos-u55-128",
    "u65": "ethos-u65-512",
    "u85": "ethos-u85-256",
    "tosa": "TOSA-1.0+INT",
}
_FLOAT = "TOSA-1.0+FP"


def list_ops() -> list[str]:
    """List the records that have samples."""
    return [name for name, record in registry().records.items() if record.samples()]


def choose_sample(op: str) -> tuple[int, str]:
    """Choose the first sample of a record for the first target that takes one of them."""
    found = list(enumerate(registry().records[op].samples()))
    for family, target in _TARGETS.items():
        for index, sample in found:
            if "INT" in sample.flavours and family in sample.targets:
                return index, target
    return next(index for index, sample in found if "tosa" in sample.targets), _FLOAT


def write_op(op: str) -> str:
    """Lower the chosen sample of a record and write its graphs."""
    index, target = choose_sample(op)
    if target == _FLOAT:
        source = Source.of_program(samples.exported(op, index)[2])
    else:
        source = Source.of_module(samples.quantized(op, index)[0])
    spec = make_spec(target)
    regions = partition(source, spec.target).regions
    texts = [to_text(lower_region(source, region, spec, frozenset())[0]) for region in regions]
    return f"# {op}, sample {index}, {target}\n" + "".join(texts)


def write_pass(name: str) -> str:
    """Write the example of a pass before and after it."""
    target, make_graph = GRAPHS[name]
    (step,) = (step for step in PASSES if step.name == name)
    before = make_graph()
    after = step.run(before, find(target))
    return f"# {name}, {target}: before\n{to_text(before)}# after\n{to_text(after)}"
