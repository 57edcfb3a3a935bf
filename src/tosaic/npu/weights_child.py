"""The decoder of compressed weights in a child process: the native code ends its process when a stream is damaged."""

from __future__ import annotations

import resource
from array import array
from collections.abc import Sequence

from ethosu.mlw_codec import decode

from tosaic.tools import wire
from tosaic.tools.serve import serve

#: A damaged stream may ask for any number of zeros.
_MAX_BYTES = 384 << 20


def _handle(body: wire.Header, parts: tuple[bytes, ...]) -> tuple[wire.Header, Sequence[bytes]]:
    # A core without output channels has an empty stream, which the decoder does not take.
    return {}, [array("h", decode(bytearray(part)) if part else ()).tobytes() for part in parts]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
    serve(_handle)
