"""Recognizes files that other tools write, and says what can be done with them.

Only the answer to a user depends on this: nothing is read further than its name and a few bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

from tosaic.core.errors import Invalid

_ZIP = b"PK\x03\x04"
#: How much of the start and of the end of an archive is searched for the names of its parts.
_SEARCHED = 1 << 16
_PYTORCH_ONLY = "write a .py file that builds the model in PyTorch: `tosaic compile --help` says how"
_EXPORT = "torch.export.save(torch.export.export(model, inputs), 'model.pt2')"
_LOAD = "write a .py file that builds the model and loads it: `model.load_state_dict(torch.load({!r}))`"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A kind of file: its name, and what to do instead of compiling it, or of reading it as a compiled file."""

    title: str
    compile_fix: str
    read_fix: str = "pass a .pte, .ptd, .tosa, .vgf or .tosaic file"


_COMPILE = "compile it first: `tosaic compile {}`"
KINDS: Mapping[str, Foreign] = MappingProxyType(
    {
        "pt2": Foreign("a program of torch.export", "let its name end in .pt2", _COMPILE),
        "torchscript": Foreign(
            "a TorchScript file",
            f"export the nn.Module that it was made of: `{_EXPORT}`",
            "compile its nn.Module first",
        ),
        "checkpoint": Foreign("a file of torch.save: weights without the model", _LOAD, "compile its model first"),
        "pickled": Foreign(
            "a model pickled by torch.save",
            "write a .py file with `inputs` and `model = torch.load({!r}, weights_only=False).eval()`, which runs the "
            "code in the file: load only files you trust",
            "compile its model first",
        ),
        "safetensors": Foreign(
            "a safetensors file: weights without the model", _LOAD.replace("torch.load", "safetensors.torch.load_file")
        ),
        "onnx": Foreign("an ONNX model", _PYTORCH_ONLY),
        "tflite": Foreign("a TensorFlow Lite model", _PYTORCH_ONLY),
        "etrecord": Foreign(
            "an ETRecord", "compile the model that it was made with", "`executorch.devtools.parse_etrecord` opens it"
        ),
        "bundled": Foreign(
            "a bundled program of ExecuTorch",
            "it is compiled already",
            "pass the .pte that it was made of",
        ),
        "numpy": Foreign(
            "a file of numpy arrays", "pass it with `--calibration`", "pass it as an input: `tosaic run NAME.pte -i {}`"
        ),
        "firmware": Foreign("the firmware of a board", "it is compiled already", "run it: `tosaic run {}`"),
    }
)
_SUFFIXES = {
    ".onnx": "onnx",
    ".tflite": "tflite",
    ".safetensors": "safetensors",
    ".pt": "checkpoint",
    ".pth": "checkpoint",
    ".ckpt": "checkpoint",
    ".etrecord": "etrecord",
}
#: Names of parts by which an archive is recognized; the first match wins.
_PARTS = (
    # A .tosaic file.
    (b"manifest.json", ""),
    (b"ETRECORD_V0", "etrecord"),
    (b"/models/model.json", "pt2"),
    (b"archive_format", "pt2"),
    (b"/code/__torch__", "torchscript"),
    (b"/constants.pkl", "torchscript"),
    (b"/data.pkl", "checkpoint"),
    (b".npy", "numpy"),
)
_STARTS = (
    (b"\x7fELF", "firmware"),
    (b"\x93NUMPY", "numpy"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9", "checkpoint"),
)


#: An attribute of every nn.Module, which a pickled one has and a dict of weights has not.
_OF_MODULES = b"_backward_hooks"


def recognize(data: bytes | bytearray, name: str = "") -> str:
    """Return the kind of a file of another tool, by its contents or, where these say nothing, by its name."""
    kind = _recognize(data, name)
    return "pickled" if kind == "checkpoint" and _OF_MODULES in data[:_SEARCHED] else kind


def _recognize(data: bytes | bytearray, name: str) -> str:
    for start, kind in _STARTS:
        if data.startswith(start):
            return kind
    if data[4:8] == b"TFL3":
        return "tflite"
    if data[4:6] == b"BP":
        return "bundled"
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data):
        return "safetensors"
    if data.startswith(_ZIP):
        searched = bytes(data[:_SEARCHED] + data[-_SEARCHED:])
        return next((kind for part, kind in _PARTS if part in searched), "")
    return _SUFFIXES.get(PurePath(name).suffix.lower(), "")


def refuse_to_read(data: bytes | bytearray, name: str) -> None:
    """Raise Invalid for a file that is recognized as another tool's, where a compiled file is expected."""
    kind = recognize(data, name)
    if kind:
        found = KINDS[kind]
        raise Invalid(f"`{name}` is {found.title}", fix=found.read_fix.format(name))


def refuse_to_compile(data: bytes | bytearray, name: str) -> None:
    """Raise Invalid for a file that is recognized as another tool's, where a model is expected."""
    kind = recognize(data, name)
    if kind:
        found = KINDS[kind]
        raise Invalid(
            f"cannot compile `{name}`: it is {found.title}", fix=found.compile_fix.format(PurePath(name).name)
        )
