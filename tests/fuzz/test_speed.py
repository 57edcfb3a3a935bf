"""The shortcuts of a campaign change no result, and its graphs are small in the mean."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest

from support import samples
from support.fuzzer import campaign
from support.fuzzer.generate import Generator
from support.golden import list_ops, write_op


@pytest.mark.slow
@pytest.mark.parametrize("op", list_ops())
def test_shortcuts_change_no_graph(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = write_op(op)
    samples.quantize_sample.cache_clear()
    monkeypatch.setattr(samples, "without_qat_patterns", contextlib.nullcontext)
    assert write_op(op) == quick


def test_graphs_have_about_8_steps_and_3_to_30() -> None:
    sizes = [Generator(seed).wanted for seed in range(1000)]
    assert 7.5 < sum(sizes) / len(sizes) < 8.5
    assert (min(sizes), max(sizes)) == (3, 30)


def test_cpu_seconds_include_a_child_that_still_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        before, own, end = campaign._cpu(), time.process_time(), time.monotonic() + 20
        while (spent := campaign._cpu() - before - (time.process_time() - own)) < 0.2 and time.monotonic() < end:
            time.sleep(0.05)
        child.kill()
    assert spent >= 0.2
