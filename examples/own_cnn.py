"""A network of your own from training to int8: reads handwritten digits, and is compared with float on test data.

    python examples/own_cnn.py

The data (1,797 digits of 8x8 pixels) comes with scikit-learn, which ExecuTorch installs.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tosaic

TARGET = "ethos-u55-128"
TRAINING = 1500


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).mean((2, 3)))


def load_data() -> tuple[Tensor, Tensor]:
    """Load images and labels in a fixed random order; the first `TRAINING` are for training."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.images[:, None] / 16, dtype=torch.float32)[order], torch.tensor(data.target)[order]


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, rate: float = 5e-3) -> None:
    torch.set_num_threads(1)  # the model is too small for more
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def count_right(program: tosaic.Program, images: Tensor, labels: Tensor) -> int:
    """Count the digits that the program reads correctly, on the simulated NPU."""
    session = program.load()
    return sum(
        int(session.run(image[None])[0].argmax()) == int(label) for image, label in zip(images, labels, strict=True)
    )


def main() -> None:
    torch.manual_seed(0)
    images, labels = load_data()
    model = Digits()
    train(model, images[:TRAINING], labels[:TRAINING], epochs=5)
    model.eval()

    samples = [(image[None],) for image in images[:64]]
    program = tosaic.compile(model, samples[0], TARGET, calibration=samples)
    print(program)
    print(program.verify())

    images, labels = images[TRAINING:], labels[TRAINING:]
    with torch.no_grad():
        right = int((model(images).argmax(1) == labels).sum())
    print(f"float: {right} of {len(labels)} digits")
    print(f"int8:  {count_right(program, images, labels)} of {len(labels)} digits")


if __name__ == "__main__":
    main()
