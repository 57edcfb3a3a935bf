"""A shortcut for what torchao does slowly in a quantization. It changes no result: tests/fuzz/test_speed.py."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock

import torchao.quantization.pt2e.quantize_pt2e as pt2e


@contextmanager
def without_qat_patterns() -> Generator[None]:
    """Leave out the patterns of quantization-aware training, for a module that was not trained.

    convert_pt2e traces 96 of them for any batch norm, and finds only what that training has made.
    """
    with mock.patch.object(pt2e, "_fold_conv_bn_qat", lambda module: module):
        yield
