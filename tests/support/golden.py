"""Golden files: the graph of one sample of every operator record, and of every pass before and after, as text."""

from __future__ import annotations

from support import TESTS, samples
from support.pass_graphs import GRAPHS
from tosaic.api.build import make_spec
from tosaic.core.targets import find
from tosaic.driver.delegate import lower_partition
from tosaic.driver.partition import partition
from tosaic.fx.source import Source
from tosaic.ir.text import to_text
from tosaic.ops import registry
from tosaic.passes import ALL

GOLDEN = TESTS / "golden"
OPS, PASS_FILES, CYCLES = GOLDEN / "ops", GOLDEN / "passes", GOLDEN / "cycles.txt"
SUFFIX = ".tosa.txt"

#: The targets of quantized samples, in the order in which they are tried.
_TARGETS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256", "TOSA-1.0+INT")
_FLOAT = "TOSA-1.0+FP"


def list_ops() -> list[str]:
    """List the records that have samples."""
    return [name for name, record in registry().records.items() if record.samples()]


def choose_sample(op: str) -> tuple[int, str]:
    """Choose the first sample of a record for the first target that takes one of them."""
    found = list(enumerate(registry().records[op].samples()))
    for target in _TARGETS:
        for index, sample in found:
            if "INT" in sample.flavors and sample.targets(find(target)):
                return index, target
    return next(index for index, sample in found if sample.targets(find(_FLOAT))), _FLOAT


def write_op(op: str) -> str:
    """Lower the chosen sample of a record and write its graphs."""
    index, target = choose_sample(op)
    if target == _FLOAT:
        source = Source.of_program(samples.exported(op, index)[2])
    else:
        source = Source.of_module(samples.quantized(op, index)[0])
    spec = make_spec(target)
    partitions = partition(source, spec.target).partitions
    texts = [to_text(lower_partition(source, one, spec, frozenset())[0]) for one in partitions]
    return f"# {op}, sample {index}, {target}\n" + "".join(texts)


def write_pass(name: str) -> str:
    """Write the example of a pass before and after it."""
    target, make_graph = GRAPHS[name]
    (step,) = (step for step in ALL if step.name == name)
    before = make_graph()
    after = step.run(before, find(target))
    return f"# {name}, {target}: before\n{to_text(before)}# after\n{to_text(after)}"
