"""The .tosaic file next to a .pte: data for verify and reports, as a zip with the same bytes for the same content.

manifest.json                      versions, the .pte's sha256, target, options, inputs and outputs, reasons for the CPU
delegates/0/graph.tosa             the graph that was compiled
delegates/0/origins.json           the location of each torch node, and the TOSA operators it was lowered to
delegates/0/debug.xml              Vela's debug database
delegates/0/summary.json           Vela's figures
samples/0/input_0.npy              an input; bfloat16 is kept as its bits, in uint16
samples/0/output_0.npy             the float model's result
samples/0/torch_0.npy              the result of the compiled graph, run by torch

Format 1 had neither outputs of the compiled graph nor traits of the outputs.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import NoReturn, TypeAlias, TypeVar

import numpy as np

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.core.reason import Reason
from tosaic.core.tensor_info import TensorInfo
from tosaic.formats import plain_json
from tosaic.formats.archive import MAX_FILES, unpack
from tosaic.formats.npy import Array, read_npy, write_npy

#: Incremented when a reader of the previous version could misread the file.
FORMAT = 2
OLD_FORMATS = (1,)
MAX_SAMPLES = 4

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Kind = TypeVar("Kind")

_DATE = (1980, 1, 1, 0, 0, 0)
_ARRAYS = ("input", "output", "torch")
_MODE = 0o100644 << 16
_UNIX = 3
_LEVEL = 6
_NAME = re.compile(
    r"manifest\.json|delegates/\d{1,4}/(graph\.tosa|origins\.json|debug\.xml|summary\.json)"
    r"|samples/[0-3]/(input|output|torch)_\d{1,4}\.npy"
)


@dataclass(frozen=True, slots=True)
class DelegateFiles:
    """The files of one delegate. `summary` and `debug_db` are Vela's, and empty for other targets."""

    tosa: bytes
    origins: tuple[Mapping[str, Json], ...] = ()
    debug_db: str = ""
    summary: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Trait:
    """Properties of an output that decide how closely the program must match torch there.

    rounded    a float operator comes before it, whose last bits may differ
    quantized  a quantize or dequantize comes before it
    scale      the scale of the dequantize that produces the output, and
    dtype      the type of its quantized values (int8, int16); empty if no dequantize produces the output
    """

    rounded: bool = False
    quantized: bool = False
    scale: float | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs of the program, with the outputs of the float model and of the compiled graph, both run by torch.

    A model that was already quantized has no float outputs, and a file of format 1 none of the compiled graph.
    """

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...] = ()
    torch: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The content of a .tosaic file."""

    pte_sha256: str
    tosaic_version: str
    target: str
    options: Mapping[str, Json]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    delegates: tuple[DelegateFiles, ...] = ()
    samples: tuple[Sample, ...] = ()
    traits: tuple[Trait, ...] = ()
    #: empty in files of releases that did not keep them
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()

    def check(self, pte: bytes) -> None:
        """Check that this file was made with this .pte."""
        found = hashlib.sha256(pte).hexdigest()
        if found != self.pte_sha256:
            raise Invalid(
                "the .tosaic file does not belong to this .pte",
                why=f"it was written for a .pte with sha256 {self.pte_sha256[:16]}..., this one has {found[:16]}...",
                fix="compile again, or keep both files of one compile in the same folder",
            )

    def as_called(self, arrays: Sequence[Array]) -> list[Array]:
        """Convert the inputs of a sample to the layout and quantized values that the program is called with."""
        return [_as_called(array, declared) for array, declared in zip(arrays, self.inputs, strict=True)]


def _as_called(array: Array, declared: TensorInfo) -> Array:
    value = array.transpose(0, 2, 3, 1) if declared.layout == "nhwc" and array.ndim == 4 else array
    if declared.scale is not None and declared.zero_point is not None and array.dtype.kind == "f":
        steps = np.rint(value.astype(np.float32) * np.float32(1.0 / declared.scale)) + declared.zero_point
        info = np.iinfo(declared.dtype)
        value = np.clip(steps, info.min, info.max).astype(declared.dtype)
    return np.require(value, requirements="C")


def write(sidecar: Sidecar) -> bytes:
    """Return the bytes of a .tosaic file."""
    if len(sidecar.samples) > MAX_SAMPLES:
        raise Invalid(f"a .tosaic file takes {MAX_SAMPLES} samples, not {len(sidecar.samples)}")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(_list_files(sidecar).items()):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, _UNIX, _MODE
            archive.writestr(entry, data, compresslevel=_LEVEL)
    return file.getvalue()


