"""The engine vulkan: what is missing is named, and nothing that happens in the driver reaches the caller."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tosaic
from support.fuzzer.check import check
from support.fuzzer.graph import Graph, Leaf, Ref, Step
from tosaic.cli import app
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.engines import vulkan, vulkan_env
from tosaic.engines.missing_kernel import MissingKernel
from tosaic.formats import pte as pte_file
from tosaic.formats import vgf as reader

PROBE = Path(vulkan.__file__).with_name("probe.pte")
X = np.arange(16, dtype=np.float32).reshape(1, 16)


@pytest.fixture
def fresh() -> Iterator[None]:
    """A process that sees this test's environment, and none of it left afterwards."""
    vulkan.worker().close()
    vulkan.probe.cache_clear()
    yield
    vulkan.worker().close()
    vulkan.probe.cache_clear()


@pytest.fixture
def automatic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing chosen by whoever runs the tests."""
    for name in (vulkan_env.MODE_VARIABLE, "VK_ICD_FILENAMES", "VK_DRIVER_FILES"):
        monkeypatch.delenv(name, raising=False)


def replace_blob(change: bytes, old: bytes) -> bytes:
    """The probe's .pte with a part of its .vgf changed in place."""
    data = PROBE.read_bytes()
    assert len(change) == len(old) and data.count(old) == 1
    return data.replace(old, change)


# -- what is missing ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh")
def test_hidden_vulkan_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vulkan_env.MODE_VARIABLE, "off")
    found = vulkan.probe()
    assert not found.ok
    assert vulkan_env.MODE_VARIABLE in found.reason + found.fix
    with pytest.raises(vulkan.NoVulkan):
        vulkan.run(PROBE.read_bytes(), [X])


@pytest.mark.usefixtures("automatic")
def test_a_missing_loader_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOSAIC_CACHE", str(tmp_path))
    monkeypatch.setattr(vulkan_env, "_loads", lambda name: False)
    with pytest.raises(vulkan.NoVulkan) as caught:
        vulkan_env.find()
    assert "libvulkan.so.1" in caught.value.why
    assert "doctor --fix vgf" in caught.value.fix


@pytest.mark.usefixtures("automatic")
def test_a_missing_driver_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vulkan_env, "_loads", lambda name: True)
    monkeypatch.setattr(vulkan_env, "_list_manifests", lambda: [tmp_path / "gone.json"])
    with pytest.raises(vulkan.NoVulkan, match="not usable") as caught:
        vulkan_env.find()
    assert "no Vulkan driver" in caught.value.why


@pytest.mark.usefixtures("automatic")
def test_a_driver_file_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vulkan_env, "_loads", lambda name: True)
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "gone.json"))
    with pytest.raises(vulkan.NoVulkan) as caught:
        vulkan_env.find()
    assert "VK_ICD_FILENAMES" in caught.value.why


def test_missing_layers_are_told(tmp_path: Path) -> None:
    driver = tmp_path / "lvp_icd.json"
    with pytest.raises(vulkan.NoVulkan) as caught:
        vulkan_env.require_emulation(vulkan_env.Parts((), driver, None, ()))
    assert "doctor --fix vgf" in caught.value.fix


def test_graph_layer_comes_first_and_paths_are_absolute(tmp_path: Path) -> None:
    layers = vulkan_env._find_layers()
    if layers is None:
        pytest.skip("the emulation layer is not installed")
    driver = tmp_path / "lvp_icd.x86_64.json"
    variables = vulkan_env.emulate(vulkan_env.Parts((), driver, layers, ()), tmp_path)
    first, second = variables["VK_LAYER_PATH"].split(os.pathsep)
    assert (Path(first) / "VkLayer_Graph.json").is_file()
    assert (Path(second) / "VkLayer_Tensor.json").is_file()
    assert str(layers / "lib/libVkLayer_Graph.so") in (Path(first) / "VkLayer_Graph.json").read_text()
    assert variables["VK_ICD_FILENAMES"] == str(driver)


