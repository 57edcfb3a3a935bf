""".pt files: what torch.save writes of tensors comes back, and nothing in a file is called."""

import io
import pickle
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from support import hostile
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats.pt import read_pt

BASE = torch.arange(24.0).reshape(2, 3, 4)


def _save(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def _read(data: bytes, max_memory: int | None = None) -> Any:
    return read_pt(data, "x.pt", Budget(len(data), max_memory))


def _pack(program: bytes, **parts: bytes) -> bytes:
    return hostile.plain({"x/data.pkl": program, **{f"x/data/{key[1:]}": data for key, data in parts.items()}})


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        BASE,
        [BASE, BASE.transpose(0, 2), BASE[:, 1:, ::2]],
        {"x": BASE, "y": (BASE.to(torch.bfloat16), torch.tensor(3))},
        [torch.zeros(0, 3), torch.tensor([True, False]), torch.arange(5, dtype=torch.int8), BASE.half(), BASE.double()],
        OrderedDict(x=torch.nn.Parameter(BASE), size=BASE.shape),
        [1, -70000, 1 << 40, 2.5, "text", None, True, ()],
        torch.nn.Linear(3, 2).state_dict(),
        [BASE.expand(5, 2, 3, 4), BASE.to(torch.complex64)],
    ],
    ids=["tensor", "views", "dict", "types", "parameter", "values", "state", "repeated"],
)
def test_what_torch_saves_comes_back(value: Any, protocol: int) -> None:
    found = _read(_save(value, pickle_protocol=protocol))
    theirs, ours = tree_leaves(value), tree_leaves(found)
    assert len(theirs) == len(ours)
    for one, other in zip(theirs, ours, strict=True):
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
        else:
            assert one == other


def test_nothing_is_called(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    for value in (hostile.Danger(mark), [hostile.Danger(mark)], {"x": hostile.Danger(mark)}):
        for protocol in (2, 4):
            with pytest.raises(Invalid, match=r"x\.pt cannot be read"):
                _read(_save(value, pickle_protocol=protocol))
            with pytest.raises(Invalid, match=r"x\.pt"):
                _read(_pack(pickle.dumps(value, protocol)))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (b"ctorch._utils\n_rebuild_tensor_v2\n(tR.", "with arguments that do not fit"),
        (b"ctorch\nSize\n(X\x01\0\0\0atR.", "with arguments that do not fit"),
        (b"ccollections\nOrderedDict\n]\x85R.", "with arguments that do not fit"),
        (b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ.", "damaged"),
        (b"]q\0h\0a.", "the same list or dict twice"),
        (b"]q\0\x85q\1h\1\x86.", "the same list or dict twice"),
        (b"}]Ns.", "neither text nor a number"),
        (b"N(a.", "not a list"),
        (b"h\5.", "damaged"),
        (b"K\1K\2.", "one value"),
        (b".", "one value"),
        (b"\x80\2", "damaged"),
        (b"cos\nsystem\nX\1\0\0\0a\x85R.", "`os.system`"),
        (b"ios\nsystem\n.", "`INST`"),
        (b"NNb.", "not a dict"),
    ],
)
def test_programs_that_are_refused(program: bytes, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        _read(_pack(program, _0=bytes(12)))
    assert words in str(caught.value)


def test_many_small_values_are_counted() -> None:
    program = b"\x80\2](" + b"}" * 3_000_00 + b"e."
    with pytest.raises(Invalid, match="needs 256 bytes of memory"):
        _read(_pack(program), 16 << 20)


def test_a_program_without_end_is_refused_in_time() -> None:
    program = b"\x80\2](" + b"}" * 3_000_000 + b"e."
    begin = time.process_time()
    with pytest.raises(Invalid, match="cannot be read") as caught:
        _read(_pack(program))
    assert "more than 1,000,000 instructions" in caught.value.why
    assert time.process_time() - begin < 5


def test_tensors_that_share_bytes_are_counted() -> None:
    views = [BASE.expand(1 << 20, 2, 3, 4)[:, :, :, :] for _ in range(3)]
    data = _save(views)
    assert len(data) < 10_000
    with pytest.raises(Invalid, match="a tensor of `data/0`"):
        _read(data, 250 << 20)
    assert len(_read(data)) == 3


@pytest.mark.parametrize("kind", hostile.AMBIGUOUS)
def test_ambiguous_files(kind: str) -> None:
    with pytest.raises(Invalid, match="damaged"):
        _read(hostile.AMBIGUOUS[kind](hostile.unpack(_save(BASE))))
