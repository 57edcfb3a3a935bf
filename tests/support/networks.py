"""Small networks of the kinds that people deploy, with the structure of the real ones: seeded, and fast to compile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Network: TypeAlias = tuple[nn.Module, tuple[Tensor, ...]]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores if mask is None else scores + mask, -1) @ v


class Attention(nn.Module):
    """Attention of one sequence to another, with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self._split(f(t)) for f, t in ((self.q, x), (self.k, y), (self.v, y)))
        return self.out(_attend(q, k, v, mask).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class BertLayer(nn.Module):
    """An encoder of tokens with an attention mask that the caller passes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(12, width)
        self.kinds = nn.Embedding(2, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.attention = Attention(width, 4)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]] + self.kinds.weight[0]
        x = self.norms[0](x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -16.0
        x = self.norms[1](x + self.attention(x, x, mask))
        return self.norms[2](x + self.down(F.gelu(self.up(x))))


class RmsNorm(nn.Module):
    """Normalization without a mean, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class LlamaBlock(nn.Module):
    """A decoder block with rotary positions, grouped keys, a causal mask and a gated feed-forward layer."""

    cos: Tensor
    sin: Tensor
    mask: Tensor

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2, length: int = 8) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, groups * size, bias=False)
        self.v, self.out = nn.Linear(width, groups * size, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 64, bias=False), nn.Linear(width, 64, bias=False)
        self.down = nn.Linear(64, width, bias=False)
        self.norms = nn.ModuleList([RmsNorm(width), RmsNorm(width)])
        angles = torch.arange(length)[:, None] / 100.0 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1))
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        q = self._rotate(self.q(h).unflatten(-1, (self.heads, -1)).transpose(1, 2))
        k = self._rotate(self.k(h).unflatten(-1, (self.groups, -1)).transpose(1, 2))
        v = self.v(h).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        x = x + self.out(_attend(q, k, v, self.mask).transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def _rotate(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin


class WhisperEncoder(nn.Module):
    """Two convolutions over a spectrogram, sinusoidal positions, and an encoder layer."""

    places: Tensor

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(20, width, 3, padding=1), nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.layer = nn.TransformerEncoderLayer(
            width, 4, 64, batch_first=True, norm_first=True, activation="gelu", dropout=0.0
        )
        self.norm = nn.LayerNorm(width)
        angles = torch.arange(12)[:, None] * torch.exp(-torch.arange(width // 2) / 2.0)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], -1))

    def forward(self, mel: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.places
        return self.norm(self.layer(x))


class WhisperDecoderStep(nn.Module):
    """One step of a decoder: attention to earlier keys and values, then to the encoder's result, then logits."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.own, self.cross = Attention(width, 4), Attention(width, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)
        self.tokens = nn.Linear(width, 40, bias=False)

    def forward(self, x: Tensor, past: Tensor, audio: Tensor) -> Tensor:
        h = self.norms[0](x)
        x = x + self.own(h, torch.cat([past, h], 1))
        x = x + self.cross(self.norms[1](x), audio)
        x = x + self.down(F.gelu(self.up(self.norms[2](x))))
        return self.tokens(self.norms[3](x))


class Vit(nn.Module):
    """Patches, a class token, positions, and an encoder layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, stride=8)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.1)
        self.layer = nn.TransformerEncoderLayer(
            width, 4, 64, batch_first=True, norm_first=True, activation="gelu", dropout=0.0
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layer(x))[:, 0])


class SwinBlock(nn.Module):
    """Attention inside shifted windows, with relative positions and the mask of the shift; then patches are merged."""

    mask: Tensor

    def __init__(self, width: int = 16, side: int = 8, window: int = 4) -> None:
        super().__init__()
        self.side, self.window, self.shift = side, window, window // 2
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)
        self.bias = nn.Parameter(torch.randn(2, window**2, window**2) * 0.1)
        self.register_buffer("mask", self._make_mask())
        self.merge_norm, self.merge = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def _make_mask(self) -> Tensor:
        parts = torch.zeros(self.side, self.side)
        spans = (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for i, rows in enumerate(spans):
            for j, columns in enumerate(spans):
                parts[rows, columns] = 3 * i + j
        flat = self._windows(parts[None, :, :, None]).squeeze(-1)
        return torch.where(flat[:, None, :] == flat[:, :, None], 0.0, -100.0)[:, None]

    def _windows(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = x.view(n, h // self.window, self.window, w // self.window, self.window, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, self.window**2, c)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        y = self._windows(torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2)))
        y = self.attention(y, y, self.mask + self.bias)
        y = y.view(n, h // self.window, w // self.window, self.window, self.window, c)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.merge(self.merge_norm(torch.cat(corners, -1)))


class MobileVitBlock(nn.Module):
    """Convolutions around an encoder layer over the pixels of unfolded patches."""

    def __init__(self, channels: int = 16, width: int = 24) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.SiLU(),
            nn.Conv2d(channels, width, 1),
        )
        self.layer = nn.TransformerEncoderLayer(width, 4, 48, batch_first=True, norm_first=True, dropout=0.0)
        self.back = nn.Sequential(nn.Conv2d(width, channels, 1), nn.SiLU())
        self.join = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.local(x)
        n, c, h, w = y.shape
        y = y.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 2, 4, 1).reshape(n * 4, h * w // 4, c)
        y = self.layer(y).reshape(n, 2, 2, h // 2, w // 2, c).permute(0, 5, 3, 1, 4, 2).reshape(n, c, h, w)
        return self.join(torch.cat([x, self.back(y)], 1))


class EfficientFormerBlock(nn.Module):
    """Pooling instead of attention, with layer scales, then attention with biases."""

    def __init__(self, width: int = 16, side: int = 4) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.5))
        self.mlp = nn.Sequential(nn.Conv2d(width, 32, 1), nn.BatchNorm2d(32), nn.GELU(), nn.Conv2d(32, width, 1))
        self.attention, self.norm = Attention(width, 2), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.randn(2, side * side, side * side) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale * (F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x)
        x = x + self.scale * self.mlp(x)
        y = x.flatten(2).transpose(1, 2)
        y = y + self.attention(self.norm(y), self.norm(y), self.bias)
        return y.mean(1)


class ConvNextBlock(nn.Module):
    """A wide depthwise convolution, a norm over channels and an inverted bottleneck, then a downsampling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, 1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.7))
        self.shrink = nn.Conv2d(width, 2 * width, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)
        return self.shrink(x + y)


class LevitBlock(nn.Module):
    """Attention with narrow keys, a bias by relative position, batch norms, and hardswish."""

    index: Tensor

    def __init__(self, width: int = 16, side: int = 4) -> None:
        super().__init__()
        self.qkv, self.qkv_norm = nn.Linear(width, 2 * (8 + 8 + 16), bias=False), nn.BatchNorm1d(2 * (8 + 8 + 16))
        self.out, self.out_norm = nn.Linear(32, width, bias=False), nn.BatchNorm1d(width)
        points = [(i, j) for i in range(side) for j in range(side)]
        offsets = [(abs(a - c), abs(b - d)) for a, b in points for c, d in points]
        known = {offset: i for i, offset in enumerate(dict.fromkeys(offsets))}
        self.biases = nn.Parameter(torch.randn(2, len(known)) * 0.2)
        self.register_buffer("index", torch.tensor([known[o] for o in offsets]).view(side**2, side**2))

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        y = self.qkv_norm(self.qkv(x).flatten(0, 1)).view(n, length, 2, -1)
        q, k, v = y.split([8, 8, 16], -1)
        y = _attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self.biases[:, self.index])
        y = F.hardswish(y.transpose(1, 2).reshape(n, length, 32))
        return x + self.out_norm(self.out(y).flatten(0, 1)).view(n, length, -1)


class DetrHead(nn.Module):
    """Learned queries attend to an image; classes and boxes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.project, self.queries = nn.Conv2d(16, width, 1), nn.Parameter(torch.randn(1, 5, width))
        self.rows, self.columns = nn.Parameter(torch.randn(6, width // 2)), nn.Parameter(torch.randn(6, width // 2))
        self.layer = nn.TransformerDecoderLayer(width, 4, 64, batch_first=True, dropout=0.0)
        self.classes, self.boxes = nn.Linear(width, 4), nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.project(x)
        h, w = x.shape[-2:]
        grid = [self.columns[:w].unsqueeze(0).repeat(h, 1, 1), self.rows[:h].unsqueeze(1).repeat(1, w, 1)]
        memory = x.flatten(2).transpose(1, 2) + 0.1 * torch.cat(grid, -1).flatten(0, 1)
        y = self.layer(self.queries, memory)
        return self.classes(y), self.boxes(y).sigmoid()


class YoloHead(nn.Module):
    """A pyramid of two levels, boxes as distributions over distances (DFL), and classes."""

    centers: Tensor
    strides: Tensor

    def __init__(self, channels: int = 16, classes: int = 3, bins: int = 8) -> None:
        super().__init__()
        self.bins = bins
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(channels, channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.SiLU())
        self.split = nn.Conv2d(2 * channels, channels, 1)
        self.box = nn.ModuleList([nn.Conv2d(channels, 4 * bins, 1) for _ in range(2)])
        self.kind = nn.ModuleList([nn.Conv2d(channels, classes, 1) for _ in range(2)])
        self.dfl = nn.Conv2d(bins, 1, 1, bias=False)
        self.dfl.weight.data = torch.arange(bins, dtype=torch.float32).view(1, bins, 1, 1)
        centers = [self._make_centers(8, 2.0), self._make_centers(4, 4.0)]
        self.register_buffer("centers", torch.cat([c for c, _ in centers], -1))
        self.register_buffer("strides", torch.cat([s for _, s in centers], -1))

    @staticmethod
    def _make_centers(side: int, stride: float) -> tuple[Tensor, Tensor]:
        y, x = torch.meshgrid(torch.arange(side) + 0.5, torch.arange(side) + 0.5, indexing="ij")
        return torch.stack([x.flatten(), y.flatten()]), torch.full((1, side * side), stride)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        coarse = self.down(fine)
        fine = self.split(torch.cat([fine, F.interpolate(coarse, scale_factor=2.0, mode="nearest")], 1))
        levels = [torch.cat([self.box[i](f), self.kind[i](f)], 1).flatten(2) for i, f in enumerate((fine, coarse))]
        boxes, kinds = torch.cat(levels, 2).split([4 * self.bins, 3], 1)
        n, _, count = boxes.shape
        distances = self.dfl(boxes.view(n, 4, self.bins, count).transpose(2, 1).softmax(1)).view(n, 4, count)
        start, end = distances.chunk(2, 1)
        low, high = self.centers - start, self.centers + end
        return torch.cat([torch.cat([(low + high) / 2.0, high - low], 1) * self.strides, kinds.sigmoid()], 1)


class UnetGroupNorm(nn.Module):
    """A U-Net of two levels with group norms, as in diffusion models."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.start, self.inner = self._block(3, width), self._block(width, 2 * width)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.end, self.out = self._block(2 * width, width), nn.Conv2d(width, 2, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        fine = self.start(x)
        coarse = self.inner(self.down(fine))
        return self.out(self.end(torch.cat([fine, self.up(coarse)], 1)))


class DeepLabHead(nn.Module):
    """Atrous convolutions of several rates and a pooled image, upsampled to the size of the input."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, stride=4, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.rates = nn.ModuleList(
            [nn.Conv2d(width, 8, 1), *(nn.Conv2d(width, 8, 3, padding=r, dilation=r) for r in (3, 6, 9))]
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 8, 1), nn.ReLU())
        self.project, self.classes = nn.Conv2d(40, width, 1), nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        size = y.shape[-2:]
        image = F.interpolate(self.pool(y), size=size, mode="bilinear", align_corners=False)
        y = self.project(torch.cat([*(torch.relu(rate(y)) for rate in self.rates), image], 1))
        return F.interpolate(self.classes(y), size=x.shape[-2:], mode="bilinear", align_corners=False)


class SsdLite(nn.Module):
    """Depthwise heads on two levels; boxes and scores of all of them in one list."""

    def __init__(self, width: int = 16, classes: int = 3, anchors: int = 2) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU6())
        self.down = nn.Sequential(
            nn.Conv2d(width, width, 3, 2, 1, groups=width), nn.ReLU6(), nn.Conv2d(width, width, 1)
        )
        heads = [self._head(width, anchors * size) for size in (4, 4, classes, classes)]
        self.boxes, self.scores = nn.ModuleList(heads[:2]), nn.ModuleList(heads[2:])

    @staticmethod
    def _head(width: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width),
            nn.BatchNorm2d(width),
            nn.ReLU6(),
            nn.Conv2d(width, outputs, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.stem(x)
        levels = (fine, self.down(fine))
        boxes = [head(f).permute(0, 2, 3, 1).reshape(1, -1, 4) for head, f in zip(self.boxes, levels, strict=True)]
        scores = [
            head(f).permute(0, 2, 3, 1).reshape(1, -1, self.classes)
            for head, f in zip(self.scores, levels, strict=True)
        ]
        return torch.cat(boxes, 1), torch.cat(scores, 1).softmax(-1)


class ConformerBlock(nn.Module):
    """Half-step feed-forward layers, attention and a gated depthwise convolution over time."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(5)])
        self.first, self.second = (
            nn.Sequential(nn.Linear(width, 48), nn.SiLU(), nn.Linear(48, width)) for _ in range(2)
        )
        self.attention = Attention(width, 4)
        self.gate, self.depthwise = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm, self.point = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(self.norms[0](x))
        h = self.norms[1](x)
        x = x + self.attention(h, h)
        h = F.glu(self.gate(self.norms[2](x).transpose(1, 2)), 1)
        x = x + self.point(F.silu(self.norm(self.depthwise(h)))).transpose(1, 2)
        return self.norms[4](x + 0.5 * self.second(self.norms[3](x)))


class Tcn(nn.Module):
    """Causal dilated convolutions that are padded on both sides and cut, with residuals."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(width, width, 3, padding=2 * d, dilation=d) for d in (1, 2, 4, 8)])
        self.out = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            y = conv(x)
            x = torch.relu(x + torch.relu(y[:, :, : x.shape[-1]]))
        return self.out(x[:, :, -1])


class WaveNet(nn.Module):
    """Causal convolutions with gates, residuals and skips."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.dilations = (1, 2, 4, 8)
        self.start = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList([nn.Conv1d(width, 2 * width, 2, dilation=d) for d in self.dilations])
        self.points = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in self.dilations])
        self.skips = nn.ModuleList([nn.Conv1d(width, 16, 1) for _ in self.dilations])
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 16, 1), nn.ReLU(), nn.Conv1d(16, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        total = torch.zeros(x.shape[0], 16, x.shape[2])
        for d, gate, point, skip in zip(self.dilations, self.gates, self.points, self.skips, strict=True):
            a, b = gate(F.pad(x, (d, 0))).chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            total, x = total + skip(y), x + point(y)
        return self.end(total)


class PointNet(nn.Module):
    """A learned transform of points, shared layers, and the maximum over all points."""

    identity: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.matrix = nn.Linear(16, 9)
        self.shared = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 32, 1))
        self.head = nn.Linear(32, 5)
        self.register_buffer("identity", torch.eye(3).flatten())

    def forward(self, x: Tensor) -> Tensor:
        matrix = (self.matrix(torch.max(self.transform(x), 2)[0]) + self.identity).view(-1, 3, 3)
        x = torch.bmm(x.transpose(2, 1), matrix).transpose(2, 1)
        return F.log_softmax(self.head(torch.max(self.shared(x), 2, keepdim=True)[0].view(-1, 32)), -1)


class Recurrent(nn.Module):
    """A recurrent layer and a classifier on its last step."""

    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layer, self.out = layer(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0][:, -1])


class TextDetector(nn.Module):
    """Scalar scales and shifts around a spelled-out hardswish, squeeze-excite, a pyramid, transposed convolutions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(4)])
        self.points = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(4)])
        self.scales = nn.Parameter(torch.tensor([0.8, 1.2, 0.9, 1.1]))
        self.shifts = nn.Parameter(torch.tensor([0.1, -0.2, 0.05, 0.3]))
        self.squeeze, self.excite = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.up1, self.up2 = nn.ConvTranspose2d(width, 8, 2, stride=2), nn.ConvTranspose2d(8, 1, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for i, (depthwise, point) in enumerate(zip(self.blocks, self.points, strict=True)):
            y = point(self._swish(depthwise(x) * self.scales[i] + self.shifts[i]))
            x = x + y * F.hardsigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        x = x + F.interpolate(self.down(x), scale_factor=2, mode="nearest")
        return torch.sigmoid(self.up2(torch.relu(self.up1(x))))

    @staticmethod
    def _swish(x: Tensor) -> Tensor:
        return x * torch.clamp(x + 3.0, 0.0, 6.0) / 6.0


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def _make_bert() -> Network:
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0]])
    return BertLayer(), (torch.arange(8).view(1, 8) * 5 % 50, mask)


