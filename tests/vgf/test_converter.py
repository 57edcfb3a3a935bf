"""The model converter as a child process: same bytes, typed refusals, time limits."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from tosaic.backends import converter
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.formats.tosa_writer import names, read, serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Type


def make_add() -> Graph:
    builder = Builder()
    x = builder.input(Type(DType.F32, (1, 4)))
    return builder.finish([ops.add(builder, x, x)])


def make_custom(attributes: bytes = b"x") -> Graph:
    """An addition, and an operator that no converter knows."""
    builder = Builder()
    x = builder.input(Type(DType.F32, (1, 4)))
    y = ops.add(builder, x, x)
    attrs = {"operator_name": "wish", "domain_name": "tosaic", "implementation_attrs": attributes}
    return builder.finish(list(builder.emit(ops.CUSTOM, (y,), types=(Type(DType.F32, (1, 4)),), **attrs)))


def test_gives_the_same_bytes_again() -> None:
    tosa = serialize(make_add())
    made = converter.compile(tosa)
    assert made[:4] == b"VGF1"
    assert converter.compile(tosa) == made


def test_the_cache_answers_the_second_time() -> None:
    cache = converter.CompileCache[bytes](len)
    tosa = serialize(make_add())
    assert converter.compile_cached(tosa, cache=cache) is converter.compile_cached(tosa, cache=cache)
    assert len(cache) == 1


def test_a_refusal_names_the_operator_and_keeps_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOSAIC_CACHE", str(tmp_path))
    graph = make_custom()
    with pytest.raises(converter.Refused) as caught:
        converter.compile(serialize(graph))
    assert caught.value.kinds == ("CUSTOM",)
    assert caught.value.names == (names(graph)[graph.outputs[0]],)
    assert "tosa.custom" in caught.value.why
    (kept,) = (tmp_path / "refused").glob("*.tosa")
    assert str(kept) in caught.value.fix
    assert serialize(read(kept.read_bytes())) == serialize(graph)


def test_a_crash_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Version 0.9.0 falls over an operator without attributes.
    monkeypatch.setenv("TOSAIC_CACHE", str(tmp_path))
    with pytest.raises(converter.Refused, match="rejected the graph"):
        converter.compile(serialize(make_custom(b"")))


def test_garbage_is_refused() -> None:
    with pytest.raises(Invalid):
        converter.compile(b"no flatbuffer at all")


def test_time_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "binaries" / "bin" / "model-converter"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    place = importlib.metadata.PackagePath("binaries/bin/model-converter")
    monkeypatch.setattr(place, "dist", SimpleNamespace(locate_file=lambda _: program), raising=False)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: SimpleNamespace(files=[place]))
    with pytest.raises(ToolFailed, match=r"within 0\.1 s"):
        converter.compile(serialize(make_add()), timeout=0.1)


def test_unknown_flags_are_refused() -> None:
    with pytest.raises(Invalid, match="--tosa-flatbuffer"):
        converter.check_flags(["--tosa-flatbuffer"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    converter.version.cache_clear()
    monkeypatch.setattr(converter, "PACKAGE", "no-such-converter")
    with pytest.raises(ToolFailed) as caught:
        converter.compile(serialize(make_add()))
    assert "tosaic[vgf]" in caught.value.fix
    converter.version.cache_clear()
