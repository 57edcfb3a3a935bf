"""`tosaic.write_sidecar` after ExecuTorch's own API, and `verify --tosa` with graphs from anywhere."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

import tosaic
from support.cli import Outcome, run_command
from support.programs import Conv
from tosaic.api.prepare import quantize
from tosaic.core.errors import Invalid
from tosaic.driver import kept
from tosaic.driver.bundle import make_bundle
from tosaic.driver.exported import export
from tosaic.engines import shim
from tosaic.formats import pte, sidecar
from tosaic.formats.tosa_writer import read, serialize
from tosaic.tools.cache import CompileCache

TARGET = "ethos-u55-128"


def lower(*others: Any, intermediates: Path | None = None) -> bytes:
    """Compile a model of two delegates with ExecuTorch's own API; `others` are partitioners for what is left."""
    torch.manual_seed(0)
    inputs = torch.randn(1, 3, 8, 8), torch.randn(1, 8, 8, 8)
    exported = torch.export.export(quantize(export(Conv().eval(), inputs), [inputs]), inputs)
    spec = tosaic.EthosUCompileSpec(TARGET)
    spec.dump_intermediate_artifacts_to(None if intermediates is None else str(intermediates))
    ours = tosaic.EthosUPartitioner(spec)
    return bytes(to_edge_transform_and_lower(exported, partitioner=[ours, *others]).to_executorch().buffer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.pte, net.tosaic, the graphs of both delegates, and the intermediate files."""
    made = tmp_path_factory.mktemp("files")
    (made / "net.pte").write_bytes(lower(intermediates=made / "all"))
    beside = sidecar.read(tosaic.write_sidecar(made / "net.pte").read_bytes())
    for index, delegate in enumerate(beside.delegates):
        (made / f"{index}.tosa").write_bytes(delegate.tosa)
    return made


@pytest.fixture
def files(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def verify(path: Path, *tosa: str) -> Outcome:
    options = [text for name in tosa for text in ("--tosa", str(path / name))]
    return run_command("verify", path / "net.pte", "--rounds", 1, *options)


def test_sidecar_has_every_delegate_in_order(files: Path) -> None:
    beside = sidecar.read((files / "net.tosaic").read_bytes())
    beside.check((files / "net.pte").read_bytes())
    assert (beside.target, len(beside.delegates)) == (TARGET, 2)
    kinds = [{op.kind for op in read(delegate.tosa).ops} for delegate in beside.delegates]
    assert "CONV2D" in kinds[0] and "CONV2D" not in kinds[1]
    assert all(delegate.debug_db and delegate.origins for delegate in beside.delegates)
    assert [info.shape for info in beside.inputs] == [(1, 3, 8, 8), (1, 8, 8, 8)]


def test_verify_takes_the_file(files: Path) -> None:
    done = verify(files)
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("2 delegate runs compared")
    assert done.stdout.splitlines()[-1] == "PASS: bit-exact"


def test_another_process_cannot_write_it(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_KEPT", CompileCache(lambda _: 0))
    with pytest.raises(Invalid, match="the TOSA graph of delegate 0 is unknown") as caught:
        tosaic.write_sidecar(files / "net.pte")
    assert "tosaic.write_sidecar" in caught.value.fix


def test_file_without_delegates_is_refused(softmax_pte: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "net.pte").write_bytes(softmax_pte["inline"])
    with pytest.raises(Invalid, match="has no delegate of Tosaic"):
        tosaic.write_sidecar(tmp_path / "net.pte")


def test_graphs_of_anyone(files: Path) -> None:
    (files / "net.tosaic").unlink()
    done = verify(files)
    assert done.code == 2
    assert "--tosa" in done.stderr and "write_sidecar" in done.stderr
    done = verify(files, "0.tosa", "1.tosa")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("2 delegate runs compared")
    assert "not checked: the distance from torch and from float: there are no samples" in done.stdout


def test_folder_of_intermediates(files: Path) -> None:
    """The names are in the order of the delegates, and such that Model Explorer's adapter finds them."""
    paths = sorted((files / "all").glob("*.tosa"))
    assert [path.read_bytes() for path in paths] == [(files / f"{i}.tosa").read_bytes() for i in range(2)]
    assert [re.findall(r"output_tag(\d+)_", path.name) for path in paths] == [["000"], ["001"]]
    done = verify(files, "all")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("2 delegate runs compared")


def test_wrong_graph_is_a_difference(files: Path) -> None:
    graph = read((files / "0.tosa").read_bytes())
    bias = next(op for op in graph.ops if op.kind == "CONV2D").inputs[2].op
    assert bias is not None
    bias.attrs = {**bias.attrs, "data": np.full(8, 12345, np.int32)}
    (files / "0.tosa").write_bytes(serialize(graph))
    done = verify(files, "0.tosa", "1.tosa")
    assert done.code == 1
    assert "DIFFERENT: delegate 0, output 0, random 0 inputs" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAIL"


def test_graphs_in_another_order_or_number(files: Path) -> None:
    done = verify(files, "1.tosa", "0.tosa")
    assert done.code == 2
    assert "the .tosa file does not belong to delegate 0" in done.stderr
    done = verify(files, "0.tosa")
    assert done.code == 2
    assert "1 .tosa files were given, but the program has 2 delegates" in done.stderr


def test_damaged_graph(files: Path) -> None:
    (files / "0.tosa").write_bytes((files / "0.tosa").read_bytes()[:100])
    assert verify(files, "0.tosa", "1.tosa").code == 2


def test_xnnpack_beside_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "net.pte").write_bytes(lower(XnnpackPartitioner()))
    ids = [delegate.id for delegate in pte.read((tmp_path / "net.pte").read_bytes()).plans[0].delegates]
    assert set(ids) == {"EthosUBackend", "XnnpackBackend"}
    tosaic.write_sidecar(tmp_path / "net.pte")
    done = verify(tmp_path)
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(f"{ids.count('EthosUBackend')} delegate runs compared")
    for index, name in enumerate(ids):
        line = f"not checked: delegate {index}: it is for `XnnpackBackend`"
        assert (line in done.stdout) == (name == "XnnpackBackend")
    x, y = torch.zeros(1, 3, 8, 8), torch.zeros(1, 8, 8, 8)
    bundle = make_bundle((tmp_path / "net.pte").read_bytes(), [([x, y], [y, y])])
    (tmp_path / "net.bpte").write_bytes(bundle)
    done = call("verify", str(tmp_path / "net.bpte"))
    assert (done.code, "not checked: the test cases: `tosaic run --engine executorch`" in done.stdout) == (0, True)
    (tmp_path / "net.tosaic").unlink()
    assert call("verify", str(tmp_path / "net.bpte")).code == 2


