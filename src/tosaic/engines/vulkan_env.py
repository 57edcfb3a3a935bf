"""The Vulkan environment: loader, driver and the two emulation layers, found and put in the right order.

The emulation layers give any Vulkan 1.3 driver the extensions VK_ARM_tensors and VK_ARM_data_graph. The Graph layer
must sit above the Tensor layer. Older loaders stack layers in the order in which they find the manifests, whatever
VK_INSTANCE_LAYERS says, so each manifest gets a separate folder.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tosaic.core.errors import ToolFailed
from tosaic.core.paths import find_cache_folder

#: `auto` (the default), `keep` (use the VK_* variables as they are) or `off` (as if there were no Vulkan).
MODE_VARIABLE = "TOSAIC_VULKAN"
#: part of the name of the device to use
DEVICE_VARIABLE = "TOSAIC_VULKAN_DEVICE"
INSTALL = "tosaic doctor --fix vgf, or make setup-vgf in a checkout"

Driver: TypeAlias = Literal["emulated", "native", "kept"]

_LAYERS = ("Graph", "Tensor")
#: The newer name of a variable comes before its older one.
_DRIVER_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_MANIFEST_FOLDERS = ("/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d")
_SOFTWARE = "lvp_"
#: Mesa's drivers by the prefix of their manifests: none of them has Arm's extensions built in.
_MESA = (
    _SOFTWARE,
    "intel_",
    "radeon_",
    "nouveau_",
    "virtio_",
    "gfxstream_",
    "dzn_",
    "asahi_",
    "freedreno_",
    "broadcom_",
)


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that were found.

    libraries  folders of unpacked libraries
    driver     the manifest of the driver to emulate on
    layers     the folder of the emulation layers
    others     drivers that may have Arm's extensions built in
    drivers    all drivers to choose from
    """

    libraries: tuple[Path, ...]
    driver: Path | None
    layers: Path | None
    others: tuple[Path, ...]
    drivers: tuple[Path, ...] = ()

    @property
    def has_software(self) -> bool:
        """Whether the software driver (lavapipe) is there."""
        return any(driver.name.startswith(_SOFTWARE) for driver in self.drivers)


class NoVulkan(ToolFailed):
    """This machine has no Vulkan that can run a .vgf file; `why` and `fix` say what is missing."""

    def __init__(self, why: str, fix: str, log: str = "") -> None:
        super().__init__("Vulkan is not usable here", why=why, fix=fix, log=log)


def mode() -> str:
    """Return the user's choice in TOSAIC_VULKAN."""
    return os.environ.get(MODE_VARIABLE, "") or "auto"


def chosen_by() -> str:
    """Return the variable with which the user chose a driver, empty if there is none."""
    return next((name for name in _DRIVER_VARIABLES if os.environ.get(name)), "")


def unpacked() -> Path:
    """Return the folder into which `tosaic doctor --fix vgf` unpacks Debian's packages when it may not install them."""
    return find_cache_folder() / "vulkan"


def find() -> Parts:
    """Find the parts; raise NoVulkan if one is missing that has no replacement."""
    if mode() == "off":
        raise NoVulkan(f"`{MODE_VARIABLE}=off` hides it", f"unset `{MODE_VARIABLE}`")
    own = tuple(path for form in ("usr/lib/*-linux-*", "lib/*-linux-*") for path in sorted(unpacked().glob(form)))
    if not _loads("libvulkan.so.1") and not any((folder / "libvulkan.so.1").exists() for folder in own):
        raise NoVulkan("the loader `libvulkan.so.1` is not installed", INSTALL)
    if mode() == "keep":
        return Parts(own, None, None, ())
    name = chosen_by()
    chosen = os.environ.get(name, "")
    manifests = [Path(p) for p in chosen.split(os.pathsep)] if chosen else _list_manifests()
    present = [p for p in manifests if p.is_file()]
    if not present:
        if name:
            raise NoVulkan(f"`{name}={chosen}` names no file", f"unset `{name}`, or name a driver's manifest")
        raise NoVulkan("there is no Vulkan driver (no manifest in icd.d)", INSTALL)
    if chosen:
        return Parts(own, present[0], _find_layers(), (), (present[0],))
    # The software driver until another one has shown that it has a device.
    driver = next((p for p in present if p.name.startswith(_SOFTWARE)), present[0])
    others = tuple(p for p in present if not p.name.startswith(_MESA))
    return Parts(own, driver, _find_layers(), others, tuple(present))


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _list_manifests() -> list[Path]:
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "vulkan/icd.d"
    folders = [Path(f) for f in _MANIFEST_FOLDERS] + [home, unpacked() / "usr/share/vulkan/icd.d"]
    return [path for folder in folders for path in sorted(folder.glob("*.json"))]


def _find_layers() -> Path | None:
    """Find the folder of the emulation layer's package."""
    spec = importlib.util.find_spec("emulation_layer")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    return next((Path(f) / "deploy" for f in folders if (Path(f) / "deploy/lib").is_dir()), None)


def require_emulation(parts: Parts) -> None:
    """Raise NoVulkan if the driver must be emulated and the layers for that are missing."""
    if parts.layers is None:
        raise NoVulkan("the ML emulation layer is not installed", INSTALL)


def emulate(parts: Parts, folder: Path) -> dict[str, str]:
    """Write the manifests into `folder`; return the variables that make the loader use them."""
    require_emulation(parts)
    assert parts.layers is not None and parts.driver is not None
    places: list[str] = []
    for position, name in enumerate(_LAYERS):
        file = f"VkLayer_{name}.json"
        manifest = json.loads((parts.layers / "share/vulkan/explicit_layer.d" / file).read_text(encoding="utf-8"))
        manifest["layer"]["library_path"] = str(parts.layers / f"lib/libVkLayer_{name}.so")
        place = folder / "layers" / f"{position}"
        place.mkdir(parents=True, exist_ok=True)
        (place / file).write_text(json.dumps(manifest), encoding="utf-8")
        places.append(str(place))
    return {
        "VK_LAYER_PATH": os.pathsep.join(places),
        "VK_INSTANCE_LAYERS": os.pathsep.join(f"VK_LAYER_ML_{name}_Emulation" for name in _LAYERS),
        **use_drivers(parts, folder, [parts.driver]),
    }


def use_drivers(parts: Parts, folder: Path, drivers: Sequence[Path]) -> dict[str, str]:
    """Return the variables that make the loader use these drivers and no others; `folder` is for manifests."""
    places = os.pathsep.join(str(_relocate(driver, folder)) for driver in drivers)
    return {**dict.fromkeys(_DRIVER_VARIABLES, places), **_search_path(parts)}


def keep(parts: Parts) -> Mapping[str, str]:
    """Return the variables for a driver that has the extensions itself, or that the user has set up."""
    return _search_path(parts)


def _search_path(parts: Parts) -> dict[str, str]:
    if not parts.libraries:
        return {}
    before = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (*map(str, parts.libraries), before)))}


def _relocate(manifest: Path, folder: Path) -> Path:
    """Rewrite a manifest of an unpacked package, which names the path where the package would have been installed."""
    root = unpacked()
    if not manifest.is_relative_to(root):
        return manifest
    content = json.loads(manifest.read_text(encoding="utf-8"))
    library = Path(content["ICD"]["library_path"])
    found = next(iter(sorted(root.glob(f"usr/lib/*/{library.name}"))), library)
    content["ICD"]["library_path"] = str(found)
    copy = folder / manifest.name
    copy.write_text(json.dumps(content), encoding="utf-8")
    return copy
