"""Recipes for `executorch.export`: one name for quantizer, partitioner and target.

    from executorch.export import ExportRecipe, export
    session = export(model, [inputs], ExportRecipe.get_recipe(ArmRecipeType.ETHOS_U55_INT8))

Importing this module registers them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from executorch.exir.backend.partitioner import Partitioner
from executorch.export import (
    BackendRecipeProvider,
    ExportRecipe,
    LoweringRecipe,
    QuantizationRecipe,
    RecipeType,
    recipe_registry,
)
from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic.core.compile_spec import ArmCompileSpec, coerce
from tosaic.core.errors import Invalid
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.quantization.recipes import (
    QuantizationConfig,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from tosaic.quantizer import TOSAQuantizer
from tosaic.tosa import TosaCompileSpec, TOSAPartitioner
from tosaic.vgf import VgfCompileSpec, VgfPartitioner

__all__ = ["ArmRecipeProvider", "ArmRecipeType"]

_BACKEND = "arm"


class ArmRecipeType(RecipeType):
    """A target and a precision."""

    ETHOS_U55_INT8 = "arm_ethos_u55_int8"
    ETHOS_U65_INT8 = "arm_ethos_u65_int8"
    ETHOS_U85_INT8 = "arm_ethos_u85_int8"
    TOSA_FP = "arm_tosa_fp"
    TOSA_INT8 = "arm_tosa_int8"
    TOSA_A16W8 = "arm_tosa_a16w8"
    VGF_FP = "arm_vgf_fp"
    VGF_INT8 = "arm_vgf_int8"

    @classmethod
    def get_backend_name(cls) -> str:
        return _BACKEND


#: The default accelerator of each Ethos-U recipe.
_ETHOS: Mapping[RecipeType, str] = {
    ArmRecipeType.ETHOS_U55_INT8: "ethos-u55-128",
    ArmRecipeType.ETHOS_U65_INT8: "ethos-u65-256",
    ArmRecipeType.ETHOS_U85_INT8: "ethos-u85-256",
}
_OTHERS: Mapping[RecipeType, Callable[[], tuple[ArmCompileSpec, Partitioner]]] = {
    ArmRecipeType.TOSA_FP: lambda: _use_tosa("TOSA-1.0+FP"),
    ArmRecipeType.TOSA_INT8: lambda: _use_tosa("TOSA-1.0+INT"),
    ArmRecipeType.TOSA_A16W8: lambda: _use_tosa("TOSA-1.0+INT+int16"),
    ArmRecipeType.VGF_FP: lambda: _use_vgf(),
    ArmRecipeType.VGF_INT8: lambda: _use_vgf(),
}
#: What the recipes that quantize quantize to.
_CONFIGS: Mapping[RecipeType, Callable[[], QuantizationConfig]] = {
    **dict.fromkeys((*_ETHOS, ArmRecipeType.TOSA_INT8, ArmRecipeType.VGF_INT8), get_symmetric_quantization_config),
    ArmRecipeType.TOSA_A16W8: get_symmetric_a16w8_quantization_config,
}


def _use_tosa(specification: str) -> tuple[ArmCompileSpec, Partitioner]:
    spec = TosaCompileSpec(specification)
    return spec, TOSAPartitioner(spec)


def _use_vgf() -> tuple[ArmCompileSpec, Partitioner]:
    spec = VgfCompileSpec()
    return spec, VgfPartitioner(spec)


class ArmRecipeProvider(BackendRecipeProvider):
    """Makes the recipes. Those of an Ethos-U take the arguments of EthosUCompileSpec, such as `target`."""

    @property
    def backend_name(self) -> str:
        return _BACKEND

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        return list(ArmRecipeType)

    def create_recipe(self, recipe_type: RecipeType, **kwargs: Any) -> ExportRecipe | None:
        if recipe_type in _ETHOS:
            options: dict[str, Any] = {"target": _ETHOS[recipe_type], **kwargs}
            spec: ArmCompileSpec = EthosUCompileSpec(**options)
            _check_family(spec, _ETHOS[recipe_type])
            partitioner: Partitioner = EthosUPartitioner(coerce(spec, EthosUCompileSpec))
        elif recipe_type in _OTHERS:
            if kwargs:
                raise Invalid(f"recipe `{recipe_type.value}` takes no arguments, but got {', '.join(kwargs)}")
            spec, partitioner = _OTHERS[recipe_type]()
        else:
            return None
        config = _CONFIGS.get(recipe_type)
        quantizers: list[Quantizer] = [] if config is None else [TOSAQuantizer(spec).set_global(config())]
        return ExportRecipe(
            name=recipe_type.value,
            quantization_recipe=QuantizationRecipe(quantizers=quantizers) if quantizers else None,
            lowering_recipe=LoweringRecipe(partitioners=[partitioner]),
        )


def _check_family(spec: ArmCompileSpec, default: str) -> None:
    family = default.rpartition("-")[0]
    if not spec.target.name.startswith(family):
        raise Invalid(f"the recipe is for {family}, not for `{spec.target}`", fix=f"use a target such as `{default}`")


recipe_registry.register_backend_recipe_provider(ArmRecipeProvider())
