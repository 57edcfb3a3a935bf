"""Chooses the Vulkan driver to emulate on, by the devices that the drivers have."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tosaic.engines import vulkan_device, vulkan_env
from tosaic.engines.vulkan_device import CPU, Device
from tosaic.engines.vulkan_env import DEVICE_VARIABLE, NoVulkan, Parts

#: from the fastest to the slowest
_ORDER = ("discrete GPU", "integrated GPU", "virtual GPU", "other", CPU)


def choose_driver(parts: Parts, folder: Path) -> Parts:
    """Return the parts with the driver whose device is the fastest, or the one that the user names.

    ExecuTorch takes the first device of a driver. A driver that crashes, has no device or lacks a feature is passed
    over; `folder` is for rewritten manifests.
    """
    wanted = os.environ.get(DEVICE_VARIABLE, "")
    if not wanted and (len(parts.drivers) < 2 or not _has_gpu(parts, folder)):
        return parts
    found = [(driver, device) for driver in parts.drivers for device in _ask(parts, folder, driver)[:1]]
    if wanted:
        named = [driver for driver, device in found if wanted.lower() in device.name.lower()]
        if not named:
            names = ", ".join(f"`{device.name}`" for _, device in found) or "none"
            raise NoVulkan(f"there is no device `{wanted}`", f"choose one of these: {names}")
        return replace(parts, driver=named[0])
    usable = [(driver, device) for driver, device in found if not device.trouble]
    best = min(usable, key=lambda pair: _ORDER.index(pair[1].kind), default=None)
    return parts if best is None else replace(parts, driver=best[0])


def _has_gpu(parts: Parts, folder: Path) -> bool:
    """Tell whether a driver may have a GPU. All are asked at once; where one crashes, it may be a GPU's."""
    devices = _ask(parts, folder, *parts.drivers)
    return not devices or any(device.kind != CPU for device in devices)


def _ask(parts: Parts, folder: Path, *drivers: Path) -> list[Device]:
    return vulkan_device.ask({**os.environ, **vulkan_env.use_drivers(parts, folder, drivers)})[0]
