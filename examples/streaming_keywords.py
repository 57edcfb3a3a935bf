"""A keyword spotter that hears one frame at a time: the past of each convolution stays in int8 between the frames.

    python examples/streaming_keywords.py [CLIPS]

The keywords are a rising and a falling tone in noise, so that no data is needed. The model is trained on whole clips,
and runs frame by frame on a simulated Ethos-U55: each convolution keeps the frames that it needs again. The result is
that of a clip at once, for the work of one frame.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import nn

import tosaic

BINS, WIDTH, CLIP, KERNEL = 16, 24, 24, 5
WORDS = ("noise", "rising", "falling")
TARGET = "ethos-u55-128"


class Stream(nn.Module):
    """A convolution over time that never looks ahead; it remembers the frames that its next call needs."""

    past: torch.Tensor

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels, WIDTH, KERNEL, dilation=dilation)
        self.register_buffer("past", torch.zeros(1, channels, (KERNEL - 1) * dilation), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take one or more new frames."""
        if self.training:
            return self.convolution(nn.functional.pad(x, (self.past.shape[-1], 0))).relu()
        frames = torch.cat([self.past, x], -1)
        self.past.copy_(frames[..., x.shape[-1] :])
        return self.convolution(frames).relu()


class Spotter(nn.Module):
    """Scores of the words at each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Stream(BINS, 1), Stream(WIDTH, 2), Stream(WIDTH, 4))
        self.words = nn.Conv1d(WIDTH, len(WORDS), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(self.layers(x))


def make_clip(word: int) -> torch.Tensor:
    """Make the spectrum of a clip: noise, and a tone that moves through all bins."""
    clip = 0.3 * torch.rand(BINS, CLIP)
    bins = torch.arange(CLIP) * BINS // CLIP
    if word:
        clip[bins if word == 1 else BINS - 1 - bins, torch.arange(CLIP)] += 1.0
    return clip[None]


def train(steps: int = 150) -> Spotter:
    """Train on clips; the last frame of a clip tells its word."""
    torch.manual_seed(0)
    model = Spotter()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(steps):
        words = torch.randint(len(WORDS), (16,))
        scores = model(torch.cat([make_clip(int(word)) for word in words]))[..., -1]
        loss = nn.functional.cross_entropy(scores, words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def listen(seed: int, clips: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the frames of some clips, each with the word that ends there, or -1."""
    torch.manual_seed(seed)
    for _ in range(clips):
        word = int(torch.randint(len(WORDS), ()))
        clip = make_clip(word)
        for frame in range(CLIP):
            yield word if frame == CLIP - 1 else -1, clip[..., frame : frame + 1].clone()


def compile_spotter(model: Spotter) -> tosaic.Program:
    samples = [(frame,) for _, frame in listen(seed=1, clips=8)]
    return tosaic.compile(model, samples[0], TARGET, calibration=samples)


def main(clips: int) -> None:
    program = compile_spotter(train())
    print(program)
    session = program.load()
    right = total = 0
    for word, frame in listen(seed=2, clips=clips):
        scores = session.run(frame)[0][0, :, 0]
        if word >= 0:
            total, right = total + 1, right + int(scores.argmax() == word)
            print(f"{WORDS[word]:<8} heard {WORDS[int(scores.argmax())]}")
    print(f"{right} of {total} words")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