def _list_files(sidecar: Sidecar) -> dict[str, bytes]:
    files = {"manifest.json": _dump(_describe(sidecar))}
    for i, delegate in enumerate(sidecar.delegates):
        # JSON has no infinity, and Vela's rates may be infinite when divided by zero.
        summary = {name: value for name, value in delegate.summary.items() if math.isfinite(value)}
        files[f"delegates/{i}/graph.tosa"] = delegate.tosa
        files[f"delegates/{i}/origins.json"] = _dump(delegate.origins)
        files[f"delegates/{i}/debug.xml"] = delegate.debug_db.encode()
        files[f"delegates/{i}/summary.json"] = _dump(summary)
    for i, sample in enumerate(sidecar.samples):
        files |= {f"samples/{i}/input_{j}.npy": write_npy(array) for j, array in enumerate(sample.inputs)}
        files |= {f"samples/{i}/output_{j}.npy": write_npy(array) for j, array in enumerate(sample.outputs)}
        files |= {f"samples/{i}/torch_{j}.npy": write_npy(array) for j, array in enumerate(sample.torch)}
    return files


def _describe(sidecar: Sidecar) -> Json:
    return {
        "format": FORMAT,
        "tosaic_version": sidecar.tosaic_version,
        "pte_sha256": sidecar.pte_sha256,
        "target": sidecar.target,
        "options": sidecar.options,
        "inputs": [asdict(info) for info in sidecar.inputs],
        "outputs": [asdict(info) for info in sidecar.outputs],
        "delegates": len(sidecar.delegates),
        "samples": [[len(sample.inputs), len(sample.outputs), len(sample.torch)] for sample in sidecar.samples],
        "traits": [asdict(trait) for trait in sidecar.traits],
        "reasons": [asdict(reason) for reason in sidecar.reasons],
        "warnings": list(sidecar.warnings),
    }


def _dump(value: Json) -> bytes:
    try:
        return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise Invalid("the data cannot be stored in a .tosaic file", why=f"it is not JSON ({error})") from None


def read(data: bytes | bytearray, *, max_memory: int | None = None) -> Sidecar:
    """Read an untrusted .tosaic file."""
    budget = Budget(len(data), max_memory)
    budget.take(len(data), "the .tosaic file")
    files = _Files(unpack(data, _NAME, "the .tosaic file", budget), budget)
    manifest = _Object.of(_load(files, "manifest.json"), "manifest.json")
    version = manifest.get("format", int)
    if version not in (FORMAT, *OLD_FORMATS):
        raise Invalid(
            f"the .tosaic file has format {version}; this Tosaic reads formats up to {FORMAT}",
            fix="compile the model again, or use the Tosaic version that wrote the file",
        )
    kinds = _ARRAYS if version == FORMAT else _ARRAYS[:2]
    samples = manifest.get_list("samples")
    traits = manifest.get_list("traits") if version == FORMAT else []
    sidecar = Sidecar(
        pte_sha256=manifest.get("pte_sha256", str),
        tosaic_version=manifest.get("tosaic_version", str),
        target=manifest.get("target", str),
        options=manifest.get_object("options").values,
        inputs=tuple(_read_tensor_info(item, "manifest.json inputs") for item in manifest.get_list("inputs")),
        outputs=tuple(_read_tensor_info(item, "manifest.json outputs") for item in manifest.get_list("outputs")),
        delegates=tuple(_read_delegate(files, i) for i in range(_limit(manifest.get("delegates", int)))),
        samples=tuple(_read_sample(files, i, item, kinds) for i, item in enumerate(samples)),
        traits=tuple(_read_trait(item, "manifest.json traits") for item in traits),
        reasons=tuple(_read_reason(item, "manifest.json reasons") for item in manifest.get_optional("reasons")),
        warnings=tuple(_as_text(item, "manifest.json warnings") for item in manifest.get_optional("warnings")),
    )
    if files.parts:
        _fail(sorted(files.parts)[0], "this file is not in the manifest")
    return sidecar


@dataclass(frozen=True, slots=True)
class _Files:
    """The parts that were not read yet, and the memory that is left for them."""

    parts: dict[str, memoryview]
    budget: Budget


