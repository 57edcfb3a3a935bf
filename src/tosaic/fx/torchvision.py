"""Makes torchvision work with builds of torch that its compiled operators do not load in."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path


@functools.cache
def prepare_torchvision() -> None:
    """Make torchvision importable with a torch build that its compiled operators do not load in.

    Its model definitions need none of those operators, but its import refers to three of them by name.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            ctypes.CDLL(str(library))  # loading registers its operators
        except OSError:
            continue
    schemas = {
        "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "roi_align": "(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor",
    }
    for op, schema in schemas.items():
        if not hasattr(torch.ops.torchvision, op):
            torch.library.define(f"torchvision::{op}", schema)
