"""The host's side of the mailbox: runs the NPU jobs of a firmware under QEMU, which has no NPU.

The messages are described in `mailbox.c` of the board.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from tosaic.board.description import Board
from tosaic.board.job import Npu, Outcome, Queue, Status
from tosaic.board.memory import Memory
from tosaic.board.npu_registers import make_config, make_id
from tosaic.board.stopwatch import Stopwatch
from tosaic.npu.errors import Fault
from tosaic.npu.perf import Estimate
from tosaic.npu.pmu import PMU_EVENTS, count_events
from tosaic.npu.stream import parse

_IDENTITY, _JOB = struct.Struct("<2I"), struct.Struct("<12I")
_COUNTERS = 7
_ANSWER = struct.Struct(f"<IQ{_COUNTERS}I")
_OTHER_NPU = 0xFFFFFFFF


class Mailbox:
    """Answers messages. `memory` is what firmware and host share; `note` is called with the reason of a fault."""

    def __init__(self, board: Board, accelerator: str, memory: Memory, note: Callable[[str], None]) -> None:
        self._board, self._npu, self._note = board, Npu(accelerator, memory), note
        #: The time of this machine that jobs took.
        self.stopwatch = Stopwatch()

    def answer(self, receive: Callable[[int], bytes]) -> bytes:
        """Read one message and return the answer; empty when there are no more messages."""
        kind = receive(1)
        if kind == b"C":
            accelerator = self._npu.accelerator
            return _IDENTITY.pack(make_id(accelerator.family), make_config(accelerator))
        if kind != b"J":
            return b""
        words = _JOB.unpack(receive(_JOB.size))
        with self.stopwatch:
            return self._run(words[:4], words[4:8], words[8:])

    def _run(self, parts: tuple[int, ...], sizes: tuple[int, ...], shared: tuple[int, ...]) -> bytes:
        data = self._npu.memory.read(shared[0], sizes[0])
        try:
            stream = None if data is None else parse(data.tobytes())
        except Fault as error:
            return self._finish(Outcome(Status.PARSE_ERROR, 0, error.what))
        if stream is None:
            return self._finish(Outcome(Status.BUS_ERROR, 0, "the commands are not in the shared memory"))
        if stream.accelerator != self._npu.accelerator:
            return _ANSWER.pack(_OTHER_NPU, 0, *[0] * _COUNTERS)
        size = 4 * len(stream.words)
        regions = {number: address for number, address in enumerate(shared[1:]) if address}
        queue = Queue(shared[0] + sizes[0] - size, size, regions)
        outcome = self._npu.run(queue)
        areas = {number: self._board.find_area(parts[number + 1]) for number in regions}
        ports = {number: area.port for number, area in areas.items() if area is not None and area.port}
        return self._finish(outcome, self._npu.estimate(queue, ports))

    def _finish(self, outcome: Outcome, found: Estimate | None = None) -> bytes:
        if outcome.reason:
            self._note(outcome.reason)
        counts = count_events(found) if found is not None else {}
        events = [counts.get(name, 0) for name in PMU_EVENTS[self._npu.accelerator.family]]
        padded = [*events, *[0] * _COUNTERS][:_COUNTERS]
        return _ANSWER.pack(outcome.status, 0 if found is None else found.cycles, *padded)
