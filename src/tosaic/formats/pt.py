"""Reads untrusted .pt files of torch.save: tensors in lists and dicts, within bounds.

A .pt file is a program for Python's pickle machine. This module executes the few instructions torch.save writes for
tensors and plain values. A name in the file is only compared with the names below, never looked up, so nothing in the
file can be called.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats.archive import unpack

if TYPE_CHECKING:
    from tosaic.formats.storage import Storage

_MEMBERS = re.compile(r"[^/\\]+/(data\.pkl|data/\d+|\.data/(serialization_id|version)|\.?[a-z_]+)")
_DTYPES = {
    "torch BoolStorage": "bool",
    "torch ByteStorage": "uint8",
    "torch CharStorage": "int8",
    "torch ShortStorage": "int16",
    "torch IntStorage": "int32",
    "torch LongStorage": "int64",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16",
    "torch FloatStorage": "float32",
    "torch DoubleStorage": "float64",
    "torch ComplexFloatStorage": "complex64",
    "torch ComplexDoubleStorage": "complex128",
}
_ORDERED, _SIZE = "collections OrderedDict", "torch Size"
_TENSOR, _PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
_NAMES = {*_DTYPES, _ORDERED, _SIZE, _TENSOR, _PARAMETER}
#: upper bound for one instruction, excluding the text in it; a tensor takes some twenty of them
_STEP_COST = 256
#: a bound for the time; a file has some thousand tensors at most
MAX_STEPS = 1_000_000


def read_pt(data: bytes | bytearray | memoryview, what: str, budget: Budget) -> Any:
    """Read the content of a .pt file; `what` names the file in errors."""
    files = unpack(data, _MEMBERS, what, budget)
    root = next(iter(files), "").partition("/")[0]
    if any(not name.startswith(f"{root}/") for name in files) or f"{root}/data.pkl" not in files:
        raise Invalid(f"{what} is not a .pt file", why="it has no part `data.pkl`", fix="write it with torch.save")
    if bytes(files.get(f"{root}/byteorder", b"little")) != b"little":
        raise Invalid(f"{what} cannot be read", why="its numbers are not little endian")
    parts = {name.removeprefix(f"{root}/data/"): content for name, content in files.items()}
    return _Machine(parts, what, budget).run(bytes(files[f"{root}/data.pkl"]))


class _Name(str):
    """The name of a callable in a file."""

    __slots__ = ()


class _Mark:
    """The start of a group of values on the stack."""


class _Machine:
    """The stack and memo of one file."""

    def __init__(self, parts: Mapping[str, memoryview], what: str, budget: Budget) -> None:
        self._parts, self._what, self._budget = parts, what, budget
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}
        self._storages: dict[str, Storage] = {}

    def run(self, program: bytes) -> Any:
        try:
            for number, (code, argument, _) in enumerate(pickletools.genops(program)):
                if number >= MAX_STEPS:
                    self._refuse(f"it has more than {MAX_STEPS:,} instructions")
                size = len(argument) * 4 if isinstance(argument, str | bytes) else 0
                self._budget.take(_STEP_COST + size, f"the values of {self._what}")
                if code.name == "STOP":
                    break
                step = _STEPS.get(code.name)
                if step is None:
                    self._refuse(f"it contains a `{code.name}`, which no tensor needs")
                step(self, argument)
        except (ValueError, IndexError, KeyError, TypeError, pickle.UnpicklingError) as error:
            raise Invalid(f"{self._what} is damaged", why=str(error) or type(error).__name__) from None
        if len(self._stack) != 1:
            self._refuse("it does not end with one value")
        return self._stack[0]

    def _refuse(self, why: str) -> NoReturn:
        raise Invalid(f"{self._what} cannot be read", why=why, fix="save tensors in lists and dicts with torch.save")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def make_tuple(self, count: int | None) -> None:
        items = self._pop_group() if count is None else [self._stack.pop() for _ in range(count)][::-1]
        self._stack.append(tuple(items))

    def _pop_group(self) -> list[Any]:
        items: list[Any] = []
        while not isinstance(item := self._stack.pop(), _Mark):
            items.append(item)
        return items[::-1]

    def append(self, is_group: bool) -> None:
        items = self._pop_group() if is_group else [self._stack.pop()]
        last: Any = self._stack[-1]
        if not isinstance(last, list):
            self._refuse("it appends to something that is not a list")
        list[Any].extend(self._stack[-1], items)

    def set_items(self, is_group: bool) -> None:
        items = self._pop_group() if is_group else [self._stack.pop() for _ in range(2)][::-1]
        if type(self._stack[-1]) is not dict or len(items) % 2:
            self._refuse("it sets items of something that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):
                self._refuse("a key of a dict is neither text nor a number")
            self._stack[-1][key] = value

    def remember(self, place: int | None) -> None:
        self._memory[len(self._memory) if place is None else place] = self._stack[-1]

    def recall(self, place: int) -> None:
        value = self._memory[place]
        # Traversing lists that hold lists more than once could be endless.
        if isinstance(value, list | dict | tuple) and not _is_shape(value):
            self._refuse("it contains the same list or dict twice")
        self._stack.append(value)

    def name(self, text: str | None) -> None:
        if text is None:
            second, first = self._stack.pop(), self._stack.pop()
            text = f"{first} {second}"
        if text not in _NAMES:
            self._refuse(f"it contains a `{text.replace(' ', '.')}`, which is not a tensor")
        self._stack.append(_Name(text))

    def find_storage(self) -> None:
        kind, dtype, key, _, count = self._stack.pop()[:5]
        if kind != "storage" or not isinstance(dtype, _Name) or dtype not in _DTYPES or not isinstance(key, str):
            self._refuse("it refers to something that is not a tensor storage")
        if key not in self._storages:
            # A file without tensors is read without importing torch.
            import torch

            from tosaic.formats.storage import Storage

            content, where = self._parts[key], f"`data/{key}` of {self._what}"
            self._storages[key] = Storage(content, getattr(torch, _DTYPES[dtype]), where, self._budget)
        storage = self._storages[key]
        if str(storage.dtype) != f"torch.{_DTYPES[dtype]}" or len(storage) != count:
            raise Invalid(f"{self._what} is damaged", why=f"`data/{key}` does not have its declared size or type")
        self._stack.append(storage)

    def call(self) -> None:
        arguments, name = self._stack.pop(), self._stack.pop()
        if not isinstance(name, _Name) or not issubclass(type(arguments), tuple):
            self._refuse("it calls something that is not a name")
        self._stack.append(self._make(str(name), list[Any](arguments)))

    def _make(self, name: str, given: list[Any]) -> Any:
        from tosaic.formats.storage import Storage

        if name == _ORDERED and not given:
            return {}
        if name == _SIZE and len(given) == 1 and _is_shape(given[0]):
            return given[0]
        if name == _PARAMETER and len(given) == 3 and not isinstance(given[0], list | dict | tuple):
            return given[0]
        if (
            name != _TENSOR
            or len(given) < 6
            or not isinstance(given[0], Storage)
            or not all(map(_is_shape, given[2:4]))
        ):
            self._refuse(f"it calls `{name.replace(' ', '.')}` with arguments that do not fit")
        storage, offset, sizes, strides = given[:4]
        return storage.view(sizes, strides, offset)

    def set_state(self) -> None:
        """Drop torch's metadata about the modules of a state dict."""
        self._stack.pop()
        if type(self._stack[-1]) is not dict:
            self._refuse("it sets the state of something that is not a dict")


