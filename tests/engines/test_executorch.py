"""Engine `executorch`: the stock C++ runtime with stand-ins for the NPU gives what the interpreter gives."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import export

from support import join_python_path
from support.extras import needs_compiler
from support.programs import emit, make_external
from support.stand_in import make_mix
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.paths import CACHE_VARIABLE, find_cache_folder
from tosaic.engines import executorch, shim
from tosaic.engines.interpreter import Method
from tosaic.formats import external as external_files
from tosaic.formats.npy import Array
from tosaic.formats.pte import read


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory):
    """A cache of its own, a child that can import the stand-ins, and no child left behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYTHONPATH", join_python_path())
        executorch.worker().close()
        yield
    executorch.worker().close()


@needs_compiler
@pytest.mark.parametrize("form", ["inline", "segment"])
def test_delegated_add(add_pte: dict[str, bytes], form: str) -> None:
    (result,) = executorch.run(add_pte[form], [np.arange(5, dtype=np.int32)], executor="support.stand_in:make_double")
    assert result.tolist() == [0, 2, 4, 6, 8]


@needs_compiler
@pytest.mark.parametrize("form", ["inline", "segment"])
def test_two_delegates_as_in_the_interpreter(conv_pte: dict[str, bytes], conv_inputs, form: str) -> None:
    inputs: list[Array] = [x.numpy() for x in conv_inputs]
    ours = Method(read(conv_pte[form]), executors={"EthosUBackend": make_mix()}).run(inputs)
    theirs = executorch.run(conv_pte[form], inputs, executor="support.stand_in:make_mix")
    assert len(ours) == len(theirs) == 2
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a, b)


class Quantize(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # The inverse of this scale is another float if it is taken of a double.
        grid = (0.000123, 7, -32768, 32767, torch.int16)
        codes = torch.ops.quantized_decomposed.quantize_per_tensor.default(x, *grid)
        return codes, torch.ops.quantized_decomposed.dequantize_per_tensor.default(codes, *grid)


@needs_compiler
def test_simulated_npu(conv, conv_inputs) -> None:
    inputs: list[Array] = [x.numpy() for x in conv_inputs]
    ours = Method(read(conv.pte["inline"])).run(inputs)
    for a, b in zip(ours, executorch.run(conv.pte["inline"], inputs), strict=True):
        assert np.array_equal(a, b)


@needs_compiler
def test_quantize_is_bit_exact() -> None:
    x = ((np.arange(-20000, 20000) + 0.5 - 7) * np.float32(0.000123)).astype(np.float32)
    data = emit(export(Quantize(), (torch.from_numpy(x),)), forms=("inline",))["inline"]
    for ours, theirs in zip(Method(read(data)).run([x]), executorch.run(data, [x]), strict=True):
        assert np.array_equal(ours, theirs)


@needs_compiler
def test_programs_without_delegates(softmax_pte, mixed_pte: bytes, branch_pte: bytes, dynamic_pte: bytes) -> None:
    rng = np.random.default_rng(0)
    for data, kept in ((softmax_pte["inline"], 1), (branch_pte, 1), (dynamic_pte, 1), (mixed_pte, 2)):
        method = Method(read(data))
        inputs = [rng.standard_normal(shape).astype(dtype) for dtype, shape in method.inputs]
        # The runtime's own `cat` is wrong for channels last, so not all outputs of `mixed` are compared.
        for ours, theirs in list(zip(method.run(inputs), executorch.run(data, inputs), strict=True))[:kept]:
            np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), atol=1e-6)


@needs_compiler
def test_errors_come_back_typed(add_pte: dict[str, bytes]) -> None:
    x, data = np.zeros(5, np.int32), add_pte["inline"]
    with pytest.raises(Invalid, match=r"input 0 is int32\[4\]"):
        executorch.run(data, [x[:4]])
    with pytest.raises(Invalid, match="no method `backward`"):
        executorch.run(data, [x], method="backward")
    with pytest.raises(ToolFailed, match="cannot run the program") as caught:
        executorch.run(data, [x], executor="support.stand_in:make_refuse")
    assert "the NPU is on fire" in caught.value.why
    with pytest.raises(Invalid, match=r"the NPU returns int32\[3\], but the program takes int32\[5\]"):
        executorch.run(data, [x], executor="support.stand_in:make_shorten")


class Sort(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x, -1).values


@needs_compiler
def test_kernel_that_the_runtime_has_not() -> None:
    data = emit(export(Sort(), (torch.ones(3),)), forms=("inline",))["inline"]
    x = np.float32([3, 1, 2])
    assert Method(read(data)).run([x])[0].tolist() == [1, 2, 3]
    with pytest.raises(ToolFailed) as caught:
        executorch.run(data, [x])
    assert caught.value.why == "it has no kernel for `aten::sort.values`"


@needs_compiler
def test_crash_ends_the_child_only(add_pte: dict[str, bytes]) -> None:
    x = np.zeros(5, np.int32)
    with pytest.raises(ToolFailed, match="ExecuTorch's runtime crashed with SIGSEGV"):
        executorch.run(add_pte["inline"], [x], executor="support.stand_in:make_crash")
    assert executorch.run(add_pte["inline"], [x], executor="support.stand_in:make_double")[0].tolist() == [0] * 5


@needs_compiler
def test_shim_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    path = shim.build()
    assert path.parent == find_cache_folder()
    monkeypatch.setattr(shim, "find_compiler", lambda: pytest.fail("it was built again"))
    assert shim.build() == path


def test_no_compiler(add_pte: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(ToolFailed, match="needs a C\\+\\+ compiler") as caught:
        executorch.run(add_pte["inline"], [np.zeros(5, np.int32)])
    assert "engine `npu`" in caught.value.fix
    assert "g++" in caught.value.why


def test_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\necho 'shim.cpp:1: error: no such thing'\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(ToolFailed, match="cannot compile the shim") as caught:
        shim.build()
    assert caught.value.why == "shim.cpp:1: error: no such thing"
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_folder_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(ToolFailed, match="cannot be used") as caught:
        shim.build()
    assert "TOSAIC_CACHE" in caught.value.fix


@needs_compiler
@pytest.mark.parametrize("external", [("weights",), ("commands",), ("weights", "commands")])
def test_data_outside_of_the_file(external: tuple[str, ...]) -> None:
    """The runtime finds it in its own map of named data, which is made of one .ptd file or two."""
    program = make_external(external)
    x = np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    files = tuple(program.data.values())
    (ours,) = Method(external_files.read(program.pte, files)).run([x])
    (theirs,) = executorch.run(program.pte, [x], data=files)
    assert np.array_equal(ours, theirs) and np.unique(ours).size > 9
    with pytest.raises(Invalid, match="delegate are missing"):
        executorch.run(program.pte, [x], data=files[1:])