#: Every network with its inputs; the weights are seeded by `make`.
NETWORKS: Mapping[str, Callable[[], Network]] = {
    "bert": _make_bert,
    "llama_block": lambda: (LlamaBlock(), (_random(1, 8, 32),)),
    "whisper_encoder": lambda: (WhisperEncoder(), (_random(1, 20, 24),)),
    "whisper_decoder_step": lambda: (WhisperDecoderStep(), (_random(1, 1, 32), _random(1, 5, 32), _random(1, 12, 32))),
    "vit": lambda: (Vit(), (_random(1, 3, 32, 32),)),
    "swin": lambda: (SwinBlock(), (_random(1, 8, 8, 16),)),
    "mobilevit": lambda: (MobileVitBlock(), (_random(1, 16, 8, 8),)),
    "efficientformer": lambda: (EfficientFormerBlock(), (_random(1, 16, 4, 4),)),
    "convnext": lambda: (ConvNextBlock(), (_random(1, 16, 8, 8),)),
    "levit": lambda: (LevitBlock(), (_random(1, 16, 16),)),
    "detr_head": lambda: (DetrHead(), (_random(1, 16, 4, 5),)),
    "yolo_dfl": lambda: (YoloHead(), (_random(1, 3, 16, 16),)),
    "unet_group_norm": lambda: (UnetGroupNorm(), (_random(1, 3, 16, 16),)),
    "deeplab_v3": lambda: (DeepLabHead(), (_random(1, 3, 32, 32),)),
    "ssdlite": lambda: (SsdLite(), (_random(1, 3, 16, 16),)),
    "conformer": lambda: (ConformerBlock(), (_random(1, 10, 24),)),
    "tcn": lambda: (Tcn(), (_random(1, 12, 32),)),
    "wavenet": lambda: (WaveNet(), (_random(1, 1, 32),)),
    "pointnet": lambda: (PointNet(), (_random(1, 3, 20),)),
    "lstm": lambda: (Recurrent(nn.LSTM), (_random(1, 12, 8),)),
    "gru": lambda: (Recurrent(nn.GRU), (_random(1, 12, 8),)),
    "text_detector": lambda: (TextDetector(), (_random(1, 3, 32, 32),)),
}


def make(name: str) -> Network:
    """Make a network in eval mode, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = NETWORKS[name]()
    return model.eval(), inputs
