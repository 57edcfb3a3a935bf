"""Quantization-aware training with 4-bit weights: float, quantized after training, and trained on with these weights.

    python examples/qat.py

Training is torchao's PT2E with Tosaic's quantizer. All three are compared on test data; reading digits is so easy that
the differences are small.
"""

from __future__ import annotations

import copy

import own_cnn
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

import tosaic
from tosaic.ethosu import EthosUCompileSpec
from tosaic.quantizer import EthosUQuantizer, get_symmetric_a8w4_quantization_config

SPEC = EthosUCompileSpec(own_cnn.TARGET)
BATCH = 50  # of the training, and so of the program: `torch.export` fixes all shapes


def fine_tune(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """Train on with quantized weights and activations; return the quantized graph."""
    exported = torch.export.export(copy.deepcopy(model).train(), (images[:BATCH],))
    quantizer = EthosUQuantizer(SPEC).set_global(get_symmetric_a8w4_quantization_config(is_qat=True))
    prepared = prepare_qat_pt2e(exported.module(), quantizer)
    own_cnn.train(prepared, images, labels, epochs, rate=1e-3)
    move_exported_model_to_eval(prepared)
    return convert_pt2e(prepared)


def count_right(program: tosaic.Program, images: Tensor, labels: Tensor) -> int:
    session = program.load()
    batches = zip(images.split(BATCH), labels.split(BATCH), strict=True)
    return sum(int((torch.from_numpy(session.run(x)[0]).argmax(1) == y).sum()) for x, y in batches)


def main() -> None:
    torch.manual_seed(0)
    images, labels = own_cnn.load_data()
    training = images[: own_cnn.TRAINING], labels[: own_cnn.TRAINING]
    test = images[own_cnn.TRAINING :][:250], labels[own_cnn.TRAINING :][:250]
    model = own_cnn.Digits()
    own_cnn.train(model, *training, epochs=3)

    example = (training[0][:BATCH],)
    tuned = tosaic.compile(fine_tune(model, *training, epochs=3), example, SPEC)
    model.eval()
    after = tosaic.compile(model, example, SPEC, calibration=[example], precision="a8w4")
    with torch.no_grad():
        print(f"float:                            {int((model(test[0]).argmax(1) == test[1]).sum())} of 250 digits")
    print(f"4-bit weights after training:     {count_right(after, *test)} of 250 digits")
    print(f"4-bit weights, trained with them: {count_right(tuned, *test)} of 250 digits")


if __name__ == "__main__":
    main()