call = functools.partial(run_command, env={"COLUMNS": "100"})


@pytest.mark.skipif(not shim.find_compiler(), reason="no C++ compiler for the shim: `apt install g++`, or set CXX")
def test_other_commands_with_xnnpack_beside(tmp_path: Path) -> None:
    """XNNPACK counts as the CPU, and has no graph; engines that do not have it name the one that does."""
    file = tmp_path / "net.pte"
    file.write_bytes(lower(XnnpackPartitioner()))
    count = sum(delegate.id == "XnnpackBackend" for delegate in pte.read(file.read_bytes()).plans[0].delegates)
    beside = tosaic.write_sidecar(file)
    shown = call("inspect", str(file))
    assert shown.code == 0, shown.stderr
    assert "XnnpackBackend" in shown.stdout and "CONV2D" in shown.stdout
    shown = call("inspect", str(beside))
    assert shown.stdout.count("none: the delegate is for another backend") == count > 0
    for engine in ("npu", "tosa"):
        done = call("run", str(file), "--engine", engine)
        assert (done.code, "use `--engine executorch`" in done.stderr) == (2, True)
    done = call("run", str(file), "--engine", "executorch")
    assert f"`XnnpackBackend` x{count}" in done.stdout
    assert "NPU cycles" in done.stdout
    log = call("run", str(file), "--engine", "executorch", "--log").stdout
    assert "NPU Inferences : 2" in log and "NPU delegations: 2" in log
    assert log.count("(not known) NPU cycles") == 0
