"""The tester for users, the recipes of executorch.export, and the example that uses the tester."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from executorch.export import ExportRecipe, export

from tosaic.core.errors import Invalid
from tosaic.engines.engine import ENGINES
from tosaic.engines.engine import run as run_pte
from tosaic.recipes import ArmRecipeType
from tosaic.testing import FLAVORS, Tester

ROOT = Path(__file__).parents[2]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


def make_inputs() -> tuple[torch.Tensor]:
    return (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_flavors(flavor: str) -> None:
    if flavor.startswith("vgf") and (obstacle := ENGINES["vulkan"].find_obstacle()):
        pytest.skip(f"{obstacle}; `make setup-vgf` installs it")
    program = Tester(Net().eval(), make_inputs()).check(flavor)
    assert len(program.delegates) == 1


@pytest.mark.parametrize(("old", "new"), [("tosa_MI", "tosa_FP"), ("tosa_BI", "tosa_INT"), ("U55_BI", "u55_INT")])
def test_old_names_answer_with_the_new_ones(old: str, new: str) -> None:
    with pytest.raises(Invalid, match=f"unknown flavor `{old}`") as caught:
        Tester(Net().eval(), make_inputs()).check(old)
    assert f"`{new}`" in caught.value.fix


class Dropped(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(torch.relu(x), 0.0, True)[0]


def test_fallbacks_are_failures_unless_allowed() -> None:
    tester = Tester(Dropped().eval(), make_inputs())
    with pytest.raises(AssertionError, match=r"aten\.native_dropout"):
        tester.check("u55_INT")
    tester.check("u55_INT", fallbacks=["aten.native_dropout.default"])


def test_the_number_of_delegates_is_checked() -> None:
    with pytest.raises(AssertionError, match="1 delegates instead of 2"):
        Tester(Net().eval(), make_inputs()).check("tosa_INT", delegates=2)


@pytest.mark.parametrize("recipe", [ArmRecipeType.ETHOS_U55_INT8, ArmRecipeType.ETHOS_U85_INT8, ArmRecipeType.TOSA_FP])
def test_recipes(recipe: ArmRecipeType) -> None:
    model, inputs = Net().eval(), make_inputs()
    session = export(model, [inputs], ExportRecipe.get_recipe(recipe))
    outputs = run_pte(session.get_executorch_program_manager().buffer, [x.numpy() for x in inputs]).outputs
    wanted = model(*inputs).detach()
    assert abs(torch.from_numpy(outputs[0]) - wanted).max() < 0.02 * wanted.max()


def test_recipes_take_options_of_their_target_only() -> None:
    ExportRecipe.get_recipe(ArmRecipeType.ETHOS_U85_INT8, target="ethos-u85-1024")
    with pytest.raises(Invalid, match="for ethos-u55"):
        ExportRecipe.get_recipe(ArmRecipeType.ETHOS_U55_INT8, target="ethos-u85-256")
    with pytest.raises(Invalid, match="takes no arguments"):
        ExportRecipe.get_recipe(ArmRecipeType.TOSA_FP, target="ethos-u85-256")


def test_the_example_runs(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples" / "arm_tosa_e2e.py"), "add"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["add", "tosa_FP"], ["add", "tosa_INT"]]
    assert len(list((tmp_path / "out" / "arm_tosa_e2e").glob("*.tosa"))) == 2
