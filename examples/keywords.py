"""Keyword spotting on recorded speech: ten spoken digits, "unknown" and silence, on an Ethos-U55.

    python examples/keywords.py

The recordings are the prompts of a telephone system (Debian's package asterisk-core-sounds-en-wav, fetched once with
`apt-get download` into out/keywords; nothing is installed). Each digit is recorded once, by one voice: training and
test use copies with other speeds, volumes and noise. That shows the whole way, from sound to the NPU; it does not show
how well other voices would be understood.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import tosaic
from tosaic import zoo

TARGET = "ethos-u55-128"
PACKAGE = "asterisk-core-sounds-en-wav"
FOLDER = Path("out") / "keywords"
RATE, FRAMES, BANDS = 8000, 49, 10
WORDS = [*map(str, range(10)), "unknown", "silence"]


def fetch() -> dict[str, Tensor]:
    """Fetch the recordings, by name: `digits/7` is a spoken seven."""
    if not list(FOLDER.rglob("*.wav")):
        FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", PACKAGE], cwd=FOLDER, check=True, capture_output=True)
        (package,) = FOLDER.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=FOLDER, check=True)
    sounds: dict[str, Tensor] = {}
    for path in sorted(FOLDER.rglob("*.wav")):
        with wave.open(str(path)) as file:
            data = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        sounds[f"{path.parent.name}/{path.stem}"] = torch.from_numpy(data.astype(np.float32) / 32768)
    return sounds


def make_clip(sounds: dict[str, Tensor], others: list[Tensor], label: int) -> Tensor:
    """Make one second of sound: a word with another speed, volume and place, and noise."""
    clip = torch.zeros(RATE)
    if WORDS[label] != "silence":
        word = others[int(torch.randint(len(others), ()))] if label == 10 else sounds[f"digits/{label}"]
        speed = 0.85 + 0.3 * float(torch.rand(()))
        word = nn.functional.interpolate(word[None, None], scale_factor=1 / speed, mode="linear")[0, 0][:RATE]
        start = int(torch.randint(RATE - len(word) + 1, ()))
        clip[start : start + len(word)] = word * (0.5 + float(torch.rand(())))
    return clip + 0.01 * float(torch.rand(())) * torch.randn(RATE)


def compute_features(clips: Tensor) -> Tensor:
    """Compute the logarithm of the energy in 10 bands, 49 times a second: what the network takes."""
    window = torch.hann_window(320)
    power = torch.stft(clips, 320, 160, window=window, center=False, return_complex=True).abs().square()
    edges = torch.logspace(np.log10(2), np.log10(160), BANDS + 1).round().long()
    bands = [power[:, a : max(b, a + 1)].mean(1) for a, b in itertools.pairwise(edges)]
    return torch.stack(bands, -1)[:, None, :FRAMES].clamp(min=1e-6).log() / 5 + 1


def make_data(sounds: dict[str, Tensor], others: list[Tensor], count: int, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    labels = torch.arange(count) % len(WORDS)
    clips = torch.stack([make_clip(sounds, others, int(label)) for label in labels])
    return compute_features(clips), labels


def train(model: nn.Module, features: Tensor, labels: Tensor, epochs: int = 6) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(features)).split(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features[batch]), labels[batch]).backward()
            optimizer.step()
    model.eval()


def main() -> int:
    try:
        sounds = fetch()
    except (OSError, subprocess.CalledProcessError):
        print(f"the recordings cannot be fetched: `apt-get download {PACKAGE}` failed")
        return 1
    short = [sound[:RATE] for name, sound in sounds.items() if not name.startswith("digits/") and len(sound) > 2000]
    model, _ = zoo.load("ds_cnn")
    features, labels = make_data(sounds, short[::2], 960, seed=1)
    train(model, features, labels)

    samples = [(x[None],) for x in features[:48]]
    program = tosaic.compile(model, samples[0], TARGET, calibration=samples)
    print(program)
    print(program.verify())
    # The unknown words of the test are not those of the training.
    features, labels = make_data(sounds, short[1::2], 120, seed=2)
    session = program.load()
    with torch.no_grad():
        wanted = model(features).argmax(1)
    heard = torch.tensor([int(session.run(x[None])[0].argmax()) for x in features])
    print(f"float: {int((wanted == labels).sum())} of {len(labels)} clips")
    print(f"int8:  {int((heard == labels).sum())} of {len(labels)} clips")
    return 0


if __name__ == "__main__":
    sys.exit(main())