@pytest.mark.usefixtures("automatic")
def test_an_unpacked_driver_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOSAIC_CACHE", str(tmp_path))
    root = tmp_path / "vulkan"
    for name in ("usr/lib/x-linux-gnu/libvulkan.so.1", "usr/lib/x-linux-gnu/libvulkan_lvp.so"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    manifest = root / "usr/share/vulkan/icd.d/lvp_icd.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"ICD": {"library_path": "/usr/lib/x-linux-gnu/libvulkan_lvp.so"}}')
    monkeypatch.setattr(vulkan_env, "_loads", lambda name: False)
    monkeypatch.setattr(vulkan_env, "_MANIFEST_FOLDERS", ())
    parts = vulkan_env.find()
    assert parts.libraries == (root / "usr/lib/x-linux-gnu",)
    copy = vulkan_env._relocate(manifest, tmp_path)
    assert str(root / "usr/lib/x-linux-gnu/libvulkan_lvp.so") in copy.read_text()


# -- files that are not to be trusted -------------------------------------------------------------------------------


def test_a_damaged_vgf_never_reaches_the_driver() -> None:
    with pytest.raises(Invalid, match=r"\.vgf"):
        vulkan.run(replace_blob(b"VGF9", b"VGF1"), [X])


def test_wrong_inputs_are_refused() -> None:
    for inputs in ([], [X[:, :3]], [X.astype(np.float64)]):
        with pytest.raises(Invalid):
            vulkan.run(PROBE.read_bytes(), inputs)


def test_the_probe_is_a_vgf_program() -> None:
    (delegate,) = pte_file.read(PROBE.read_bytes()).find().delegates
    assert delegate.id == "VgfBackend"
    assert len(reader.read(delegate.blob).modules) == 1


# -- on a device ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("device")
def test_many_runs_share_one_process() -> None:
    pids = set()
    for i in range(4):
        (result,) = vulkan.run(PROBE.read_bytes(), [X + i])
        assert np.array_equal(result, 2 * (X + i))
        child = vulkan.worker()._child
        assert child is not None
        pids.add(child.process.pid)
    assert len(pids) == 1


@pytest.mark.usefixtures("device", "fresh")
def test_the_wrong_order_of_layers_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = vulkan_env.find()
    variables = vulkan_env.emulate(parts, tmp_path)
    first, second = variables["VK_LAYER_PATH"].split(os.pathsep)
    monkeypatch.setenv(vulkan_env.MODE_VARIABLE, "keep")
    for name, value in (variables | {"VK_LAYER_PATH": os.pathsep.join((second, first))}).items():
        monkeypatch.setenv(name, value)
    found = vulkan.probe()
    assert not found.ok
    assert "wrong order" in found.reason
    assert vulkan_env.MODE_VARIABLE in found.fix


def use_driver(monkeypatch: pytest.MonkeyPatch, folder: Path, library: str) -> None:
    manifest = folder / "icd.json"
    driver = {"library_path": library, "api_version": "1.3.0"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": driver}))
    monkeypatch.setenv("VK_ICD_FILENAMES", str(manifest))


def build_driver(folder: Path, *flags: str) -> str:
    """The driver in driver.c, which has no features at all."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build a driver with")
    library, source = folder / "libdriver.so", Path(__file__).with_name("driver.c")
    subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", library, source], check=True, timeout=60)
    return str(library)


@pytest.mark.usefixtures("device", "fresh", "automatic")
def test_a_driver_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_driver(monkeypatch, tmp_path, "/dev/null")
    found = vulkan.probe()
    assert not found.ok
    assert "cannot be opened" in found.reason
    assert found.fix == "unset `VK_ICD_FILENAMES`"


@pytest.mark.usefixtures("device", "fresh", "automatic")
def test_a_driver_without_small_integers_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tosaic.compile(torch.nn.ReLU().eval(), (torch.from_numpy(X),), "vgf", quantized=False)
    path = program.save(tmp_path / "relu.pte")
    use_driver(monkeypatch, tmp_path, build_driver(tmp_path))
    with pytest.raises(vulkan.NoVulkan) as caught:
        program.run(X, engine="vulkan")
    assert "`a device without features` has no " in caught.value.why
    for name in ("storageBuffer8BitAccess", "storageBuffer16BitAccess", "shaderInt8", "shaderInt16"):
        assert name in caught.value.why
    # Left to choose, the engine is the one that gives the same numbers, and the reason is told.
    done = CliRunner().invoke(app, ["run", str(path)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    assert "engine tosa: Vulkan is not usable: the device `a device without features`" in done.stderr


@pytest.mark.usefixtures("device", "fresh", "automatic")
def test_a_driver_that_crashes_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_driver(monkeypatch, tmp_path, build_driver(tmp_path, "-DCRASH"))
    found = vulkan.probe()
    assert not found.ok
    assert found.reason == "the driver crashed with SIGABRT when asked for its devices"


@pytest.mark.usefixtures("device")
def test_a_crash_is_an_error_and_the_next_run_works() -> None:
    # An instruction of length 0 in otherwise sound SPIR-V: the layers do not survive it.
    (delegate,) = pte_file.read(PROBE.read_bytes()).find().delegates
    code = reader.read(delegate.blob).modules[0].spirv
    broken = code[:20] + struct.pack("<I", 0) * ((len(code) - 20) // 4)
    with pytest.raises(ToolFailed):
        vulkan.run(replace_blob(broken, code), [X])
    (result,) = vulkan.run(PROBE.read_bytes(), [X])
    assert np.array_equal(result, 2 * X)


class Codes(torch.nn.Module):
    """Through int8 and back, with an operator before it so that it is worth a delegate."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        codes = ops.quantize_per_tensor(x * 1.0, 0.037, 7, -128, 127, torch.int8)
        return ops.dequantize_per_tensor(codes, 0.037, 7, -128, 127, torch.int8)


@pytest.mark.usefixtures("device")
def test_quantize_rounds_half_to_even_on_the_device() -> None:
    x = (torch.arange(-300, 300) / 2).reshape(1, -1) * 0.037
    program = tosaic.compile(torch.export.export(Codes(), (x,)), (x,), "vgf")
    assert (len(program.delegates), program.reasons) == (1, ())
    (result,) = vulkan.run(program.pte, [x.numpy()])
    assert np.array_equal(result, Codes()(x).numpy())


@pytest.mark.usefixtures("device")
def test_a_missing_kernel_is_named() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.digamma(x * 2)

    x = torch.ones(4)
    program = tosaic.compile(Model().eval(), (x,), "vgf", quantized=False)
    with pytest.raises(MissingKernel) as caught:
        program.run(x)
    assert caught.value.why == "it has no kernel for `aten::digamma.out`"
    assert "engine `tosa`" in caught.value.fix
    np.testing.assert_allclose(program.run(x, engine="tosa")[0], torch.digamma(x * 2), rtol=1e-6)


@pytest.mark.usefixtures("device")
def test_a_kernel_that_refuses_its_arguments_is_named() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.conv_transpose3d(x * 2, weight, stride=2)

    inputs = torch.rand(1, 3, 2, 2, 2), torch.rand(3, 4, 3, 3, 3)
    program = tosaic.compile(Model().eval(), inputs, "vgf", quantized=False)
    with pytest.raises(MissingKernel) as caught:
        program.run(*inputs)
    assert caught.value.why.startswith("its kernel for `aten::convolution.out` refused the arguments (Expect input")
    np.testing.assert_allclose(program.run(*inputs, engine="tosa")[0], Model()(*inputs), rtol=1e-5)


@pytest.mark.usefixtures("device")
def test_the_fuzzer_expects_missing_kernels() -> None:
    leaf = Leaf("input", (2, 5), torch.float32, 0.5, 2.0, 1)
    steps = (Step("aten.exp.default", (Ref("x", 0),)), Step("aten.digamma.default", (Ref("v", 0),)))
    outcome = check(Graph((leaf,), steps, (Ref("v", 1),)), "vgf", False)
    assert outcome.failures == []
    assert any("no kernel for `aten::digamma.out`" in line for line in outcome.refused)
