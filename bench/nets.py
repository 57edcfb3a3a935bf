"""The nets of MTCNN and Silero VAD: definitions of our own, filled with the weights of their packages."""

from __future__ import annotations

import io
from collections.abc import Sequence

import data
import torch
from torch import Tensor, nn
from torch.nn import functional


class Columns(nn.Module):
    """Flattens column by column: the order in which the weights of MTCNN were trained."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 2, 1).flatten(1)


class FaceNet(nn.Module):
    """One of MTCNN's nets: chances of no face and of a face, then boxes and marks."""

    def __init__(self, body: Sequence[nn.Module], heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.body, self.heads = nn.Sequential(*body), nn.ModuleList(heads)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.body(x)
        chance, *others = [head(x) for head in self.heads]
        return chance.softmax(1), *others


def _conv(before: int, after: int, kernel: int, pool: tuple[int, int] | None = None) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(before, after, kernel), nn.PReLU(after)]
    return [*layers, nn.MaxPool2d(*pool, ceil_mode=True)] if pool else layers


def _dense(before: int, after: int) -> list[nn.Module]:
    return [Columns(), nn.Linear(before, after), nn.PReLU(after)]


def load_face_net(name: str) -> nn.Module:
    """P-Net, R-Net or O-Net with the weights in facenet-pytorch, which stand there in the order of the layers."""
    if name == "pnet":
        body = [*_conv(3, 10, 3, (2, 2)), *_conv(10, 16, 3), *_conv(16, 32, 3)]
        model = FaceNet(body, [nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)])
    elif name == "rnet":
        body = [*_conv(3, 28, 3, (3, 2)), *_conv(28, 48, 3, (3, 2)), *_conv(48, 64, 2), *_dense(576, 128)]
        model = FaceNet(body, [nn.Linear(128, 2), nn.Linear(128, 4)])
    else:
        body = [*_conv(3, 32, 3, (3, 2)), *_conv(32, 64, 3, (3, 2)), *_conv(64, 64, 3, (2, 2)), *_conv(64, 128, 2)]
        model = FaceNet([*body, *_dense(1152, 256)], [nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)])
    weights = data.read_weights("facenet-pytorch", f"facenet_pytorch/data/{name}.pt")
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    return model.eval()


class Spectrum(nn.Module):
    """The magnitude of 65 frequencies in 4 windows, from 288 samples at 8 kHz."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = nn.Conv1d(1, 130, 128, stride=64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = self.waves(functional.pad(x, (0, 32), mode="reflect").unsqueeze(1)).chunk(2, 1)
        return (real * real + imaginary * imaginary).sqrt()


class Gates(nn.LSTMCell):
    """torch's LSTM cell, written out in operators that an NPU has."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        assert hx is not None
        h, c = hx
        linear = functional.linear
        gates = linear(input, self.weight_ih, self.bias_ih) + linear(h, self.weight_hh, self.bias_hh)
        start, keep, new, show = gates.chunk(4, 1)
        c = keep.sigmoid() * c + start.sigmoid() * new.tanh()
        return show.sigmoid() * c.tanh(), c


class Voice(nn.Module):
    """Silero VAD for 8 kHz: the chance of speech and the next state, from samples or from their spectrum."""

    def __init__(self, front: nn.Module, cell: nn.LSTMCell) -> None:
        super().__init__()
        widths = [(65, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
        convs = [nn.Conv1d(a, b, 3, stride=stride, padding=1) for a, b, stride in widths]
        self.front = front
        self.encoder = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ReLU())))
        self.cell, self.out = cell, nn.Linear(128, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, c = self.cell(self.encoder(self.front(x)).squeeze(-1), (h, c))
        return self.out(h.relu()).sigmoid(), h, c


def load_voice(front: type[nn.Module], cell: type[nn.LSTMCell]) -> nn.Module:
    """Silero's weights, which stand in its TorchScript file in the order of the layers."""
    script = torch.jit.load(io.BytesIO(data.read_member("silero-vad", "silero_vad/data/silero_vad.jit")))
    model = Voice(front(), cell(128, 128)).eval()
    # The waves of the spectrum come first; a model that is given a spectrum has none.
    weights = list(script._model_8k.state_dict().values())[-len(model.state_dict()) :]
    pairs = zip(model.state_dict().items(), weights, strict=True)
    model.load_state_dict({name: value.reshape(old.shape) for (name, old), value in pairs})
    return model
