"""The peer's own .pte files run unchanged, and the NPU computes what the peer's TOSA says."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def peer_pte() -> Any:
    pytest.importorskip("executorch.backends.arm")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        return importlib.import_module("peer_pte")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("model", ["add", "deep_autoencoder", "ds_cnn", "encoder_layer", "mobilenet_v2", "resnet8"])
def test_the_peers_file_runs_unchanged(peer_pte: Any, model: str, target: str, tmp_path: Path) -> None:
    peer_pte.make(model, target, tmp_path)
    found = peer_pte.check(model, target, tmp_path)
    assert found["engine"] == "npu"
    assert found["delegates"] >= 1
    assert found["wrong"] == 0, found
    assert found["ok"]
