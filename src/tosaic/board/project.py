"""The source files of a firmware: runtime, kernels, application, board, and the files generated for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tosaic.board.description import Board
from tosaic.board.kernels import FIRMWARE, KernelSource, make_table
from tosaic.board.placement import MODES, is_copied, make_script
from tosaic.board.pools import SIZES, Pools, round_up
from tosaic.core.errors import Invalid
from tosaic.formats.pte import Plan

#: The folders with headers.
HEADERS = (".", "app", "board")
#: The most values of an output that the firmware prints.
MAX_VALUES = 1000
DATA_SUFFIX = ".ptd"
#: The sources that are written for a model; all others are the same for models with the same kernels.
GENERATED = ("kernels.c", "model.c")


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs, and the outputs that they must give: bytes as in memory, one for each input and output."""

    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """What a firmware runs: a method of a .pte, its pools, its kernels, and samples with their tolerance.

    data  the .ptd files of a program that has some of its data outside the .pte
    """

    pte: bytes
    plan: Plan
    method: int
    pools: Pools
    kernels: tuple[KernelSource, ...]
    samples: tuple[Sample, ...] = ()
    atol: float = 0.0
    rtol: float = 0.0
    data: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all files in the memory of the model."""
        return sum(round_up(len(file)) for file in (self.pte, *self.data))


def make_project(model: Model, board: Board, mode: str) -> dict[str, bytes]:
    """Return the files of the firmware by name."""
    files: dict[str, bytes] = {}
    sources = {kernel.path for kernel in model.kernels}
    for path in sorted(FIRMWARE.rglob("*")):
        is_kernel = path.parent.name == "kernels"
        # Of the folder of kernels: those selected, and what kernels share.
        unused = is_kernel and path.suffix == ".c" and path not in sources and b"\nTOSAIC_KERNEL(" in path.read_bytes()
        if path.suffix in (".c", ".h", ".ld") and not unused:
            files[path.relative_to(FIRMWARE).as_posix()] = path.read_bytes()
    for path in sorted(board.folder.iterdir()):
        if path.suffix in (".c", ".h"):
            files[f"board/{path.name}"] = path.read_bytes()
    files["board.ld"] = (board.folder / "board.ld").read_bytes()
    files["sections.ld"] = files.pop("app/sections.ld")
    files["memory_mode.ld"] = (board.folder / MODES[mode]).read_bytes()
    files["memory.ld"] = make_script(board, model.pools).encode()
    files["board/board_config.h"] = make_config(board).encode()
    files["kernels.c"] = make_table(model.kernels).encode()
    files["model.pte"] = model.pte
    files |= {name_data(index) + DATA_SUFFIX: data for index, data in enumerate(model.data)}
    files["model.c"] = _make_model(model, is_written=is_copied(board, mode)).encode()
    for number, sample in enumerate(model.samples):
        _check_sample(model.plan, sample)
        for side, arrays in (("input", sample.inputs), ("output", sample.outputs)):
            files |= {f"sample-{number}-{side}-{index}.bin": data for index, data in enumerate(arrays)}
    return files


def name_data(index: int) -> str:
    """Return the C name of a .ptd file."""
    return f"tosaic_data_{index}"


def make_config(board: Board) -> str:
    """Write the addresses of a board as C."""
    rows = {
        "BOARD_CLOCK": f"{board.clock}u",
        "BOARD_UART": f"0x{board.uarts[0]:08x}u",
        "BOARD_NPU": f"0x{board.npu.bases[0]:08x}u",
        "BOARD_NPU_INTERRUPT": f"{board.npu.interrupt}u",
    }
    lines = ["/* The addresses of board.toml. Generated. */", "#ifndef BOARD_CONFIG_H", "#define BOARD_CONFIG_H", ""]
    return "\n".join([*lines, *(f"#define {name} {value}" for name, value in rows.items()), "", "#endif", ""])


def _check_sample(plan: Plan, sample: Sample) -> None:
    if (len(sample.inputs), len(sample.outputs)) != (len(plan.inputs), len(plan.outputs)):
        raise Invalid(
            f"a sample has {len(sample.inputs)} inputs and {len(sample.outputs)} outputs",
            why=f"the program has {len(plan.inputs)} and {len(plan.outputs)}",
        )


def _make_model(model: Model, *, is_written: bool) -> str:
    """Write the model as C: the .pte, the pools, and the samples."""
    steps = len(model.plan.operators) + len(model.plan.delegates)
    lines = ["/* The model of this build. Generated. */", '#include "model.h"', '#include "delegate.h"', ""]
    lines += [
        f'_Static_assert(sizeof({name}) == {size}, "the pools are computed for other sizes");'
        for name, size in SIZES.items()
    ]
    flags = "aw" if is_written else "a"
    names = [name_data(index) for index in range(len(model.data))]
    lines += ["", _include("tosaic_model", "model.pte", ".model", flags=flags)]
    lines += [_include(name, name + DATA_SUFFIX, ".model", flags=flags) for name in names]
    lines += [f"extern const uint8_t {name}[];" for name in names]
    rows = [f"{{.start = {name}, .size = {len(data)}}}" for name, data in zip(names, model.data, strict=True)]
    # C has no empty arrays.
    lines += [f"model_data_file model_data[] = {{{', '.join(rows) or '{.size = 0}'}}};"]
    lines += [f"const uint32_t model_data_count = {len(names)};"]
    lines += [f"const uint32_t model_size = {len(model.pte)};", f"const uint32_t model_method = {model.method};"]
    lines += [f"const uint32_t model_max_values = {MAX_VALUES};", ""]
    for name, size in model.pools.list_sizes().items():
        lines += [f"extern uint8_t {name}_pool[];", f"tosaic_pool model_{name}_pool = {{{name}_pool, {size}, 0, 0}};"]
    lines += ["", *_make_array("const uint32_t model_planned", model.pools.buffers)]
    lines += [f"uint64_t model_cycles[{max(1, steps)}];", f"uint32_t model_calls[{max(1, steps)}];"]
    lines += [f"const uint32_t model_step_count = {steps};", ""]
    lines += [f"const float model_atol = {_to_c(model.atol)};", f"const float model_rtol = {_to_c(model.rtol)};"]
    return "\n".join([*lines, *_make_samples(model.samples), ""])


def _make_array(name: str, numbers: Sequence[int]) -> list[str]:
    # C has no empty arrays.
    items = ", ".join(map(str, numbers)) or "0"
    return [f"{name}_sizes[] = {{{items}}};", f"{name}_count = {len(numbers)};"]


def _to_c(number: float) -> str:
    return f"{float.hex(number)}f"


def _include(symbol: str, file: str, section: str, *, flags: str = "a") -> str:
    """Write an array with the bytes of a file."""
    return (
        f'__asm__(".section {section},\\"{flags}\\",%progbits\\n"\n'
        f'        ".balign 16\\n"\n'
        f'        ".global {symbol}\\n"\n'
        f'        ".type {symbol}, %object\\n"\n'
        f'        "{symbol}:\\n"\n'
        f'        ".incbin \\"{file}\\"\\n"\n'
        f'        ".size {symbol}, . - {symbol}\\n"\n'
        f'        ".previous\\n");'
    )


def _make_samples(samples: Sequence[Sample]) -> list[str]:
    lines: list[str] = []
    rows: list[str] = []
    for number, sample in enumerate(samples):
        names: Mapping[str, tuple[bytes, ...]] = {"input": sample.inputs, "output": sample.outputs}
        for side, arrays in names.items():
            symbols = [f"sample_{number}_{side}_{index}" for index in range(len(arrays))]
            for index, symbol in enumerate(symbols):
                lines += [_include(symbol, f"sample-{number}-{side}-{index}.bin", ".samples")]
                lines += [f"extern const uint8_t {symbol}[];"]
            lines += [f"static const uint8_t *const sample_{number}_{side}s[] = {{{', '.join(symbols) or '0'}}};"]
        rows.append(f"    {{sample_{number}_inputs, sample_{number}_outputs}},")
    lines += ["const model_sample model_samples[] = {", *(rows or ["    {0, 0},"]), "};"]
    return [*lines, f"const uint32_t model_sample_count = {len(samples)};"]