@dataclass(frozen=True, slots=True)
class _Object:
    """A JSON object whose members are type-checked on access."""

    values: Mapping[str, Json]
    where: str

    @classmethod
    def of(cls, value: Json, where: str) -> _Object:
        return cls(value, where) if isinstance(value, Mapping) else _fail(where, "it is not a JSON object")

    def get(self, name: str, kind: type[Kind]) -> Kind:
        value = self.values.get(name)
        # In Python a bool is an int.
        if isinstance(value, bool) or not isinstance(value, kind):
            _fail(self.where, f"its member `{name}` is not of type {kind.__name__}")
        return value

    def get_object(self, name: str) -> _Object:
        return _Object.of(self.values.get(name), f"{self.where} {name}")

    def get_list(self, name: str) -> list[Json]:
        return _as_list(self.values.get(name), f"{self.where} {name}")

    def get_optional(self, name: str) -> list[Json]:
        """Return a list that older files lack."""
        return self.get_list(name) if name in self.values else []

    def get_flag(self, name: str) -> bool:
        value = self.values.get(name)
        return value if isinstance(value, bool) else _fail(self.where, f"its member `{name}` is not true or false")

    def get_number(self, name: str) -> float:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            _fail(self.where, f"its member `{name}` is not a number")
        return float(value)


def _as_list(value: Json, where: str) -> list[Json]:
    return value if isinstance(value, list) else _fail(where, "it is not a JSON list")


def _as_sizes(value: Json, where: str) -> tuple[int, ...]:
    sizes: list[int] = []
    for item in _as_list(value, where):
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            _fail(where, "it is not a list of sizes")
        sizes.append(item)
    return tuple(sizes)


def _read_tensor_info(item: Json, where: str) -> TensorInfo:
    declared = _Object.of(item, where)
    return TensorInfo(
        name=declared.get("name", str),
        shape=_as_sizes(declared.values.get("shape"), f"{where} shape"),
        dtype=declared.get("dtype", str),
        layout=declared.get("layout", str),
        scale=_read_scale(declared),
        zero_point=None if declared.values.get("zero_point") is None else declared.get("zero_point", int),
    )


def _read_trait(item: Json, where: str) -> Trait:
    trait = _Object.of(item, where)
    return Trait(trait.get_flag("rounded"), trait.get_flag("quantized"), _read_scale(trait), trait.get("dtype", str))


def _read_reason(item: Json, where: str) -> Reason:
    reason = _Object.of(item, where)
    texts = {one.name: reason.get(one.name, str) for one in fields(Reason) if one.name != "is_io"}
    return Reason(**texts, is_io=reason.get_flag("is_io"))


def _as_text(value: Json, where: str) -> str:
    return value if isinstance(value, str) else _fail(where, "it is not a text")


def _read_scale(item: _Object) -> float | None:
    scale = None if item.values.get("scale") is None else item.get_number("scale")
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        _fail(item.where, f"its scale is {scale}")
    return scale


def _fail(where: str, why: str) -> NoReturn:
    raise Invalid("the .tosaic file is damaged", where=f"`{where}`", why=why)


def _limit(count: int) -> int:
    return count if 0 <= count <= MAX_FILES else _fail("manifest.json", f"it counts {count} files")


def _take(files: _Files, name: str) -> memoryview:
    return files.parts.pop(name) if name in files.parts else _fail(name, "it is missing")


def _take_bytes(files: _Files, name: str) -> bytes:
    content = _take(files, name)
    files.budget.take(len(content), f"`{name}` of the .tosaic file")
    return bytes(content)


def _load(files: _Files, name: str) -> Json:
    content = _take(files, name)
    try:
        return plain_json.loads(content, f"`{name}`", files.budget)
    except Invalid as error:
        if "is not JSON" not in error.what:
            raise
        _fail(name, f"it is not JSON ({error.why})")


def _read_delegate(files: _Files, index: int) -> DelegateFiles:
    folder = f"delegates/{index}"
    origins = _as_list(_load(files, f"{folder}/origins.json"), f"{folder}/origins.json")
    summary = _Object.of(_load(files, f"{folder}/summary.json"), f"{folder}/summary.json")
    try:
        debug_db = _take_bytes(files, f"{folder}/debug.xml").decode()
    except UnicodeDecodeError:
        _fail(f"{folder}/debug.xml", "it is not UTF-8 text")
    return DelegateFiles(
        tosa=_take_bytes(files, f"{folder}/graph.tosa"),
        origins=tuple(_Object.of(item, f"{folder}/origins.json").values for item in origins),
        debug_db=debug_db,
        summary={name: summary.get_number(name) for name in summary.values},
    )


def _read_sample(files: _Files, index: int, item: Json, kinds: Sequence[str]) -> Sample:
    counts = _as_sizes(item, "manifest.json samples")
    if len(counts) != len(kinds):
        _fail("manifest.json samples", f"it is not a list of {len(kinds)} counts")

    def read_arrays(kind: str, count: int) -> tuple[Array, ...]:
        names = [f"samples/{index}/{kind}_{i}.npy" for i in range(_limit(count))]
        return tuple(read_npy(_take(files, name), f"`{name}` of the .tosaic file", files.budget) for name in names)

    return Sample(*(read_arrays(kind, count) for kind, count in zip(kinds, counts, strict=True)))
