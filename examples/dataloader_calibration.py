"""Calibrate with the DataLoader of your training: batches, labels and all.

    python examples/dataloader_calibration.py

Ranges that are measured on one image do not fit the others: the same network is compiled with one sample, and with a
DataLoader, and both programs are compared with float.
"""

from __future__ import annotations

import own_cnn
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import tosaic


def measure_sqnr(program: tosaic.Program, model: torch.nn.Module, images: torch.Tensor) -> float:
    """Compute the signal over the error against the float model, in decibels."""
    session = program.load()
    with torch.no_grad():
        wanted = model(images)
    found = torch.cat([torch.from_numpy(session.run(image[None])[0]) for image in images])
    return float(10 * torch.log10(wanted.square().sum() / (wanted - found).square().sum()))


def main() -> None:
    torch.manual_seed(0)
    images, labels = own_cnn.load_data()
    training = TensorDataset(images[: own_cnn.TRAINING], labels[: own_cnn.TRAINING])
    model = own_cnn.Digits()
    own_cnn.train(model, *training.tensors, epochs=2)
    model.eval()

    # 128 digits in batches of 32, with their labels. Tosaic splits batches and leaves labels out.
    loader = DataLoader(Subset(training, range(128)), batch_size=32)
    example = (images[:1],)
    test = images[own_cnn.TRAINING :][:100]
    for name, calibration in (("one sample", [example]), ("DataLoader", loader)):
        program = tosaic.compile(model, example, own_cnn.TARGET, calibration=calibration)
        print(f"{name}: {measure_sqnr(program, model, test):.1f} dB")


if __name__ == "__main__":
    main()
