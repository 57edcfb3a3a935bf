"""CPU seconds of quantization: torchao's observers and ours, side by side in one run.

    python bench/quantize.py [--models mobilenet_v2 encoder_layer encoder8] [--samples 4] [--repeats 3]

`stage` is prepare, calibrate and convert together; a ratio is ours over torchao's. `float` is the forward pass of the
float model on all samples, and `calibration` is ours over that. `same` says that all scales and zero points are equal.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torchao.quantization import pt2e
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

sys.path.append(str(Path(__file__).resolve().parent))

from clock import Clock
from stages import MODELS, Sample, load

import tosaic
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config


@dataclass(frozen=True)
class Side:
    """The parts of one quantization in CPU seconds, and the parameters that it found."""

    stage: float
    calibration: float
    found: list[Any]


def quantize_with_torchao(program: Any, samples: Sequence[Sample], clock: Clock) -> Any:
    ours = get_symmetric_quantization_config()
    activation = replace(ours.input_activation, observer_or_fake_quant_ctr=pt2e.HistogramObserver.with_args(eps=2**-16))
    weight = replace(ours.weight, observer_or_fake_quant_ctr=pt2e.PerChannelMinMaxObserver)
    config = replace(ours, input_activation=activation, output_activation=activation, weight=weight)
    with torch.no_grad():
        prepared = prepare_pt2e(program.module(), TosaQuantizer().set_global(config))
        calibrate(prepared, samples, clock)
        return convert_pt2e(prepared)


def quantize_with_ours(program: Any, samples: Sequence[Sample], clock: Clock) -> Any:
    """The public function takes an iterable, so calibration lasts from the first sample to the end of the last."""

    def feed() -> Any:
        with clock.stage("calibration"):
            yield from samples

    return tosaic.quantize(program, feed())


def calibrate(module: Callable[..., Any], samples: Sequence[Sample], clock: Clock) -> None:
    with clock.stage("calibration"), torch.no_grad():
        for sample in samples:
            module(*sample)


def measure(quantize: Callable[..., Any], model: torch.nn.Module, samples: Sequence[Sample]) -> Side:
    program = torch.export.export(model, samples[0])
    clock = Clock()
    with clock.stage("all"):
        module = quantize(program, samples, clock)
    return Side(clock.seconds["all"], clock.seconds["calibration"], list(list_parameters(module)))


def list_parameters(module: Any) -> Any:
    """Numbers and buffers in the calls of a quantized graph."""
    for node in module.graph.nodes:
        if node.op == "call_function" and "quantize" in str(node.target):
            yield [a for a in node.args[1:] if isinstance(a, (int, float))]
        elif node.op == "get_attr":
            yield node.target, getattr(module, str(node.target), torch.zeros(0)).tolist()


def best(sides: Sequence[Side]) -> Side:
    return Side(min(s.stage for s in sides), min(s.calibration for s in sides), sides[0].found)


def report(name: str, count: int, repeats: int) -> None:
    model, samples = load(name, count)
    pairs = [(measure(quantize_with_torchao, model, samples), measure(quantize_with_ours, model, samples))]
    floats: list[float] = []
    for _ in range(repeats):
        clock = Clock()
        calibrate(model, samples, clock)
        floats.append(clock.seconds["calibration"])
        pairs.append((measure(quantize_with_torchao, model, samples), measure(quantize_with_ours, model, samples)))
    theirs, ours, forward = best([p[0] for p in pairs]), best([p[1] for p in pairs]), min(floats)
    print(
        f"{name:16} stage {theirs.stage:6.3f} {ours.stage:6.3f} ratio {ours.stage / theirs.stage:5.2f}   "
        f"float {forward:6.3f} calibration {theirs.calibration / forward:6.1f} {ours.calibration / forward:6.1f}   "
        f"same {theirs.found == ours.found}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in options.models:
        report(name, options.samples, options.repeats)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
