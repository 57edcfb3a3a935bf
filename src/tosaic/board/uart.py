"""A serial port as Arm's boards have it (CMSDK): collects what the firmware prints."""

from __future__ import annotations

from tosaic.core.errors import ToolFailed

_DATA, _STATE, _CONTROL = 0x00, 0x04, 0x08
_TRANSMIT = 1 << 0
#: The end of the log.
EOT = 4
#: A log is not longer than this.
_MOST = 8 << 20


class Uart:
    """The port. `ended` is set by the byte EOT, which is not part of the text."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._registers = {_CONTROL: 0}
        self.ended = False

    @property
    def text(self) -> str:
        return self._data.decode("utf-8", "replace").replace("\r\n", "\n")

    def read(self, offset: int, size: int) -> int:
        # Each byte leaves at once: the buffer is never full.
        return 0 if offset == _STATE else self._registers.get(offset, 0)

    def write(self, offset: int, size: int, value: int) -> None:
        if offset != _DATA:
            self._registers[offset] = value
            return
        if not self._registers[_CONTROL] & _TRANSMIT:
            raise ToolFailed("the firmware prints to a UART that does not transmit", why="bit 0 of its CTRL is not set")
        if value & 0xFF == EOT:
            self.ended = True
        elif len(self._data) < _MOST:
            self._data.append(value & 0xFF)
        else:
            raise ToolFailed("the firmware prints too much", why=f"more than {_MOST:,} bytes")
