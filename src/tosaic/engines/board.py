"""The engine `board`: a firmware with the .pte, built here and run by the virtual board, by QEMU or by Arm's FVP."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence

import numpy as np

from tosaic.board.cpu import import_unicorn
from tosaic.board.description import Board, find_board, list_boards, suit_board
from tosaic.board.device import run_firmware
from tosaic.board.elf import read_elf
from tosaic.board.execution import Execution, name_output
from tosaic.board.options import BoardOptions
from tosaic.board.project import name_data
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.targets import find
from tosaic.engines.interpreter import Executor, Npu, list_calls
from tosaic.engines.protocol import Engine, Job, Result
from tosaic.formats import blob as ethosu_blob
from tosaic.formats.blob import BACKEND
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan, Pte, Tensor
from tosaic.formats.sidecar import Sidecar
from tosaic.formats.tensors import TensorType, order_in_memory, type_of
from tosaic.npu.stream import parse

#: The name of the engine.
BOARD = "board"
#: The symbol of the .pte in an ELF file.
MODEL = "tosaic_model"
_ELF = b"\x7fELF"


class BoardRuntime(Engine):
    """A board."""

    title = "the board"

    def find_obstacle(self) -> str:
        return "" if importlib.util.find_spec("unicorn") else "the package `unicorn` is not installed"

    def require(self) -> None:
        import_unicorn()

    def run(self, job: Job) -> Result:
        board, accelerator = choose_board(job.program, job.board)
        elf = job.board.elf if job.board.elf is not None else _build(job, board)
        inputs = pack_inputs(job.plan, job.inputs) if job.inputs else []
        done = run_firmware(board, elf, accelerator, inputs, job.board)
        return Result(read_outputs(job.plan, done), list_calls(job.plan), done)

    def open(self, plan: Plan, sidecar: Sidecar | None, budget: Budget) -> Executor:
        return Npu(budget=budget)


def _build(job: Job, board: Board) -> bytes:
    from tosaic.board.build import build

    return build(job.pte, board, method=job.method, data=job.data).elf


def is_elf(data: bytes) -> bool:
    """Tell whether a file is a firmware rather than a .pte."""
    return data[:4] == _ELF


def extract_model(elf: bytes) -> tuple[bytes, list[bytes]]:
    """Return the .pte in a firmware, and its .ptd files."""
    program = read_elf(elf)
    names = itertools.takewhile(program.symbols.__contains__, map(name_data, itertools.count()))
    return program.read_symbol(MODEL), [program.read_symbol(name) for name in names]


def choose_board(program: Pte, options: BoardOptions) -> tuple[Board, str]:
    """Choose the board, and the NPU that it has: the one that the program is for, if the board exists with it."""
    wanted = find_accelerator(program)
    if not options.board:
        board = suit_board(wanted) if wanted else find_board(list_boards()[0])
    else:
        board = find_board(options.board)
    return board, wanted if wanted in board.npu.accelerators else board.npu.accelerators[0]


def match_board(program: Pte, target: str) -> Board:
    """Return the board with the NPU of a target, after checking that a program is for that NPU, or for none."""
    accelerator, wanted = find_accelerator(program), find(target).name
    if accelerator not in ("", wanted):
        raise Invalid(
            f"the program is for `{accelerator}`, not for `{wanted}`",
            fix=f"compile it for `{wanted}`, or choose the target `{accelerator}`",
        )
    return suit_board(wanted)


def find_accelerator(program: Pte) -> str:
    """Return the NPU that a program was compiled for; empty if it runs on the CPU alone."""
    for delegate in (delegate for plan in program.plans for delegate in plan.delegates):
        if delegate.id != BACKEND:
            raise Invalid(f"a board has no backend `{delegate.id}`", fix="compile the model for an Ethos-U")
        parts = ethosu_blob.unpack(delegate.blob, named=program.named_data)
        return parse(parts.cmd_data).accelerator.name
    return ""


def pack_inputs(plan: Plan, inputs: Sequence[Array]) -> list[bytes]:
    """Return the bytes of the inputs as a program has them in memory."""
    if len(inputs) != len(plan.inputs):
        raise Invalid(f"{len(inputs)} inputs were given, but the program takes {len(plan.inputs)}")
    packed: list[bytes] = []
    for position, (index, array) in enumerate(zip(plan.inputs, inputs, strict=True)):
        spec = plan.values[index]
        if not isinstance(spec, Tensor):
            packed.append(b"")
            continue
        wanted, given = type_of(spec), TensorType(array.dtype, array.shape)
        if wanted != given:
            raise Invalid(
                f"input {position} is {given}, but the program takes {wanted}",
                fix=f"convert it to {wanted.dtype} with shape {list(wanted.shape)}",
            )
        packed.append(np.ascontiguousarray(array.transpose(spec.dim_order)).tobytes())
    return packed


def read_outputs(plan: Plan, done: Execution) -> list[Array]:
    """Read the outputs that a firmware has written; none if it only ran its tests."""
    if not any(name_output(i) in done.files for i in range(len(plan.outputs))):
        return []
    return [_read_output(plan, position, index, done) for position, index in enumerate(plan.outputs)]


def _read_output(plan: Plan, position: int, index: int, done: Execution) -> Array:
    spec = plan.values[index]
    if not isinstance(spec, Tensor):
        return np.asarray(spec)
    data, stored = done.files.get(name_output(position), b""), order_in_memory(spec)
    if len(data) != spec.nbytes:
        raise ToolFailed(
            f"the firmware wrote {len(data)} bytes of output {position}",
            log=done.log,
            why=f"it has {spec.nbytes} bytes",
        )
    array: Array = np.frombuffer(data, stored.dtype).reshape(stored.shape)
    return np.ascontiguousarray(array.transpose([spec.dim_order.index(dim) for dim in range(len(spec.shape))]))
