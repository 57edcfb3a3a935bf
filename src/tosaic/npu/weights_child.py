"""The worker that decodes compressed weights: the native code exits the process when a stream is damaged."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Sequence

from ethosu import mlw_codec

from tosaic.tools import wire
from tosaic.tools.serve import serve

#: A damaged stream may request any number of zeros.
_MAX_BYTES = 384 << 20
#: The functions behind `mlw_codec.decode`, which itself makes a Python object of every weight.
_CODEC = ctypes.CDLL(mlw_codec.__file__)
_CODEC.mlw_free_outbuf.restype = None


def _handle(body: wire.Header, parts: list[bytes]) -> tuple[wire.Header, Sequence[bytes]]:
    # A core without output channels has an empty stream, which the decoder rejects.
    return {}, [_decode(part, body["most"]) if part else b"" for part in parts]


def _decode(stream: bytes, most: int) -> bytes:
    """Decode a stream into 16-bit weights."""
    found = ctypes.POINTER(ctypes.c_int16)()
    count = _CODEC.mlw_decode(stream, len(stream), ctypes.byref(found), 0)
    try:
        if count > most:
            raise ValueError(f"it decodes to {count} weights; the maximum is {most}")
        return ctypes.string_at(found, 2 * count)
    finally:
        _CODEC.mlw_free_outbuf(found)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
    serve(_handle)
