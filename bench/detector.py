"""A text detector with real weights, PP-OCRv4's small one, and pages to read: a definition of our own in the spelling
of the file that the weights come in."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import data
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn import functional

PACKAGE, FILE = "rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
SIZE = 256
#: Width, kernel, stride and whether channels are weighted, of each block of the backbone.
BLOCKS = (
    *((32, 3, 1, False), (48, 3, 2, False), (48, 3, 1, False), (96, 3, 2, False), (96, 3, 1, False)),
    *((192, 3, 2, False), *[(192, 5, 1, False)] * 4),
    *((384, 5, 2, True), (384, 5, 1, True), *[(384, 5, 1, False)] * 2),
)
#: The blocks whose results the pyramid takes, and the widths that it reduces them to.
LEVELS = {2: 12, 4: 18, 9: 42, 13: 360}


class Affine(nn.Module):
    """One factor and one addend for all channels."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.bias


class Hardswish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x + 3).clamp(0, 6) / 6


class Excite(nn.Module):
    """Weights channels by a function of their means."""

    def __init__(self, width: int, slope: float) -> None:
        super().__init__()
        self.slope = slope
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.up(self.down(functional.adaptive_avg_pool2d(x, 1)).relu())
        return x * (weights * self.slope + 0.5).clamp(0, 1)


class Level(nn.Module):
    """A convolution of the pyramid."""

    def __init__(self, before: int, after: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
        self.excite = Excite(after, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x + self.excite(x)


def _make_layer(before: int, after: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups)
    return [conv, Affine(), Hardswish(), Affine()] if stride == 1 else [conv, Affine()]


def _make_block(before: int, after: int, kernel: int, stride: int, excites: bool) -> nn.Module:
    across = _make_layer(before, before, kernel, stride, before)
    excite = [Excite(before, 1 / 6)] if excites else []
    return nn.Sequential(*across, *excite, *_make_layer(before, after, 1, 1, 1))


class Detector(nn.Module):
    """The chance of text for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        widths = [16, *(width for width, *_ in BLOCKS)]
        self.blocks = nn.ModuleList(_make_block(before, *block) for before, block in zip(widths, BLOCKS, strict=False))
        self.reduce = nn.ModuleList(nn.Conv2d(BLOCKS[index][0], width, 1) for index, width in LEVELS.items())
        # From the coarsest level to the finest, as they are computed.
        self.inner = nn.ModuleList(Level(width, 96, 1) for width in reversed(LEVELS.values()))
        self.outer = nn.ModuleList(Level(96, 24, 3) for _ in LEVELS)
        self.head = nn.Sequential(
            *(nn.Conv2d(96, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.ConvTranspose2d(24, 24, 2, 2), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.ConvTranspose2d(24, 1, 2, 2), nn.Sigmoid()),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        levels: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in LEVELS:
                levels.append(x)
        reduced = [reduce(level) for reduce, level in zip(self.reduce, levels, strict=True)]
        sums: list[Tensor] = []
        for inner, level in zip(self.inner, reversed(reduced), strict=True):
            found = inner(level)
            sums.append(found + functional.interpolate(sums[-1], scale_factor=2) if sums else found)
        results = [outer(total) for outer, total in zip(self.outer, sums, strict=True)]
        wide = [functional.interpolate(y, scale_factor=2**n) for n, y in zip((3, 2, 1), results, strict=False)]
        return self.head(torch.cat([*wide, results[-1]], 1))


@functools.cache
def load_detector() -> nn.Module:
    """The detector with its weights, which stand in its file in the order of the layers."""
    model = Detector().eval()
    weights = list(_list_weights(data.read_member(PACKAGE, FILE)))
    names = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    pairs = zip(names, weights, strict=True)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(x).reshape(shapes[name]) for name, x in pairs}, strict=False)
    return model


def _list_weights(file: bytes) -> Iterator[np.ndarray]:
    """Find the weights in an ONNX file in the order of their use: constants that are not numbers of a formula."""
    (graph,) = (value for field, value in _list_fields(file) if field == 7)
    nodes = [list(_list_fields(value)) for field, value in _list_fields(graph) if field == 1]
    known: dict[bytes, np.ndarray] = {}
    for node in nodes:
        outputs = [value for field, value in node if field == 2]
        tensors = [t for field, a in node if field == 5 for inner, t in _list_fields(a) if inner == 5]
        if tensors:
            known[outputs[0]] = _read_tensor(tensors[0])
    for node in nodes:
        inputs = [value for field, value in node if field == 1]
        yield from (known.pop(name) for name in inputs if name in known and not name.startswith(b"p2o."))


def _read_tensor(tensor: bytes) -> np.ndarray:
    """Read a tensor of 32-bit floats; others are empty, and no weights."""
    fields = dict(_list_fields(tensor))
    return np.frombuffer(fields.get(9, b"") if fields.get(2) == 1 else b"", np.float32).copy()


def _list_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Read a message of Protocol Buffers, field by field."""
    at = 0

    def read_number() -> int:
        nonlocal at
        number, shift = 0, 0
        while True:
            byte = message[at]
            at, number, shift = at + 1, number | (byte & 127) << shift, shift + 7
            if byte < 128:
                return number

    while at < len(message):
        key = read_number()
        field, kind = key >> 3, key & 7
        if kind == 0:
            yield field, read_number()
        else:
            size = {1: 8, 5: 4}.get(kind) or read_number()
            yield field, message[at : at + size]
            at += size


def draw_pages(count: int, seed: int) -> list[tuple[Tensor]]:
    """Draw pages of words in several sizes, shades and places, as the detector was trained to see them."""
    random = np.random.default_rng(seed)
    return [(_prepare(_draw_page(random)),) for _ in range(count)]


def _draw_page(random: np.random.Generator) -> Image.Image:
    """Draw lines of words, dark on light or light on dark, some of them slanted, on a background that is not even."""
    paper, ink = random.uniform(150, 255, 3), random.uniform(0, 90, 3)
    if random.random() < 0.3:
        paper, ink = ink, paper
    slope = np.linspace(0, 1, SIZE)[:, None, None] * random.uniform(-40, 40, 3)
    noise = random.normal(0, random.uniform(0, 8), (SIZE, SIZE, 3))
    page = Image.fromarray(np.clip(paper + slope + noise, 0, 255).astype(np.uint8))
    for _ in range(int(random.integers(0, 3))):
        left, top, wide, high = (int(n) for n in random.integers(0, SIZE // 2, 4))
        color = tuple(int(n) for n in random.integers(0, 256, 3))
        ImageDraw.Draw(page).rectangle((left, top, left + wide, top + high), outline=color, width=2)
    y = int(random.integers(4, 30))
    while y < SIZE - 12:
        size = int(random.integers(9, 34))
        letters = "".join(random.choice(list("etaoin shrdlu ETAOINS 0123456789"), int(random.integers(3, 30))))
        mask = Image.new("L", (SIZE, SIZE))
        ImageDraw.Draw(mask).text((int(random.integers(2, 60)), y), letters, 255, ImageFont.load_default(size))
        page.paste(tuple(int(n) for n in ink), mask=mask.rotate(float(random.choice([0, 0, random.uniform(-6, 6)]))))
        y += int(size * random.uniform(1.2, 2.5))
    return page


def _prepare(page: Image.Image) -> Tensor:
    """Blue, green, red, with the means and deviations of the training."""
    pixels = np.asarray(page, np.float32)[:, :, ::-1] / 255
    pixels = (pixels - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).unsqueeze(0)
