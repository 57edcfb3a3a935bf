"""Frames between a worker and its child: a length-prefixed JSON header, then raw binary parts."""

from __future__ import annotations

import io
import json
import math
import os
import select
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

#: Both ends are ours, so the fields of a header are not checked again.
Header: TypeAlias = Mapping[str, Any]


def send(fd: int, header: Header, parts: Sequence[bytes] = ()) -> None:
    """Write one frame. Plain file descriptors: a buffered stream would be flushed twice after a fork."""
    text = json.dumps({"header": dict(header), "parts": [len(part) for part in parts]}).encode()
    for data in (struct.pack("<Q", len(text)), text, *parts):
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]


def receive(fd: int, deadline: float = math.inf) -> tuple[Header, list[bytes]]:
    """Read the next frame; raise EOFError if the other end has exited, TimeoutError at this monotonic time."""
    (size,) = struct.unpack("<Q", _take(fd, 8, deadline))
    frame: dict[str, Any] = json.loads(_take(fd, size, deadline))
    return frame["header"], [_take(fd, size, deadline) for size in frame["parts"]]


def _take(fd: int, size: int, deadline: float) -> bytes:
    # Allocated at its final size and returned without a copy: a part is never held twice.
    data, at = io.BytesIO(), 0
    if size:
        data.seek(size - 1)
        data.write(b"\0")
    with data.getbuffer() as view:
        while at < size:
            limit = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            if not select.select([fd], [], [], limit)[0]:
                raise TimeoutError
            count = os.readv(fd, [view[at:]])
            if not count:
                raise EOFError
            at += count
    return data.getvalue()
