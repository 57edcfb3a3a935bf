"""`tosaic.runtime.register()`: ExecuTorch's own Python API runs Ethos-U files, each test in a child process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support import join_python_path
from support.extras import needs_compiler
from tosaic.engines.interpreter import Method
from tosaic.formats.pte import read

_RUN = """
import sys
import numpy as np, torch
import tosaic.runtime
from executorch.runtime import Runtime

runtime = Runtime.get()
assert "EthosUBackend" not in runtime.backend_registry.registered_backend_names
tosaic.runtime.register()
tosaic.runtime.register()
assert runtime.backend_registry.registered_backend_names.count("EthosUBackend") == 1
arrays = np.load("inputs.npz")
inputs = [torch.from_numpy(arrays[name]) for name in arrays.files]
method = runtime.load_program("model.pte").load_method("forward")
for _ in range(2):
    outputs = method.execute(inputs)
np.savez("outputs.npz", *[output.numpy() for output in outputs])
"""

_FAIL = """
import torch
import tosaic.runtime
from executorch.runtime import Runtime
from tosaic.engines import interpreter

def refuse(*_, **__):
    raise interpreter.Invalid("the NPU is on fire")

interpreter.npu.run_blob = refuse
tosaic.runtime.register()
method = Runtime.get().load_program("model.pte").load_method("forward")
try:
    method.execute([torch.zeros(5, dtype=torch.int32)])
except RuntimeError as error:
    print("raised", error)
"""

_TAKEN = """
import tosaic.runtime
from tosaic.core.errors import Invalid
from tosaic.engines.interpreter import Npu
from tosaic.engines.runtime_backend import connect, load_runtime

connect(*load_runtime(), Npu)
try:
    tosaic.runtime.register()
except Invalid as error:
    print(error.what)
"""


def _run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": join_python_path()}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@needs_compiler
@pytest.mark.parametrize("form", ["inline", "segment"])
def test_runtime_runs_ethosu_files(conv, conv_inputs: tuple[torch.Tensor, ...], tmp_path: Path, form: str) -> None:
    (tmp_path / "model.pte").write_bytes(conv.pte[form])
    inputs = [x.numpy() for x in conv_inputs]
    np.savez(tmp_path / "inputs.npz", *inputs)
    _run(tmp_path, _RUN)
    ours = Method(read(conv.pte[form])).run(inputs)
    theirs = list(np.load(tmp_path / "outputs.npz").values())
    assert len(ours) == len(theirs) == 2
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert np.unique(ours[0]).size > 9


@needs_compiler
def test_the_kernels_may_be_imported_first(conv, conv_inputs: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    """A script that lowers a model imports them before it runs it."""
    (tmp_path / "model.pte").write_bytes(conv.pte["inline"])
    inputs = [x.numpy() for x in conv_inputs]
    np.savez(tmp_path / "inputs.npz", *inputs)
    _run(tmp_path, "import executorch.kernels.quantized\n" + _RUN)
    ours = Method(read(conv.pte["inline"])).run(inputs)
    theirs = list(np.load(tmp_path / "outputs.npz").values())
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@needs_compiler
def test_reason_of_a_failure_is_logged(add_pte: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "model.pte").write_bytes(add_pte["inline"])
    done = _run(tmp_path, _FAIL)
    assert "raised" in done.stdout
    assert "EthosUBackend failed: the NPU is on fire" in done.stderr


@needs_compiler
def test_runtime_with_such_a_backend_is_refused(tmp_path: Path) -> None:
    assert _run(tmp_path, _TAKEN).stdout.strip().endswith("already has a backend `EthosUBackend`")
