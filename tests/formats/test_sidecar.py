"""The .tosaic file: same bytes for the same content, everything back, and nothing believed."""

import dataclasses
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from support import hostile, join_python_path
from tosaic.core.errors import Invalid
from tosaic.core.tensor_info import TensorInfo
from tosaic.formats import plain_json, sidecar
from tosaic.formats.npy import Array, read_npy, write_npy
from tosaic.formats.sidecar import DelegateFiles, Sample, Sidecar, Trait

PTE = b"a program"


def make() -> Sidecar:
    rng = np.random.default_rng(0)
    return Sidecar(
        pte_sha256=hashlib.sha256(PTE).hexdigest(),
        tosaic_version="0.1.0",
        target="ethos-u55-128",
        options={"io": "int8", "flags": ["--a", "--b"], "calibration": None},
        inputs=(TensorInfo("x", (1, 3, 8, 8), "int8", "nchw", 0.1, -3),),
        outputs=(TensorInfo("y", (1, 10), "float32"), TensorInfo("z", (), "bool")),
        delegates=(
            DelegateFiles(b"TOSA\0\1", ({"node": "add", "where": "m.py:3"},), "<debug/>\n", {"cycles_total": 12.5}),
            DelegateFiles(b""),
        ),
        samples=(
            Sample(
                (rng.integers(-128, 128, (1, 3, 8, 8)).astype(np.int8),),
                (np.float32([[1, 2]]), np.bool_(True)),
                (np.float32([[1, 2.5]]), np.bool_(False)),
            ),
            Sample((np.zeros((0, 2), np.int16),), (np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(3))),
        ),
        traits=(Trait(rounded=True, quantized=True, scale=0.5, dtype="int8"), Trait()),
    )


