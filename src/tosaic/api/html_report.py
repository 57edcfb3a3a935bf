"""The HTML report of a program, with the accuracy on its samples and, on request, a verification."""

from __future__ import annotations

import math
from collections.abc import Iterator

import tosaic
from tosaic.api.torch_reference import decode_real, find_sqnr
from tosaic.formats.sidecar import Sidecar
from tosaic.report.files import Opened, make_report
from tosaic.report.html import Accuracy, Check, ReportData
from tosaic.tools.vela_options import VelaOptions


def describe(
    opened: Opened,
    title: str,
    *,
    verify: bool = False,
    options: VelaOptions | None = None,
    max_memory: int | None = None,
) -> ReportData:
    """Collect what the report of a program shows; `verify` runs it and compares the results."""
    accuracy, check = tuple(_measure(opened.kept)) if opened.kept is not None else (), None
    if verify:
        # It imports torch.
        from tosaic.api import verification

        verdict = verification.verify(opened.data, opened.kept, max_memory=max_memory, data=opened.files)
        check = Check(verdict.ok, tuple(str(verdict).splitlines()))
        samples = len(opened.kept.samples) if opened.kept is not None else 0
        outputs = opened.kept.outputs if opened.kept is not None else ()
        ran = [
            Accuracy(outputs[i].name, "the program on the simulated NPU", samples, _to_finite(figure))
            for i, figure in enumerate(verdict.sqnr)
            if i < len(outputs)
        ]
        accuracy = (*ran, *accuracy)
    version = tosaic.__version__
    return make_report(opened, title, version=version, options=options, accuracy=accuracy, check=check)


def _measure(kept: Sidecar) -> Iterator[Accuracy]:
    """Measure how far torch's quantized graph is from the float model, on the samples of the sidecar."""
    samples = [sample for sample in kept.samples if len(sample.outputs) == len(sample.torch) == len(kept.outputs)]
    for index, port in enumerate(kept.outputs if samples else ()):
        pairs = [(sample.torch[index], sample.outputs[index]) for sample in samples]
        if any(a.shape != b.shape or a.dtype.kind != "f" or b.dtype.kind != "f" for a, b in pairs):
            continue
        got = [decode_real(one, port.dtype) for one, _ in pairs]
        figure = find_sqnr(got, [decode_real(other, port.dtype) for _, other in pairs])
        yield Accuracy(port.name, "the quantized model, run by torch", len(samples), _to_finite(figure))


def _to_finite(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None
