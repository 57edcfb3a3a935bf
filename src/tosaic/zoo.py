"""Small models by name, for the command, the tests and the bench: same weights and inputs on every call.

Nothing here is trained. Weights come from seed 0 and BatchNorm statistics from smooth random images, so that
activations have the ranges of a working network and a quantiser has something real to measure.
"""

from __future__ import annotations

import ctypes
import difflib
import functools
import importlib.util
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tosaic.errors import Invalid

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

WEIGHT_SEED = 0
# Far from the small numbers that callers pick, so that no calibration input is also a statistics image.
STATISTICS_SEED = 1 << 32
STATISTICS_PASSES, STATISTICS_BATCH = 4, 8
GRIDS = (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Model:
    """How to build one model, and the shape and kind of its single input."""

    about: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    kind: Literal["smooth", "int32"] = "smooth"
    example: Literal["ones", "random"] = "random"


def names() -> list[str]:
    """All names that `load` takes, aliases left out."""
    return sorted(MODELS)


def load(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model in eval mode and its example inputs; the global random state stays as it was."""
    model = find(name)
    import torch

    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(WEIGHT_SEED)
        module = model.build().eval()
    finally:
        torch.default_generator.set_state(before)
    _warm_statistics(module, model.shape)
    if model.example == "ones":
        return module, (torch.ones(model.shape, dtype=torch.int32 if model.kind == "int32" else torch.float32),)
    return module, inputs(name, 1, seed=0)[0]


def inputs(name: str, count: int, seed: int) -> list[tuple[Tensor, ...]]:
    """`count` inputs to calibrate or evaluate with; another seed gives other inputs, the same seed the same."""
    import torch

    model = find(name)
    generator = torch.Generator().manual_seed(seed)
    if model.kind == "int32":
        return [(torch.randint(-128, 128, model.shape, generator=generator, dtype=torch.int32),) for _ in range(count)]
    return [(_smooth(model.shape, generator),) for _ in range(count)]


def find(name: str) -> Model:
    """The entry of that name; needs no torch."""
    model = MODELS.get(ALIASES.get(name, name))
    if model is None:
        near = difflib.get_close_matches(name, [*MODELS, *ALIASES], n=3, cutoff=0.4)
        fix = f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else f"one of: {', '.join(names())}"
        raise Invalid(f"there is no model named `{name}`", fix=fix)
    return model


def _smooth(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Noise drawn on ever finer grids, enlarged linearly and summed: large shapes with detail, as in a photograph."""
    import torch
    from torch.nn import functional

    if len(shape) == 4:
        batch, channels, size, mode = shape[0], shape[1], shape[2:], "bilinear"
    elif len(shape) == 3:
        batch, channels, size, mode = shape[0], 1, shape[1:], "bilinear"
    else:
        batch, channels, size, mode = shape[0], 1, shape[1:], "linear"
    total = torch.zeros(batch, channels, *size)
    for grid in GRIDS:
        noise = torch.randn(batch, channels, *(grid for _ in size), generator=generator)
        total += functional.interpolate(noise, size=size, mode=mode, align_corners=False)
    return total.reshape(shape)


def _warm_statistics(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Sets BatchNorm statistics to the plain mean over a few batches; without it activations collapse."""
    import torch
    from torch import nn

    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    generator = torch.Generator().manual_seed(STATISTICS_SEED)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over a batch round differently with another number of threads
    try:
        with torch.no_grad():
            for _ in range(STATISTICS_PASSES):
                module(_smooth((STATISTICS_BATCH, *shape[1:]), generator))
    finally:
        torch.set_num_threads(threads)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def _build_softmax() -> nn.Module:
    from torch import nn

    return nn.Sequential(nn.Softmax(dim=1))


def _build_add() -> nn.Module:
    from torch import nn

    class Add(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x

    return Add()


def _build_mobilenet_v2() -> nn.Module:
    if importlib.util.find_spec("torchvision") is None:
        raise Invalid("this model needs torchvision", fix="pip install 'tosaic[vision]'")
    prepare_torchvision()
    from torchvision.models import mobilenet_v2

    return mobilenet_v2(weights=None)


def _build_resnet8() -> nn.Module:
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *_conv_norm(before, after, 3, stride=stride, padding=1),
                nn.ReLU(),
                *_conv_norm(after, after, 3, padding=1),
            )
            same = before == after and stride == 1
            self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride)

        def forward(self, x: Tensor) -> Tensor:
            return functional.relu(self.body(x) + self.shortcut(x))

    return nn.Sequential(
        *_conv_norm(3, 16, 3, padding=1),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AvgPool2d(8),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def _build_ds_cnn() -> nn.Module:
    from torch import nn

    layers: list[nn.Module] = [*_conv_norm(1, 64, (10, 4), stride=2, padding=(5, 1)), nn.ReLU()]
    for _ in range(4):
        layers += [*_conv_norm(64, 64, 3, padding=1, groups=64), nn.ReLU(), *_conv_norm(64, 64, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(64, 12))


def _build_deep_autoencoder() -> nn.Module:
    from torch import nn

    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 640))


def _build_encoder_layer() -> nn.Module:
    from torch import nn

    class EncoderLayer(nn.Module):
        """One transformer encoder layer, normalised after each half, with attention spelt out."""

        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.query = nn.Linear(width, width)
            self.key = nn.Linear(width, width)
            self.value = nn.Linear(width, width)
            self.out = nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.norm_attention = nn.LayerNorm(width)
            self.norm_mlp = nn.LayerNorm(width)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, width = x.shape
            depth = width // self.heads

            def split(y: Tensor) -> Tensor:
                return y.view(batch, length, self.heads, depth).transpose(1, 2)

            query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
            scores = (query @ key.transpose(-2, -1) / depth**0.5).softmax(dim=-1)
            mixed = (scores @ value).transpose(1, 2).reshape(batch, length, width)
            x = self.norm_attention(x + self.out(mixed))
            return self.norm_mlp(x + self.mlp(x))

    return EncoderLayer(128, 4)


def _conv_norm(
    before: int,
    after: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    groups: int = 1,
) -> tuple[nn.Module, nn.Module]:
    from torch import nn

    conv = nn.Conv2d(before, after, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(after)


@functools.cache
def prepare_torchvision() -> None:
    """Makes torchvision importable beside a torch build that its compiled operators do not load in.

    Its model definitions need none of those operators, but its import refers to three of them by name.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            ctypes.CDLL(str(library))  # loading registers its operators
        except OSError:
            continue
    schemas = {
        "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "roi_align": "(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor",
    }
    for op, schema in schemas.items():
        if not hasattr(torch.ops.torchvision, op):
            torch.library.define(f"torchvision::{op}", schema)


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "add": Model("x + x on int32", _build_add, (5,), kind="int32", example="ones"),
        "deep_autoencoder": Model("anomaly detection, MLPerf Tiny shape", _build_deep_autoencoder, (1, 640)),
        "ds_cnn": Model("keyword spotting, depthwise separable", _build_ds_cnn, (1, 1, 49, 10)),
        "encoder_layer": Model("transformer encoder layer, 4 heads", _build_encoder_layer, (1, 32, 128)),
        "mobilenet_v2": Model("torchvision's MobileNetV2, random weights", _build_mobilenet_v2, (1, 3, 224, 224)),
        "resnet8": Model("image classification, MLPerf Tiny shape", _build_resnet8, (1, 3, 32, 32)),
        "softmax": Model("softmax over rows", _build_softmax, (2, 2), example="ones"),
    }
)
ALIASES: Mapping[str, str] = MappingProxyType({"mv2": "mobilenet_v2"})
