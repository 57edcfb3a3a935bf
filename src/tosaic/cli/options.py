"""The options of `tosaic compile` and of the commands that compile in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tosaic.cli.config import apply_config
from tosaic.cli.size import parse_size
from tosaic.core.errors import Invalid


class Io(StrEnum):
    """The number format of the program's inputs and outputs."""

    FLOAT = "float"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"


class PrecisionName(StrEnum):
    """The bits of activations (a) and weights (w)."""

    INT8 = "int8"
    A16W8 = "a16w8"
    A8W4 = "a8w4"


class External(StrEnum):
    """A part of the delegates that can be outside the .pte."""

    WEIGHTS = "weights"
    COMMANDS = "commands"


class Layout(StrEnum):
    """The position of the channels in a four-dimensional input or output."""

    NCHW = "nchw"
    NHWC = "nhwc"


class Goal(StrEnum):
    """What Vela optimizes: less SRAM, or fewer cycles."""

    SIZE = "size"
    PERFORMANCE = "performance"


def repeat(name: str, help_text: str, values: type[StrEnum] | None = None) -> Any:
    """Declare an option that may be given several times, with the values that are tried."""
    metavar = "NAME" if values is None else "|".join(values)
    return typer.Option(name, metavar=metavar, show_default=False, help=help_text)


def check_calibration(path: Path | None) -> None:
    """Reject calibration data that cannot be read, before torch is imported."""
    if path is None:
        return
    if not path.exists():
        raise Invalid(f"there is no calibration data at `{path}`", fix="pass an existing file or folder")
    if not path.is_dir() and path.suffix not in (".npz", ".npy", ".pt"):
        raise Invalid(f"unknown calibration file type: `{path.name}`", fix="use .npz, .npy, .pt")


def repeat_words(calibration: Path | None, allow_ops: Sequence[str] | None) -> tuple[str, ...]:
    """Repeat the words of a command line that a command which makes the same program needs too."""
    data = ("--calibration", str(calibration)) if calibration is not None else ()
    return (*data, *(word for name in allow_ops or () for word in ("--allow-op", name)))


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A built-in model, a .py file or a .pt2 file.", show_default=False)
]
TargetName = Annotated[
    str, typer.Option("-t", "--target", metavar="NAME", help="The target; `tosaic targets` lists all of them.")
]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar="PATH", help="The file to write, or a folder for it.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        is_eager=True,
        callback=apply_config,
        help='Options from a file, one per line: `memory-mode = "Sram_Only"`. The command line has priority.',
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Calibration samples: a .npz, .npy or .pt file, or a folder of them."),
]
AllowOp = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-op",
        metavar="NAME",
        show_default=False,
        help="Allow a .pt2 to call this operator, which may have side effects. Repeatable.",
    ),
]
IoOption = Annotated[Io, typer.Option("--io", help="Type of inputs and outputs. Integers need no CPU operators.")]
PrecisionOption = Annotated[
    PrecisionName, typer.Option("--precision", help="int8, 16-bit activations, or 4-bit weights.")
]
PrecisionFor = Annotated[
    list[str] | None,
    typer.Option(
        "--precision-for",
        metavar="MODULE=PRECISION",
        show_default=False,
        help="Another precision for a module (its path, or a class name): head=a16w8. Repeatable.",
    ),
]
Float = Annotated[
    list[str] | None,
    typer.Option(
        "--float", metavar="MODULE", show_default=False, help="Leave a module in float, on the CPU. Repeatable."
    ),
]
PerTensor = Annotated[
    bool, typer.Option("--per-tensor", help="One scale for all weights of an operator, not one per channel.")
]
LayoutOption = Annotated[Layout, typer.Option("--layout", help="Memory layout of 4-D inputs and outputs.")]
MemoryMode = Annotated[
    str | None, typer.Option("--memory-mode", metavar="NAME", help="Memory mode from Vela's configuration file.")
]
SystemConfig = Annotated[
    str | None,
    typer.Option("--system-config", metavar="NAME", help="System configuration from Vela's configuration file."),
]
ConfigIni = Annotated[
    Path | None,
    typer.Option(
        "--config-ini", metavar="FILE.ini", help="Configuration file for Vela. Default: the one in the Vela package."
    ),
]
Optimize = Annotated[
    Goal | None,
    typer.Option("--optimize", help="Vela's goal: less SRAM, or fewer cycles. Default: performance."),
]
ArenaCacheSize = Annotated[
    int | None,
    typer.Option(
        "--arena-cache-size",
        metavar="SIZE",
        parser=parse_size,
        show_default=False,
        help="Size of the SRAM that Vela may use for tensors, e.g. 512K. Default: that of the memory mode.",
    ),
]
MaxSram = Annotated[
    int | None,
    typer.Option(
        "--max-sram",
        metavar="SIZE",
        parser=parse_size,
        show_default=False,
        help="Choose memory mode, goal and arena so that the program fits into this SRAM, e.g. 512K; see `tosaic fit`.",
    ),
]
VelaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--vela-option",
        metavar="FLAG",
        show_default=False,
        help="Another flag for Vela: --vela-option=--verbose-allocation. Repeatable.",
    ),
]
ExternalOption = Annotated[
    list[External] | None,
    typer.Option(
        "--external",
        metavar="weights|commands",
        show_default=False,
        help="Write the weights or the commands of Ethos-U delegates to a .ptd file next to the .pte. Repeatable.",
    ),
]
NoDelegate = Annotated[bool, typer.Option("--no-delegate", help="Run everything on the CPU.")]
DataMovement = Annotated[
    bool, typer.Option("--delegate-data-movement", help="Also delegate parts that only move data, such as a reshape.")
]
NoQuantize = Annotated[bool, typer.Option("--no-quantize", help="Skip quantization.")]
FailOnFallback = Annotated[
    bool,
    typer.Option("--fail-on-fallback", help="Exit with code 1 if an operator other than float I/O is on the CPU."),
]
Intermediates = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder for the .tosa files, the graph after each pass, and the compiler's reports."
    ),
]
NoSidecar = Annotated[bool, typer.Option("--no-sidecar", help="Do not write the .tosaic file.")]
BundledIo = Annotated[
    bool,
    typer.Option(
        "--bundled-io", help="Also write a .bpte file: the program with its samples, for ExecuTorch's runner."
    ),
]
EtRecord = Annotated[
    bool, typer.Option("--etrecord", help="Also write an .etrecord file, for ExecuTorch's developer tools.")
]
Header = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.h", help="Write a C header with the type, shape, scale and zero point of every input and output."
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Run the result on this machine and compare it with TOSA and with torch.")
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print all figures and where they come from.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only warnings, errors and verdicts.")]
NoProgress = Annotated[bool, typer.Option("-q", "--quiet", help="Do not show progress.")]
