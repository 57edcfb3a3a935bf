"""Every public name of ExecuTorch's Arm backend, under the path that a script finds by replacing the package's name."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest
import torch

import tosaic
from tosaic.core.errors import Invalid, Unsupported

NAMES = {
    "tosaic": (
        *("EthosUBackend", "EthosUCompileSpec", "EthosUPartitioner", "EthosUQuantizer"),
        *("VelaExternalBlockPlacements", "VgfBackend", "VgfCompileSpec", "VgfPartitioner", "VgfQuantizer"),
        *("get_symmetric_quantization_config", "get_symmetric_a16w8_quantization_config", "MXFPOpConfig", "to_mxfp"),
    ),
    "tosaic.ethosu": ("EthosUBackend", "EthosUCompileSpec", "EthosUPartitioner", "VelaExternalBlockPlacements"),
    "tosaic.ethosu.compile_spec": ("EthosUCompileSpec", "VelaExternalBlockPlacements"),
    "tosaic.vgf": ("VgfBackend", "VgfCompileSpec", "VgfPartitioner"),
    "tosaic.tosa": ("TOSABackend", "TOSAPartitioner", "TosaCompileSpec", "TosaSpecification"),
    "tosaic.tosa.specification": ("TosaSpecification",),
    "tosaic.tosa.compile_spec": ("TosaCompileSpec",),
    "tosaic.common.arm_compile_spec": ("ArmCompileSpec",),
    "tosaic.common.pipeline_config": ("ArmPassPipelineConfig", "SoftmaxDecompositionConfig"),
    "tosaic.quantizer": (
        *("EthosUQuantizer", "TOSAQuantizer", "VgfQuantizer", "QuantizationConfig", "is_annotated"),
        *("get_symmetric_quantization_config", "get_symmetric_a16w8_quantization_config"),
        "get_uint8_io_quantization_config",
    ),
    "tosaic.quantizer.arm_quantizer": ("get_symmetric_a8w4_quantization_config", "get_vgf_snorm_quantization_config"),
    "tosaic.quantizer.quantization_config": ("QuantizationConfig", "TOSAQuantizationConfig"),
    "tosaic._passes": (
        *("ConvertInt64ConstOpsToInt32Pass", "ConvertInt64OutputOpsToInt32Pass"),
        "InsertInt32CastsAfterInt64PlaceholdersPass",
    ),
}


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in NAMES.items() for n in names])
def test_name(module: str, name: str) -> None:
    assert inspect.isroutine(found := getattr(importlib.import_module(module), name)) or isinstance(found, type)


def test_dir_lists_what_can_be_imported() -> None:
    assert {"compile", "EthosUPartitioner"} <= set(dir(tosaic))
    assert [name for name in dir(tosaic) if not hasattr(tosaic, name)] == []


def test_listing_names_does_not_import_torch() -> None:
    code = "import sys, tosaic; dir(tosaic); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_block_scaled_floats_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"TOSA 1\.1"):
        tosaic.to_mxfp(torch.nn.Linear(2, 2))
    with pytest.raises(Unsupported, match=r"TOSA 1\.1"):
        tosaic.MXFPOpConfig()


def test_specifications() -> None:
    specification = importlib.import_module("tosaic.tosa.specification").TosaSpecification
    assert list(map(str, specification.all_versions_and_profiles())) == ["TOSA-1.0+INT", "TOSA-1.0+FP"]
    assert list(map(str, specification.all_versions_for_profile("int"))) == ["TOSA-1.0+INT"]
    assert len(specification.all_profiles_for_version("1.0")) == 2
    with pytest.raises(Invalid, match=r"1\.1 is not supported"):
        specification.all_profiles_for_version("1.1")
    with pytest.raises(Invalid, match="not a TOSA profile"):
        specification.all_versions_for_profile("BI")
    one = specification.create_from_string("TOSA-1.0+INT+u55")
    assert (one.version.major, one.version.minor, one.is_U55_subset) == (1, 0, True)
    assert not specification.create_from_string("TOSA-1.0+FP").is_U55_subset


def test_compile_specs_have_the_attributes_of_executorch() -> None:
    ethos = tosaic.EthosUCompileSpec("ethos-u85-256", extra_flags=["--optimise=Size"])
    assert ethos.tosa_spec.support_integer() and str(ethos.target) == "ethos-u85-256"
    assert {"--accelerator-config=ethos-u85-256", "--optimise=Size"} <= set(ethos.compiler_flags)
    config = importlib.import_module("tosaic.common.pipeline_config").ArmPassPipelineConfig()
    assert ethos.set_pass_pipeline_config(config) is None
    assert tosaic.VgfCompileSpec(compiler_flags=["--emit-debug-info"]).compiler_flags == ["--emit-debug-info"]
    with pytest.raises(Invalid, match="source builds"):
        tosaic.VgfCompileSpec().validate_environment(require_runtime_build=True)


def test_partitioners_have_the_attributes_of_executorch() -> None:
    partitioner = tosaic.EthosUPartitioner(tosaic.EthosUCompileSpec("ethos-u55-128"), additional_checks=[])
    assert partitioner.tosa_spec.is_U55_subset and partitioner.additional_checks == []
