"""A language model on an Ethos-U85, one token at a time: the key and value caches stay in int8 between the steps.

    python examples/decoder_step.py [TOKENS]

Two layers of the Llama kind (RMS norm, rotary positions, attention to a cache, gated linear units), 64 wide, learn one
sentence by heart. One step of the model is one delegate. It continues the sentence on the simulated NPU, and torch's
quantized model does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import tosaic

TEXT = "a token goes in, the layers read what came before, and the next token comes out. then it starts again. "
LETTERS = sorted(set(TEXT))
LENGTH, WIDTH, HEADS = 64, 64, 4
HIDDEN = -30.0  # the score of a position that is not filled yet
TARGET = "ethos-u85-256"


class Layer(nn.Module):
    """A decoder layer with the keys and values of all positions so far."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS), persistent=False)

    def attend(
        self, x: torch.Tensor, turn: torch.Tensor, store: Callable[..., Any], seen: torch.Tensor
    ) -> torch.Tensor:
        parts = self.project(self.before(x)).reshape(1, -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        keys, values = store(self, rotate(parts[1], turn), parts[2])
        scores = rotate(parts[0], turn) @ keys.mT * (WIDTH // HEADS) ** -0.5
        weights = torch.where(seen, scores, HIDDEN).softmax(-1)
        return self.out((weights @ values).permute(0, 2, 1, 3).reshape(1, -1, WIDTH))

    def forward(
        self, x: torch.Tensor, turn: torch.Tensor, store: Callable[..., Any], seen: torch.Tensor
    ) -> torch.Tensor:
        x = x + self.attend(x, turn, store, seen)
        y = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of features by an angle for their position; `turn` has the cosines and the sines."""
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-second, first], -1) * turn[1]


class Decoder(nn.Module):
    """Takes a token and its position, and returns the scores of the next token."""

    turns: torch.Tensor
    positions: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(len(LETTERS), WIDTH), nn.RMSNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, len(LETTERS), bias=False)
        speeds = 100.0 ** (-torch.arange(WIDTH // HEADS // 2) / (WIDTH // HEADS // 2)).repeat(2)
        angles = torch.arange(LENGTH)[:, None] * speeds
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]))
        self.register_buffer("positions", torch.arange(LENGTH, dtype=torch.int32))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        here = (self.positions == position)[:, None]

        def store(layer: Layer, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            layer.keys.copy_(torch.where(here, keys, layer.keys))
            layer.values.copy_(torch.where(here, values, layer.values))
            return layer.keys, layer.values

        turn = self.turns.index_select(1, position)
        return self.finish(self.embedding(token)[None], turn, store, self.positions <= position)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """Read a whole text at once, for training: nothing is stored."""
        seen = self.positions[: len(tokens)] <= self.positions[: len(tokens), None]
        return self.finish(
            self.embedding(tokens)[None], self.turns[:, : len(tokens)], lambda _, keys, values: (keys, values), seen
        )

    def finish(
        self, x: torch.Tensor, turn: torch.Tensor, store: Callable[..., Any], seen: torch.Tensor
    ) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, turn, store, seen)
        return self.head(self.norm(x))


def train(steps: int = 120) -> Decoder:
    """Train until the text is known by heart."""
    torch.manual_seed(0)
    model = Decoder()
    text = torch.tensor([LETTERS.index(letter) for letter in TEXT * 2])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(steps):
        start = step * 37 % len(TEXT)
        part = text[start : start + LENGTH + 1]
        loss = nn.functional.cross_entropy(model.read(part[:-1])[0], part[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def make_input(letter: str, position: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([LETTERS.index(letter)], dtype=torch.int32), torch.tensor([position], dtype=torch.int32)


def generate(step: Callable[..., Any], count: int) -> str:
    """Let a model continue the first letter of the text."""
    text = TEXT[0]
    for position in range(count):
        scores = torch.as_tensor(step(*make_input(text[-1], position)))
        text += LETTERS[int(scores.argmax())]
    return text


def compile_step(model: Decoder) -> tuple[Any, tosaic.Program]:
    """Quantize one step with the text as calibration data, and compile it; return torch's quantized model, too."""
    samples = [make_input(letter, position) for position, letter in enumerate(TEXT[:LENGTH])]
    quantized = tosaic.quantize(torch.export.export(model, samples[0]), samples)
    return quantized, tosaic.compile(quantized, samples[0], TARGET)


def main(count: int) -> None:
    model = train()
    quantized, program = compile_step(model)
    print(program)
    session = program.load()
    with torch.no_grad():
        wanted = generate(quantized, count)
    found = generate(lambda *inputs: session.run(*inputs)[0], count)
    print("torch ", wanted)
    print("NPU   ", found)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
