"""Recurrent layers: one product of the inputs of all steps, one cell in quantization, one copy per step after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import tosaic
from tosaic.api import prepare
from tosaic.fx.unlift import unlift
from tosaic.quantization.loops import has_loops, unroll_loops
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config

STEPS, BATCH, WIDTH = 7, 2, 6
LAYERS: dict[str, Any] = {
    "lstm": (nn.LSTM, {}),
    "lstm_deep": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm_projected": (nn.LSTM, {"proj_size": 4, "bidirectional": True}),
    "lstm_projected_without_bias": (nn.LSTM, {"proj_size": 4, "bias": False}),
    "gru": (nn.GRU, {"batch_first": True}),
    "gru_deep": (nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}),
    "rnn_tanh": (nn.RNN, {"bidirectional": True}),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
}
#: what the model returns of the outputs and the last state
RESULTS: dict[str, Any] = {
    "all": lambda outputs, state: (outputs, state),
    "outputs": lambda outputs, state: outputs,
    "state": lambda outputs, state: state,
    "last": lambda outputs, state: outputs[-1],
}


class Net(nn.Module):
    def __init__(self, name: str, result: str, given: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind, options = LAYERS[name]
        self.layer, self.result, self.given = kind(WIDTH, 8, **options), RESULTS[result], given

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        state = (h, c) if isinstance(self.layer, nn.LSTM) else h
        return self.result(*self.layer(x, state if self.given else None))


def make(name: str, result: str = "all", given: bool = False, steps: int = STEPS) -> tuple[Net, Any]:
    net = Net(name, result, given).eval()
    layer, random = net.layer, torch.Generator().manual_seed(1)
    walks = layer.num_layers * (1 + layer.bidirectional)
    shape = (BATCH, steps, WIDTH) if layer.batch_first else (steps, BATCH, WIDTH)
    h = torch.randn(walks, BATCH, layer.proj_size or 8, generator=random).tanh()
    return net, (torch.randn(shape, generator=random), h, torch.randn(walks, BATCH, 8, generator=random))


def check(net: Net, inputs: Any) -> Any:
    """The unrolled graph is close to float."""
    module = tosaic.quantize(torch.export.export(net, inputs), [inputs])
    assert not has_loops(module)
    with torch.no_grad():
        got, want = (pytree.tree_leaves(run(*inputs)) for run in (module, net))
    assert [one.shape for one in got] == [one.shape for one in want]
    # The last state is small beside the others, whose range it shares.
    one, other = (torch.cat([x.flatten() for x in results]) for results in (got, want))
    assert float((one - other).square().mean() / other.square().mean()) < 1e-3
    return module


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, given: bool) -> None:
    check(*make(name, given=given))


@pytest.mark.parametrize("result", ["outputs", "state", "last"])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_results_that_are_read(name: str, result: str) -> None:
    check(*make(name, result, given=True))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_steps_share_their_ranges(name: str) -> None:
    """One product of all inputs and one of each state; every quantized value has the range of the other steps."""
    module = check(*make(name, "outputs"))
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    assert sum(str(n.target) == "aten.linear.default" for n in calls) == 1 + STEPS
    for kind in ("sigmoid", "tanh"):
        gates = [n for n in calls if str(n.target) == f"aten.{kind}.default"]
        scales = [next(iter(n.users)).args[1:3] for n in gates]
        assert len(gates) % STEPS == 0
        assert len(set(scales)) <= len(gates) // STEPS


def test_quantization_has_the_same_nodes_for_any_number_of_steps() -> None:
    sizes: set[int] = set()
    for steps in (3, 30):
        net, inputs = make("lstm", steps=steps)
        program = torch.export.export(net, inputs)
        module = prepare._quantize(program, unlift(program), [inputs], None, [])
        assert has_loops(module)
        sizes.add(len(module.graph.nodes))
        assert len(unroll_loops(module).graph.nodes) > 20 * steps
    assert len(sizes) == 1


def test_one_step() -> None:
    check(*make("lstm", given=True, steps=1))


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_one_range_for_all_steps_holds_for_other_inputs(kind: Any) -> None:
    """A range per step fits the samples that calibrate better, and all others worse: few numbers decide on it."""

    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(16, 32, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0]

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Outputs().eval()
        samples, others = ([(torch.randn(1, 12, 16),) for _ in range(16)] for _ in range(2))
    rolled = tosaic.quantize(torch.export.export(model, samples[0]), samples)
    quantizer = TosaQuantizer().set_global(get_symmetric_quantization_config())
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(model, samples[0]).module(), quantizer)
        for sample in samples:
            prepared(*sample)
        unrolled = convert_pt2e(prepared)
        errors = [sum(float((model(*x) - m(*x)).square().sum()) for x in others) for m in (rolled, unrolled)]
    assert errors[0] < errors[1]
