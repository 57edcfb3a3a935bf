"""The samples of a record must use every argument of its operator's schema at a value that is not the default."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support import samples
from tosaic.fx.source import bind, overload, schema, torch_op
from tosaic.lower.registry import Record
from tosaic.ops import registry

#: arguments that cannot be set from Python, or that inference never sets, with the reason
EXEMPT = {
    "memory_format": "only contiguous tensors exist in a TOSA graph",
    "cudnn_enabled": "no effect on a CPU",
    "cudnn_enable": "no effect on a CPU",
    "momentum": "only used in training",
    "training": "a constraint forbids it",
    "train": "a constraint forbids it",
    "p": "dropout does nothing in inference",
    "half_to_float": "set by autocast on a GPU only",
    "layout": "strided is the only layout",
    "device": "there is one device",
    "pin_memory": "no effect on a CPU",
    "non_blocking": "no effect on a CPU",
    "copy": "copies are made where they are needed",
    "implicit": "set by vmap only",
    "dropout_p": "a constraint forbids it",
    "enable_gqa": "a constraint forbids it",
}


def uses(record: Record) -> dict[str, set[str]]:
    """Arguments (by overload) that some sample sets to another value than the default."""
    seen: dict[str, set[str]] = {}
    for index, _ in enumerate(record.samples()):
        _, _, program = samples.exported(record.name, index)
        for node in program.graph.nodes:
            if node.op != "call_function" or overload(node) not in record.overloads:
                continue
            defaults = {a.name: a.default for a in schema(torch_op(node)) if a.has_default}
            for name, value in bind(node).items():
                if name not in defaults or value != defaults[name]:
                    seen.setdefault(name, set()).add(overload(node))
    return seen


def wanted(record: Record) -> set[str]:
    """All argument names of the overloads that torch.export can produce."""
    names: set[str] = set()
    for full in record.overloads:
        space, packet, variant = full.split(".")
        if space != "aten" or not hasattr(torch.ops.aten, packet) or packet.startswith("_"):
            continue
        target: Any = getattr(getattr(torch.ops.aten, packet), variant)
        if not target._schema.is_mutable and not packet.endswith("_copy"):
            names.update(a.name for a in target._schema.arguments)
    return names - set(EXEMPT)


@pytest.mark.parametrize("name", [n for n, r in registry().records.items() if r.samples()])
def test_every_argument_is_sampled(name: str) -> None:
    record = registry().records[name]
    assert wanted(record) - set(uses(record)) == set()


def test_every_record_has_samples() -> None:
    # These exist only as the decomposed form of a record that has samples of its own.
    forms = {
        "quantize": "any quantized sample",
        "dequantize": "any quantized sample",
        "quantize_channel": "a weight left unfolded: tests/quantization",
        "dequantize_channel": "any convolution",
        "convolution": "conv2d through the ExecuTorch API",
        "batch_norm_legit": "batch_norm through the ExecuTorch API",
        "native_layer_norm": "layer_norm through to_edge",
        "native_group_norm": "group_norm through to_edge",
        "assert_metadata": "to",
    }
    missing = {n for n, r in registry().records.items() if not r.samples()}
    assert missing == set(forms)
