"""What the accuracy of int8 is measured with: real weights, real data to calibrate and other real data to judge.

A study runs on anything that takes a model's inputs and gives its outputs: the float model, or a compiled file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import data
import detector
import models
import nets
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tosaic import zoo

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
    #: what the figures show
    remark: str = ""


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
def labeled_inputs() -> list[Inputs]:
    return [(models.prepare_photo(models.crop_middle(photo)),) for photo, _ in data.labeled_photos()]


@functools.cache
def crop_inputs() -> list[Inputs]:
    photos = [data.read_photo(*path) for path in data.EVALUATION_PHOTOS] + [p for p, _ in data.labeled_photos()]
    return [(models.prepare_photo(crop),) for crop in models.crop_photos(photos, CROPS, seed=1000)]


def efficientnet_calibration() -> list[Inputs]:
    return models.inputs(models.EFFICIENTNET, 64, seed=1)


# Models of the zoo without real weights


def make_zoo_study(name: str, title: str, count: int) -> Study:
    """Random weights decide nothing that matters, so only decibels are judged."""
    return Study(
        name,
        title,
        f"{count} smooth random inputs",
        f"{count} others",
        lambda: zoo.load(name)[0],
        lambda: zoo.inputs(name, count, 1),
        run_each(lambda: zoo.inputs(name, count, 7)),
        lambda scores: scores[:0],
    )


# ResNet-8 on CIFAR-10


def cifar_calibration() -> list[Inputs]:
    """Images of the training set."""
    chosen = np.random.default_rng(1).choice(50_000, 128, replace=False)
    return [(x[None],) for x in models.prepare_cifar(data.cifar10()["train"][chosen])]


def cifar_inputs() -> list[Inputs]:
    return [(x[None],) for x in models.prepare_cifar(data.cifar10()["test"])]


# MTCNN's nets on faces


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
        functools.partial(nets.load_face_net, name),
        functools.partial(face_inputs, size, calibrate=True),
        run_each(functools.partial(face_inputs, size, calibrate=False)),
        find_face,
        face_labels,
    )


# Silero VAD on speech


def list_prompts(first: int, last: int) -> list[Array]:
    """Spoken prompts, in an order of their own."""
    prompts = list(data.speech().values())
    return [prompts[i] for i in np.random.default_rng(0).permutation(len(prompts))[first:last]]


def listen(run: Callable[[Inputs], Any], prompt: Array, front: nn.Module) -> Iterator[tuple[Inputs, Tensor]]:
    """Every call for a prompt, 256 new samples after 32 old ones, with the chance that came out."""
    # Two tensors: torch.export takes one that is given twice for one input.
    h, c = torch.zeros(1, 128), torch.zeros(1, 128)
    padded = torch.from_numpy(np.concatenate([np.zeros(32, np.float32), prompt]))
    for start in range(0, len(prompt) - 255, 256):
        with torch.no_grad():
            inputs = (front(padded[None, start : start + 288]), h, c)
            chance, h, c = (torch.as_tensor(y) for y in run(inputs))
        yield inputs, chance


def make_voice_study(name: str, what: str, front: type[nn.Module], cell: type[nn.LSTMCell]) -> Study:
    """A model that does not make the spectrum itself is given that of the float model."""
    load = functools.partial(nets.load_voice, front, cell)

    def load_before() -> nn.Module:
        return nn.Identity() if front is nets.Spectrum else nets.load_voice(nets.Spectrum, cell).get_submodule("front")

    def calibration() -> list[Inputs]:
        model, before = load(), load_before()
        calls = [inputs for prompt in list_prompts(0, 24) for inputs, _ in listen(lambda x: model(*x), prompt, before)]
        return calls[::8]

    def evaluate(run: Run) -> Iterator[Array]:
        before = load_before()
        for prompt in list_prompts(24, 64):
            yield np.concatenate([chance.numpy().reshape(-1) for _, chance in listen(run, prompt, before)])

    return Study(
        name,
        f"Silero VAD for 8 kHz, real weights; {what}",
        "40 spoken prompts of Debian's asterisk-core-sounds-en-wav, a decision every 32 ms, the state carried along",
        "every eighth call for 24 other prompts",
        load,
        calibration,
        evaluate,
        lambda chances: (chances > 0.5).astype(int),
    )


DETECTOR = (
    "Between its convolutions are one factor and one addend for all channels and a hardswish written as "
    "`x * clamp(x + 3, 0, 6) / 6`. With a range for each of these operators there are eight roundings from one "
    "convolution to the next, and Tosaic was below the peer, 11.95 dB here; the peer has seven, as it folds the factor "
    "into the convolution. An addend is rarely a multiple of the scale, so that the error can be the same for a whole "
    "area of even paper. Now all that depends on one tensor alone is one table (`quantization/functions.py`): two "
    "roundings. Folding factor and addend instead, in the old form, did not always help: 14.0 dB, not 11.7, on 16 of "
    "these pages, but 6.4, not 6.5, on pages of one gray."
)
_PHOTOS = (
    "64 crops of four photographs (scikit-image: coffee, motorcycle; scikit-learn: china; mahotas: DepartmentStore)"
)
STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study(
            "efficientnet_labeled",
            "EfficientNet-Lite0, ImageNet weights",
            "the 20 labeled ImageNet photographs in foolbox, middle at 224x224",
            _PHOTOS,
            models.load_efficientnet,
            efficientnet_calibration,
            run_each(labeled_inputs),
            find_class,
            lambda: np.array([label for _, label in data.labeled_photos()]),
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
        Study(
            "text_detector",
            "PP-OCRv4's small text detector, real weights",
            "32 drawn pages of 256x256, a decision for each pixel",
            "16 other drawn pages",
            detector.load_detector,
            functools.partial(detector.draw_pages, 16, seed=1),
            run_each(functools.partial(detector.draw_pages, 32, seed=2)),
            lambda chances: (chances > 0.3).astype(int),
            remark=DETECTOR,
        ),
        make_face_study("pnet", "P-Net", 12),
        make_face_study("rnet", "R-Net", 24),
        make_face_study("onet", "O-Net", 48),
        make_voice_study("silero_whole", "samples in, all of it compiled", nets.Spectrum, nets.Gates),
        make_voice_study("silero_spectrum", "spectrum in float before it", nn.Identity, nets.Gates),
        make_voice_study("silero_cell", "spectrum in float before it, torch's LSTM cell", nn.Identity, nn.LSTMCell),
    )
}
