"""Reads untrusted .pt2 files of torch.export.save.

The file is read once, by this reader. Torch gets the program as checked JSON and the weights as tensors
on checked bytes: it never opens the file, and nothing in it is unpickled, evaluated or printed into Python code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tosaic.core import input_file
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import plain_json
from tosaic.formats.archive import unpack
from tosaic.formats.plain_json import Json

_ANY = re.compile(r"[^/\\\0][^\\\0]*")
#: parts of an archive that torch would unpickle without limits or load as native code
_CODE = ("/data/constants/custom_obj", "/data/constants/opaque_obj", "/data/aotinductor/")
_MODEL = "models/model.json"
_FIX = "write it with torch.export.save"

#: Names that torch writes unquoted into Python code: letters, digits and underscores.
_PLAIN = re.compile(r"\w*", re.ASCII)
#: Names that torch writes between quotes: nothing that could end them.
_QUOTED = re.compile(r"[^\"'\\\0-\x1f\x7f-\x9f\u2028\u2029]*")
_PLAIN_KEYS = ("name", "as_name", "user_input_name")
_QUOTED_KEYS = ("parameter_name", "buffer_name", "tensor_constant_name", "fqn")
_NAMED = ("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values")
#: the metadata of a node to keep: torch resolves or parses the rest
_METADATA = ("stack_trace", "nn_module_stack", "torch_fn")
_TREES = re.compile(r"builtins\.(tuple|list|dict)|collections\.OrderedDict")


@dataclass(frozen=True, slots=True)
class Payload:
    """A weight or a constant: its bytes, and the metadata of its tensor."""

    name: str
    content: memoryview
    is_parameter: bool
    meta: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Archive:
    """The checked content of a .pt2 file. The operators still have to be checked, by their names."""

    path: Path
    program: dict[str, Json]
    operators: tuple[str, ...]
    weights: tuple[Payload, ...]
    constants: tuple[Payload, ...]
    samples: memoryview
    budget: Budget


def read(path: Path, max_memory: int | None = None) -> Archive:
    """Read the content of a .pt2 file; raise Invalid for one that could do more than describe a model."""
    data, budget = input_file.read(path, max_memory)
    return _Reader(path, data, budget).read()


class _Reader:
    """Checks one file."""

    def __init__(self, path: Path, data: bytearray, budget: Budget) -> None:
        self._path, self._budget = path, budget
        try:
            files = unpack(data, _ANY, "the archive", budget)
        except Invalid as error:
            if error.what != "the archive is damaged":
                raise
            self._refuse(f"{error.where}: {error.why}")
        roots = {name.partition("/")[0] for name in files}
        if len(roots) != 1:
            self._refuse("its parts are not in one folder")
        self._files = {name.partition("/")[2]: content for name, content in files.items()}

    def _refuse(self, why: str, where: str = "") -> NoReturn:
        place = f"`{where[:80]}`" if where else ""
        raise Invalid(f"`{self._path}` is not an exported program", where=place, why=why, fix=_FIX)

    def read(self) -> Archive:
        for name in self._files:
            if any(part in f"/{name.lower()}" for part in _CODE):
                self._refuse_code(name)
        if _MODEL not in self._files:
            self._refuse(f"it has no part `{_MODEL}`, as torch.export.save writes it since torch 2.8")
        if bytes(self._files.get("byteorder", b"little")) != b"little":
            self._refuse("its numbers are not little endian")
        program = self._load(_MODEL)
        operators = tuple(dict.fromkeys(self._check(program)))
        return Archive(
            path=self._path,
            program=program,
            operators=operators,
            weights=tuple(self._read_payloads("data/weights", "model_weights_config.json", "weight_")),
            constants=tuple(self._read_payloads("data/constants", "model_constants_config.json", "tensor_")),
            samples=self._files.get("data/sample_inputs/model.pt", memoryview(b"")),
            budget=self._budget,
        )

    def _refuse_code(self, name: str) -> NoReturn:
        raise Invalid(
            f"`{self._path}` contains an object or native code that would run on loading",
            where=f"`{name[:80]}`",
            fix="export a model of tensors and operators only",
        )

    def _load(self, name: str) -> dict[str, Json]:
        if name not in self._files:
            self._refuse("it is missing", name)
        try:
            content = plain_json.loads(self._files[name], f"`{name}`", self._budget)
        except Invalid as error:
            if "is not JSON" not in error.what:
                raise
            self._refuse(f"it is not JSON ({error.why})", name)
        return content if isinstance(content, dict) else self._refuse("it is not a JSON object", name)

    def _check(self, program: Json) -> Iterator[str]:
        """Yield the names of all operators; reject or drop whatever torch would evaluate or print into code."""
        waiting = [program]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                yield from self._check_object(value)
                waiting.extend(value.values())
            elif isinstance(value, list):
                waiting.extend(value)

    def _check_object(self, value: dict[str, Json]) -> Iterator[str]:
        if "expr_str" in value or value.get("guards_code") or value.get("range_constraints"):
            raise Invalid(
                "the program has dynamic shapes",
                where=f"`{self._path}`",
                why="an NPU command stream has fixed shapes",
                fix="export without dynamic_shapes, once per shape",
            )
        if value.get("custom_obj_values") or "as_custom_obj" in value or "custom_obj" in value:
            self._refuse_code("custom_obj")
        for key, item in value.items():
            if key in ("target", "as_operator") and isinstance(item, str):
                yield item
            elif key in ("in_spec", "out_spec") and isinstance(item, str):
                self._check_tree(item, key == "in_spec")
            elif key in _PLAIN_KEYS and isinstance(item, str):
                self._check_name(item, _PLAIN)
            elif key in _QUOTED_KEYS and isinstance(item, str):
                self._check_name(item, _QUOTED)
            elif (key in _NAMED and isinstance(item, dict)) or (key == "forward_arg_names" and isinstance(item, list)):
                for name in item:
                    self._check_name(name, _PLAIN)
            elif key == "metadata" and isinstance(item, dict):
                value[key] = {name: text for name, text in item.items() if name in _METADATA}
            elif key == "treespec_namedtuple_fields":
                value[key] = {}

    def _check_name(self, name: Json, pattern: re.Pattern[str]) -> None:
        if not isinstance(name, str) or not pattern.fullmatch(name):
            self._refuse(f"{str(name)[:80]!r} cannot be a name", _MODEL)

    def _check_tree(self, text: str, is_input: bool) -> None:
        """Check how inputs and outputs are nested: torch would import the modules that other kinds of nesting name."""
        tree = plain_json.loads(text.encode(), "a tree of inputs or outputs", self._budget)
        if not isinstance(tree, list) or len(tree) != 2 or tree[0] != 1:
            self._refuse("a tree of inputs or outputs is damaged", _MODEL)
        waiting = tree[1:]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, dict) or not isinstance(children := node.get("children_spec"), list):
                self._refuse("a tree of inputs or outputs is damaged", _MODEL)
            kind, context = node.get("type"), node.get("context")
            if kind is not None and (not isinstance(kind, str) or not _TREES.fullmatch(kind)):
                self._refuse(f"an input or output is a `{str(kind)[:80]}`, neither tuple, list nor dict", _MODEL)
            keys = plain_json.loads(context.encode(), "keys", self._budget) if isinstance(context, str) else context
            for key in keys if isinstance(keys, list) else [] if keys is None else [keys]:
                if not isinstance(key, str | int):
                    self._refuse("a key of an input or output is neither text nor a number", _MODEL)
                if is_input and isinstance(key, str):
                    self._check_name(key, _PLAIN)
            waiting.extend(children)

    def _read_payloads(self, folder: str, config: str, prefix: str) -> Iterator[Payload]:
        described = self._load(f"{folder}/{config}").get("config")
        if not isinstance(described, dict):
            self._refuse("it describes no tensors", config)
        for name, item in described.items():
            self._check_name(name, _QUOTED)
            if not isinstance(item, dict):
                self._refuse(f"`{name[:80]}` is not an object", config)
            part, meta, is_parameter = item.get("path_name"), item.get("tensor_meta"), item.get("is_param")
            if item.get("use_pickle") is not False:
                self._refuse_code(f"{folder}/{part}")
            if not isinstance(part, str) or not part.startswith(prefix) or f"{folder}/{part}" not in self._files:
                self._refuse(f"the bytes are missing for `{name[:80]}`", config)
            if not isinstance(meta, dict) or not isinstance(is_parameter, bool):
                self._refuse(f"`{name[:80]}` has no shape", config)
            yield Payload(name, self._files[f"{folder}/{part}"], is_parameter, meta)
