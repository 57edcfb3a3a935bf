"""The Vulkan devices of an environment, and the features that they lack; asked in a process that a driver may end.

The runtime opens a device regardless of its features, and a driver without small integers then crashes.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tosaic.tools.process import ToolTimedOut, run_tool

_SECONDS = 60.0
_VERSION_1_3 = (1 << 22) | (3 << 12)
_KIND_OFFSET, _NAME_OFFSET, _NAME_SIZE = 16, 20, 256
_MOST_DEVICES = 64
CPU = "CPU"
#: by Vulkan's number
KINDS = ("other", "integrated GPU", "discrete GPU", "virtual GPU", CPU)
_PROPERTIES_SIZE = 2048

#: Feature structures: their number in Vulkan, how many flags they have, and the position of the required ones.
_FEATURES: Mapping[int, tuple[int, Mapping[str, int]]] = {
    1000059000: (55, {"shaderInt64": 40, "shaderInt16": 41}),
    49: (12, {"storageBuffer16BitAccess": 0}),
    51: (47, {"storageBuffer8BitAccess": 2, "shaderInt8": 8, "vulkanMemoryModel": 41}),
    53: (15, {"synchronization2": 9, "maintenance4": 14}),
}


class _Application(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32),
        ("engine", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    )


class _Instance(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.POINTER(_Application)),
        ("layers", ctypes.c_uint32),
        ("layer_names", ctypes.c_void_p),
        ("extensions", ctypes.c_uint32),
        ("extension_names", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Device:
    """A device by its name and kind, and why it cannot run a .vgf file; empty if no problem is known."""

    name: str
    kind: str
    trouble: str = ""


def ask(environment: Mapping[str, str]) -> tuple[list[Device], str]:
    """List the devices of an environment, and why its first one cannot run a .vgf file; empty if nothing is known."""
    arguments = [sys.executable, "-m", "tosaic.engines.vulkan_device"]
    try:
        done = run_tool("the driver", arguments, timeout=_SECONDS, environment=environment, keep_errors_apart=True)
    except ToolTimedOut:
        return [], f"the driver did not answer within {_SECONDS:g} s"
    if done.signal:
        return [], f"the driver crashed with {done.signal} when asked for its devices"
    if done.code:
        return [], ""
    answer = json.loads(done.output)
    devices = [Device(**device) for device in answer["devices"]]
    return devices, answer["trouble"] or next((device.trouble for device in devices), "")


def _list_devices() -> tuple[list[Device], str]:
    """List the devices of this process's Vulkan, or say why there are none."""
    loader = ctypes.CDLL("libvulkan.so.1")
    application = _Application(api_version=_VERSION_1_3)
    instance, count = ctypes.c_void_p(), ctypes.c_uint32(_MOST_DEVICES)
    devices = (ctypes.c_void_p * _MOST_DEVICES)()
    code = loader.vkCreateInstance(
        ctypes.byref(_Instance(kind=1, application=ctypes.pointer(application))), None, ctypes.byref(instance)
    )
    if code < 0:
        return [], f"the driver cannot be opened (error {code} of vkCreateInstance)"
    if loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices) < 0 or not count.value:
        return [], "the driver has no device"
    return [_describe(loader, ctypes.c_void_p(device)) for device in devices[: count.value]], ""


def _describe(loader: ctypes.CDLL, device: ctypes.c_void_p) -> Device:
    properties = ctypes.create_string_buffer(_PROPERTIES_SIZE)
    loader.vkGetPhysicalDeviceProperties(device, properties)
    name = properties.raw[_NAME_OFFSET : _NAME_OFFSET + _NAME_SIZE].partition(b"\0")[0].decode("utf-8", "replace")
    version, number = (int.from_bytes(properties.raw[at : at + 4], "little") for at in (0, _KIND_OFFSET))
    kind = KINDS[number] if number < len(KINDS) else KINDS[0]
    if version < _VERSION_1_3:
        has = f"{version >> 22}.{version >> 12 & 1023}"
        return Device(name, kind, f"the device `{name}` has Vulkan {has}, and 1.3 is needed")
    lacking = _list_lacking(loader, device)
    return Device(name, kind, f"the device `{name}` has no {', '.join(lacking)}" if lacking else "")


def _list_lacking(loader: ctypes.CDLL, device: ctypes.c_void_p) -> list[str]:
    """List the required features that a device lacks: all feature structures, linked, in one query."""
    blocks: list[ctypes.Array[ctypes.c_uint32]] = []
    for kind, (count, _) in reversed([*_FEATURES.items()]):
        # Number, padding and the pointer to the next structure come first.
        block = (ctypes.c_uint32 * (4 + count))()
        block[0] = kind
        following = ctypes.addressof(blocks[-1]) if blocks else 0
        block[2], block[3] = following & 0xFFFFFFFF, following >> 32
        blocks.append(block)
    loader.vkGetPhysicalDeviceFeatures2(device, blocks[-1])
    pairs = zip(_FEATURES.values(), reversed(blocks), strict=True)
    return [name for (_, wanted), block in pairs for name, place in wanted.items() if not block[4 + place]]


if __name__ == "__main__":
    found, why = _list_devices()
    sys.stdout.write(json.dumps({"devices": [asdict(device) for device in found], "trouble": why}))
