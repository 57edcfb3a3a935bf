"""A vision transformer of Hugging Face transformers on an Ethos-U85, in one delegate.

    pip install transformers
    python examples/hf_vit.py

Weights are random, so that nothing is downloaded. With your own: `ViTForImageClassification.from_pretrained(...)`,
and real images for the calibration.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tosaic
from tosaic.fx.torchvision import prepare_torchvision

# transformers imports torchvision, whose compiled operators do not load with every build of torch.
prepare_torchvision()
from transformers import ViTConfig, ViTForImageClassification  # noqa: E402

TARGET = "ethos-u85-256"
CONFIG = ViTConfig(
    image_size=64,
    patch_size=8,
    hidden_size=96,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=192,
    num_labels=10,
)


class Logits(nn.Module):
    """Returns a tensor, where models of transformers return an object with several."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixel_values=pixels).logits


def main() -> None:
    torch.manual_seed(0)
    model = Logits(ViTForImageClassification(CONFIG)).eval()
    samples = [(torch.rand(1, 3, 64, 64),) for _ in range(8)]
    program = tosaic.compile(model, samples[0], TARGET, calibration=samples)
    print(program)
    print(program.verify())


if __name__ == "__main__":
    main()