def make_format_1(**manifest: object) -> bytes:
    """A file as the first format had it: two counts per sample, and nothing of the graph that was compiled."""
    old = {
        "format": 1,
        "tosaic_version": "0.1.0",
        "pte_sha256": hashlib.sha256(PTE).hexdigest(),
        "target": "ethos-u55-128",
        "options": {},
        "inputs": [{"name": "x", "shape": [2], "dtype": "float32", "layout": "", "scale": None, "zero_point": None}],
        "outputs": [{"name": "y", "shape": [2], "dtype": "float32", "layout": "", "scale": None, "zero_point": None}],
        "delegates": 1,
        "samples": [[1, 1]],
    }
    files = {
        "manifest.json": json.dumps(old | manifest).encode(),
        "delegates/0/graph.tosa": b"TOSA",
        "delegates/0/origins.json": b"[]",
        "delegates/0/debug.xml": b"",
        "delegates/0/summary.json": b"{}",
        "samples/0/input_0.npy": write_npy(np.float32([1, 2])),
        "samples/0/output_0.npy": write_npy(np.float32([3, 4])),
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def rezip(data: bytes, changes: dict[str, bytes | None], **entry_fields: object) -> bytes:
    """The same zip with some files replaced, added or (None) left out."""
    source, file = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    files = {name: source.read(name) for name in source.namelist()} | changes
    with zipfile.ZipFile(file, "w") as target:
        for name, content in files.items():
            if content is not None:
                entry = zipfile.ZipInfo(name)
                for field, value in entry_fields.items():
                    setattr(entry, field, value)
                target.writestr(entry, content)
    return file.getvalue()


def test_round_trip() -> None:
    before = make()
    after = sidecar.read(sidecar.write(before))
    for field in dataclasses.fields(Sidecar):
        if field.name != "samples":
            assert getattr(after, field.name) == getattr(before, field.name), field.name
    pairs = list(zip(before.samples, after.samples, strict=True))
    parts = [(getattr(s, part), getattr(t, part)) for s, t in pairs for part in ("inputs", "outputs", "torch")]
    for old, new in ((a, b) for olds, news in parts for a, b in zip(olds, news, strict=True)):
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
        assert np.array_equal(old, new)


def test_format_1_still_reads() -> None:
    found = sidecar.read(make_format_1())
    (sample,) = found.samples
    assert (sample.inputs[0].tolist(), sample.outputs[0].tolist(), sample.torch) == ([1, 2], [3, 4], ())
    assert (found.delegates[0].tosa, found.traits) == (b"TOSA", ())
    with pytest.raises(Invalid, match="damaged"):
        sidecar.read(make_format_1(samples=[[1, 1, 0]]))


def test_samples_are_counted_against_the_budget() -> None:
    with pytest.raises(Invalid, match="max_memory"):
        sidecar.read(make_format_1(), max_memory=64)


def test_same_bytes_in_another_process() -> None:
    code = "import sys, test_sidecar as t; sys.stdout.buffer.write(t.sidecar.write(t.make()))"
    path = os.pathsep.join([str(Path(__file__).parent), join_python_path()])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == sidecar.write(make())


def test_zip_entries_are_fixed() -> None:
    entries = zipfile.ZipFile(io.BytesIO(sidecar.write(make()))).infolist()
    assert [e.filename for e in entries] == sorted(e.filename for e in entries)
    assert {(e.date_time, e.external_attr, e.create_system, e.compress_type) for e in entries} == {
        ((1980, 1, 1, 0, 0, 0), 0o100644 << 16, 3, zipfile.ZIP_DEFLATED)
    }


def test_order_of_options_does_not_matter() -> None:
    turned = dataclasses.replace(make(), options=dict(reversed([*make().options.items()])))
    assert sidecar.write(turned) == sidecar.write(make())


def test_infinite_figures_are_left_out() -> None:
    files = DelegateFiles(b"", summary={"a": float("inf"), "b": float("nan"), "c": 1.0})
    assert sidecar.read(sidecar.write(dataclasses.replace(make(), delegates=(files,)))).delegates[0].summary == {"c": 1}


def test_writer_refuses_what_it_cannot_keep() -> None:
    with pytest.raises(Invalid, match="takes 4 samples"):
        sidecar.write(dataclasses.replace(make(), samples=(Sample((), ()),) * 5))
    with pytest.raises(Invalid, match="not JSON"):
        sidecar.write(dataclasses.replace(make(), options={"model": object()}))


def test_check_compares_the_hash() -> None:
    make().check(PTE)
    with pytest.raises(Invalid, match="does not belong"):
        make().check(PTE + b"!")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"manifest.json": None}, "manifest.json"),
        ({"manifest.json": b"[1"}, "not JSON"),
        ({"manifest.json": b"[" * 100_000}, "manifest.json"),
        ({"manifest.json": b'{"format": 3}'}, "format 3"),
        ({"manifest.json": b'{"format": true}'}, "`format`"),
        ({"manifest.json": b'{"format": 1, "samples": [[1]]}'}, "pte_sha256"),
        ({"manifest.json": b'{"format": 2, "samples": []}'}, "traits"),
        ({"../evil": b""}, "unexpected file name"),
        ({"/etc/passwd": b""}, "unexpected file name"),
        ({"delegates/0/graph.tosa": None}, "missing"),
        ({"delegates/7/graph.tosa": b""}, "not in the manifest"),
        ({"delegates/0/debug.xml": b"\xff"}, "UTF-8"),
        ({"delegates/0/origins.json": b"{}"}, "not a JSON list"),
        ({"delegates/0/summary.json": b'{"cycles": "many"}'}, "not a number"),
        ({"samples/0/input_0.npy": b"\x93NUMPY\x01\x00\x02\x00{}"}, "cannot be used"),
        ({"samples/0/input_0.npy": b""}, "not a .npy file"),
    ],
)
def test_damaged_content(changes: dict[str, bytes | None], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        sidecar.read(rezip(sidecar.write(make()), changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("member", "value"), [("scale", 0.0), ("scale", -1.0), ("scale", "0.5"), ("rounded", 1), ("dtype", None)]
)
def test_damaged_trait(member: str, value: object) -> None:
    good = sidecar.write(make())
    manifest = json.loads(zipfile.ZipFile(io.BytesIO(good)).read("manifest.json"))
    manifest["traits"][0][member] = value
    with pytest.raises(Invalid, match="damaged"):
        sidecar.read(rezip(good, {"manifest.json": json.dumps(manifest).encode()}))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_damaged_scale_of_an_input(value: float) -> None:
    good = sidecar.write(make())
    manifest = json.loads(zipfile.ZipFile(io.BytesIO(good)).read("manifest.json"))
    manifest["inputs"][0]["scale"] = value
    with pytest.raises(Invalid, match="damaged"):
        sidecar.read(rezip(good, {"manifest.json": json.dumps(manifest).encode()}))


def test_manifest_of_huge_counts() -> None:
    good = sidecar.write(make())
    manifest = zipfile.ZipFile(io.BytesIO(good)).read("manifest.json")
    for old, new in ((b'"delegates": 2', b'"delegates": 99999999999'), (b'"delegates": 2', b'"delegates": -1')):
        assert old in manifest
        with pytest.raises(Invalid, match="damaged"):
            sidecar.read(rezip(good, {"manifest.json": manifest.replace(old, new)}))


def test_bomb_is_not_unpacked() -> None:
    bomb = rezip(sidecar.write(make()), {"delegates/0/graph.tosa": bytes(50 << 20)}, compress_type=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 1 << 20
    with pytest.raises(Invalid, match=r"`delegates/0/graph\.tosa` needs 52,428,800 bytes"):
        sidecar.read(bomb, max_memory=10 << 20)


@pytest.mark.parametrize(
    "items", [b"[]", b"{}", b"1000", b'"ab"', b'{"a":0}', b"[[[[]]]]", b'"\xf0\x9f\x98\x80"', b"1e9"], ids=repr
)
def test_json_bombs_are_counted_before_they_are_read(items: bytes) -> None:
    text = b"[" + b",".join([items] * 50_000) + b"]"
    tracemalloc.start()
    value = json.loads(text.decode())
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert value is not None and taken <= plain_json.estimate(text)
    bomb = rezip(sidecar.write(make()), {"delegates/0/origins.json": text}, compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(Invalid, match=r"the JSON of `delegates/0/origins\.json` needs"):
        sidecar.read(bomb, max_memory=len(text) + (1 << 20))


@pytest.mark.parametrize("kind", hostile.AMBIGUOUS)
def test_ambiguous_files(kind: str) -> None:
    with pytest.raises(Invalid, match="damaged"):
        sidecar.read(hostile.AMBIGUOUS[kind](hostile.unpack(sidecar.write(make()))))


def test_twin_names() -> None:
    file = io.BytesIO(sidecar.write(make()))
    with zipfile.ZipFile(file, "a") as twins, pytest.warns(UserWarning, match="Duplicate"):
        twins.writestr("manifest.json", b"{}")
    with pytest.raises(Invalid, match="damaged"):
        sidecar.read(file.getvalue())


def test_300_mutations_and_truncations() -> None:
    good, rng = sidecar.write(make()), random.Random(1)
    refused = 0
    for round_ in range(300):
        bad = bytearray(good[: rng.randrange(len(good))] if round_ % 3 == 0 else good)
        for _ in range(rng.randrange(1, 4)):
            if bad:
                bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            sidecar.read(bytes(bad))
        except Invalid:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("array", [np.arange(6, dtype=">i4").reshape(2, 3), np.float16(2), np.zeros((0, 3), bool)])
def test_npy_is_what_numpy_reads(array: Array) -> None:
    ours = np.load(io.BytesIO(write_npy(array)), allow_pickle=False)
    assert ours.shape == array.shape
    assert np.array_equal(ours, array)
    file = io.BytesIO()
    np.save(file, array)
    theirs = read_npy(file.getvalue(), "x.npy")
    assert theirs.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(theirs, array)


@pytest.mark.parametrize("array", [np.array([{}], object), np.array(["a"]), np.array([1j]), np.zeros(2, [("a", "i4")])])
def test_npy_of_other_things(array: Array) -> None:
    file = io.BytesIO()
    np.save(file, array)
    with pytest.raises(Invalid, match=r"x\.npy cannot be used"):
        read_npy(file.getvalue(), "x.npy")


def test_npy_that_claims_too_much() -> None:
    bad = write_npy(np.zeros((3, 4), np.int8)).replace(b"(3, 4)", b"(3, 9)")
    with pytest.raises(Invalid, match=r"x\.npy is damaged"):
        read_npy(bad, "x.npy")
