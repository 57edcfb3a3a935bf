"""The high-level API from several threads."""

from __future__ import annotations

import logging
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import tosaic
from support.extras import has_converter


def test_four_threads_compile_what_one_compiles() -> None:
    targets = ("ethos-u55-128", "ethos-u85-256", "vgf" if has_converter() else "ethos-u65-256", "TOSA-1.0+FP")
    models = [nn.Sequential(nn.Linear(8, n), nn.ReLU(), nn.Linear(n, 4)).eval() for n in (5, 6, 7, 9)]
    x = torch.linspace(-1, 1, 8).reshape(1, 8)
    expected = [tosaic.compile(m, (x,), t).pte for m, t in zip(models, targets, strict=True)]
    loggers = [logging.getLogger(name) for name in ("torch", "torchao", "executorch")]
    state = list(warnings.filters), [one.level for one in loggers]
    start = threading.Barrier(4)

    def compile_one(index: int) -> bytes:
        start.wait()
        return tosaic.compile(models[index], (x,), targets[index]).pte

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compile_one, range(4))) == expected
    assert (list(warnings.filters), [one.level for one in loggers]) == state
