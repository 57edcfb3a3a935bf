"""What the accuracy of int8 is measured with: real weights, real data to calibrate and other real data to judge.

A study runs on anything that takes a model's inputs and gives its outputs: the float model, or a compiled file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import data
import models
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Array: TypeAlias = np.ndarray[Any, Any]
Inputs: TypeAlias = tuple[Tensor, ...]
Run: TypeAlias = Callable[[Inputs], Sequence[Array]]


@dataclass(frozen=True)
class Study:
    """`evaluate` gives the scores of every item that is judged, `decide` what they mean, `labels` what is true."""

    name: str
    model: str
    measured_on: str
    calibrated_on: str
    load: Callable[[], nn.Module]
    calibration: Callable[[], list[Inputs]]
    evaluate: Callable[[Run], Iterator[Array]]
    decide: Callable[[Array], Array]
    labels: Callable[[], Array] | None = None
    #: so many runs of the NPU are compared with the TOSA reference model
    checked: int = 20
    #: whether the peer is measured, too
    peer: bool = True


def run_each(inputs: Callable[[], Sequence[Inputs]]) -> Callable[[Run], Iterator[Array]]:
    """A study whose items are single calls: all outputs of a call are its scores."""

    def evaluate(run: Run) -> Iterator[Array]:
        for one in inputs():
            yield np.concatenate([output.reshape(-1) for output in run(one)])

    return evaluate


def find_class(scores: Array) -> Array:
    return scores.argmax(keepdims=True)


# EfficientNet-Lite0 on photographs

CROPS = 400


@functools.cache
def labelled_inputs() -> list[Inputs]:
    return [(models.prepare_photo(models.crop_middle(photo)),) for photo, _ in data.labelled_photos()]


@functools.cache
def crop_inputs() -> list[Inputs]:
    photos = [data.read_photo(*path) for path in data.EVALUATION_PHOTOS] + [p for p, _ in data.labelled_photos()]
    return [(models.prepare_photo(crop),) for crop in models.crop_photos(photos, CROPS, seed=1000)]


def efficientnet_calibration() -> list[Inputs]:
    return models.inputs(models.EFFICIENTNET, 64, seed=1)


# ResNet-8 on CIFAR-10


def cifar_calibration() -> list[Inputs]:
    """Images of the training set."""
    chosen = np.random.default_rng(1).choice(50_000, 128, replace=False)
    return [(x[None],) for x in models.prepare_cifar(data.cifar10()["train"][chosen])]


def cifar_inputs() -> list[Inputs]:
    return [(x[None],) for x in models.prepare_cifar(data.cifar10()["test"])]


# MTCNN's nets on faces


class Columns(nn.Module):
    """Flattens column by column: the order in which the weights of MTCNN were trained."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 2, 1).flatten(1)


class FaceNet(nn.Module):
    """One of MTCNN's nets: chances of no face and of a face, then boxes and marks."""

    def __init__(self, body: Sequence[nn.Module], heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.body, self.heads = nn.Sequential(*body), nn.ModuleList(heads)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.body(x)
        chance, *others = [head(x) for head in self.heads]
        return chance.softmax(1), *others


def _conv(before: int, after: int, kernel: int, pool: tuple[int, int] | None = None) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(before, after, kernel), nn.PReLU(after)]
    return [*layers, nn.MaxPool2d(*pool, ceil_mode=True)] if pool else layers


def _dense(before: int, after: int) -> list[nn.Module]:
    return [Columns(), nn.Linear(before, after), nn.PReLU(after)]


def load_face_net(name: str) -> nn.Module:
    """P-Net, R-Net or O-Net with the weights in facenet-pytorch, which stand there in the order of the layers."""
    if name == "pnet":
        body = [*_conv(3, 10, 3, (2, 2)), *_conv(10, 16, 3), *_conv(16, 32, 3)]
        model = FaceNet(body, [nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)])
    elif name == "rnet":
        body = [*_conv(3, 28, 3, (3, 2)), *_conv(28, 48, 3, (3, 2)), *_conv(48, 64, 2), *_dense(576, 128)]
        model = FaceNet(body, [nn.Linear(128, 2), nn.Linear(128, 4)])
    else:
        body = [*_conv(3, 32, 3, (3, 2)), *_conv(32, 64, 3, (3, 2)), *_conv(64, 64, 3, (2, 2)), *_conv(64, 128, 2)]
        model = FaceNet([*body, *_dense(1152, 256)], [nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)])
    weights = data.read_weights("facenet-pytorch", f"facenet_pytorch/data/{name}.pt")
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    return model.eval()


#: Every fifth image calibrates, the others are judged.
FACE_STEP = 5


def face_inputs(size: int, *, calibrate: bool) -> list[Inputs]:
    images = torch.from_numpy(data.faces()).float()[:, None].expand(-1, 3, -1, -1)
    images = (functional.interpolate(images, size=(size, size), mode="area") * 255 - 127.5) / 128
    return [(x[None],) for index, x in enumerate(images) if (index % FACE_STEP == 0) == calibrate]


def face_labels() -> Array:
    return np.array([int(index < 100) for index in range(200) if index % FACE_STEP])


def find_face(scores: Array) -> Array:
    return scores[:2].argmax(keepdims=True)


def make_face_study(name: str, title: str, size: int) -> Study:
    return Study(
        name,
        f"MTCNN's {title}, real weights",
        f"160 images of scikit-image's lfw_subset, 80 of them faces, enlarged or reduced to {size}x{size}",
        "the other 40 images of lfw_subset",
        functools.partial(load_face_net, name),
        functools.partial(face_inputs, size, calibrate=True),
        run_each(functools.partial(face_inputs, size, calibrate=False)),
        find_face,
        face_labels,
    )


_PHOTOS = (
    "64 crops of four photographs (scikit-image: coffee, motorcycle; scikit-learn: china; mahotas: DepartmentStore)"
)
STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study(
            "efficientnet_labelled",
            "EfficientNet-Lite0, ImageNet weights",
            "the 20 labelled ImageNet photographs in foolbox, middle at 224x224",
            _PHOTOS,
            models.load_efficientnet,
            efficientnet_calibration,
            run_each(labelled_inputs),
            find_class,
            lambda: np.array([label for _, label in data.labelled_photos()]),
        ),
        Study(
            "efficientnet_crops",
            "EfficientNet-Lite0, ImageNet weights",
            f"{CROPS} crops of 25 photographs: the 20 in foolbox, and astronaut, chelsea, rocket (scikit-image), "
            "flower (scikit-learn), quokka (imgaug)",
            _PHOTOS,
            models.load_efficientnet,
            efficientnet_calibration,
            run_each(crop_inputs),
            find_class,
        ),
        Study(
            "resnet8_cifar10",
            "the zoo's ResNet-8, trained on CIFAR-10 by this bench",
            "the 10,000 test images of CIFAR-10",
            "128 training images of CIFAR-10",
            models.load_resnet8,
            cifar_calibration,
            run_each(cifar_inputs),
            find_class,
            lambda: data.cifar10()["test_labels"],
            checked=100,
        ),
        make_face_study("pnet", "P-Net", 12),
        make_face_study("rnet", "R-Net", 24),
        make_face_study("onet", "O-Net", 48),
    )
}