def _is_shape(value: Any) -> bool:
    return issubclass(type(value), tuple) and all(type(size) is int for size in value)


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, argument: None,
    "FRAME": lambda machine, argument: None,
    "MARK": lambda machine, argument: machine.push(_Mark()),
    "EMPTY_TUPLE": lambda machine, argument: machine.make_tuple(0),
    "TUPLE1": lambda machine, argument: machine.make_tuple(1),
    "TUPLE2": lambda machine, argument: machine.make_tuple(2),
    "TUPLE3": lambda machine, argument: machine.make_tuple(3),
    "TUPLE": lambda machine, argument: machine.make_tuple(None),
    "EMPTY_LIST": lambda machine, argument: machine.push([]),
    "EMPTY_DICT": lambda machine, argument: machine.push({}),
    "APPEND": lambda machine, argument: machine.append(False),
    "APPENDS": lambda machine, argument: machine.append(True),
    "SETITEM": lambda machine, argument: machine.set_items(False),
    "SETITEMS": lambda machine, argument: machine.set_items(True),
    "NONE": lambda machine, argument: machine.push(None),
    "NEWTRUE": lambda machine, argument: machine.push(True),
    "NEWFALSE": lambda machine, argument: machine.push(False),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"), _Machine.push
    ),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.recall),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name,
    "BINPERSID": lambda machine, argument: machine.find_storage(),
    "REDUCE": lambda machine, argument: machine.call(),
    "BUILD": lambda machine, argument: machine.set_state(),
}
