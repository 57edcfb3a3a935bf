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
#: as much as a pipe holds
_PIECE = 1 << 16


def send(fd: int, header: Header, parts: Sequence[bytes] = ()) -> None:
    """Write one frame. Plain file descriptors: a buffered stream would be flushed twice after a fork."""
    text = json.dumps({"header": dict(header), "parts": [len(part) for part in parts]}).encode()
    for data in (struct.pack("<Q", len(text)), text, *parts):
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]


def receive(fd: int, deadline: float = math.inf) -> tuple[Header, list[bytes]]:
    """The next frame; EOFError if the other end is gone, TimeoutError at this time of the monotonic clock."""
    (size,) = struct.unpack("<Q", _take(fd, 8, deadline))
    frame: dict[str, Any] = json.loads(_take(fd, size, deadline))
    return frame["header"], [_take(fd, size, deadline) for size in frame["parts"]]


def _take(fd: int, size: int, deadline: float) -> bytes:
    # Grows as it is read and is given out as it is: a part is never held twice.
    data = io.BytesIO()
    while left := size - data.tell():
        if not select.select([fd], [], [], None if deadline == math.inf else max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        piece = os.read(fd, min(left, _PIECE))
        if not piece:
            raise EOFError
        data.write(piece)
    return data.getvalue()
