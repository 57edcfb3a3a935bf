"""`tosaic run`: outputs in a file, and what is refused before anything runs."""

from pathlib import Path

import numpy as np

from support.cli import Command, Outcome


def test_outputs_are_saved(tosaic: Command, floats: tuple[Path, Outcome], tmp_path: Path) -> None:
    output = tmp_path / "out.npz"
    output.write_bytes(b"an older one")
    assert tosaic("run", floats[0], "-o", output).code == 0
    with np.load(output) as saved:
        assert {name: saved[name].shape for name in saved.files} == {
            "output_0": (1, 8, 6, 6),
            "output_1": (1, 8, 6, 6),
        }
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_results_are_short_and_the_log_is_on_request(tosaic: Command, floats: tuple[Path, Outcome]) -> None:
    done = tosaic("run", floats[0], "--values", "3", env={"COLUMNS": "400"})
    assert done.code == 0, done.stderr
    assert "the inputs are ones" in done.stderr
    first, cycles, kernels, *outputs = done.stdout.splitlines()
    assert first == f"`{floats[0].name}` for ethos-u55-128, method `forward`, engine npu"
    assert cycles.startswith("NPU cycles") and cycles.endswith("an estimate")
    assert "`aten::sort.values` x1" in kernels
    assert outputs[0] == "output 0  float32 [1, 8, 6, 6]" and "and 285 more values" in outputs[1]
    assert "Model executed successfully." in tosaic("run", floats[0], "--log").stdout


def test_what_cannot_be_saved_is_not_run(tosaic: Command, floats: tuple[Path, Outcome], tmp_path: Path) -> None:
    done = tosaic("run", floats[0], "-o", tmp_path / "out.txt")
    assert done.code == 2 and done.stdout == ""
    assert "outputs are saved as .npz, not as `out.txt`" in done.stderr


def test_one_of_several_methods(tosaic: Command, tmp_path: Path) -> None:
    """Through the ExecuTorch API a file may have several, and none that is called `forward`."""
    import torch
    from executorch.exir import to_edge

    class Times(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    methods = {"twice": 2.0, "thrice": 3.0}
    programs = {name: torch.export.export(Times(factor), (torch.ones(2),)) for name, factor in methods.items()}
    file = tmp_path / "methods.pte"
    file.write_bytes(to_edge(programs).to_executorch().buffer)
    for name, factor in methods.items():
        done = tosaic("run", file, "--method", name, "--log")
        assert done.code == 0
        assert f"Running method {name}" in done.stdout
        assert f"Output[0][1]: (float) {factor:.6f}" in done.stdout
    done = tosaic("run", file)
    assert done.code == 2
    assert "the .pte file has no method `forward`" in done.stderr
    assert "`thrice`, `twice`" in done.stderr and "`--method`" in done.stderr
