"""Installs what the engine vulkan needs: Debian's Vulkan loader and software driver, with root or without.

With root the packages are installed. Without, they and their missing dependencies are unpacked into
Tosaic's cache folder (`TOSAIC_CACHE`), where `vulkan_env` looks for them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tosaic.core.errors import ToolFailed
from tosaic.engines import vulkan, vulkan_env
from tosaic.tools.process import run_tool

PACKAGES = ("libvulkan1", "mesa-vulkan-drivers")
_INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", *PACKAGES)

Announce = Callable[[str], None]


def plan() -> list[str]:
    """Return the commands that `install` would run; none if Vulkan is usable or lacks no package."""
    if vulkan.probe().ok or not _needs_packages():
        return []
    if shutil.which("apt-get") is None:
        raise ToolFailed(
            "apt-get, which installs the Vulkan driver, is missing",
            fix="install the Vulkan loader and Mesa's software driver (lavapipe) with your package manager",
        )
    if os.geteuid() == 0:
        return [f"{shlex.join(_INSTALL)}, after `apt-get update` if that fails"]
    packages = " ".join(PACKAGES)
    return [
        f"apt-get download {packages} and their dependencies, with separate package lists",
        f"dpkg-deb -x of each into {vulkan_env.unpacked()}; nothing is installed in the system",
    ]


def install(announce: Announce) -> vulkan.Probe:
    """Install or unpack what `plan` lists; return the probe's answer afterwards."""
    found = vulkan.probe()
    if found.ok:
        announce("Vulkan is usable already")
        return found
    announce(f"Vulkan is not usable: {found.reason}")
    if plan():
        if os.geteuid() == 0:
            install_with_root(announce)
        else:
            unpack_without_root(announce)
    vulkan.probe.cache_clear()
    return vulkan.probe()


def _needs_packages() -> bool:
    try:
        return not vulkan_env.chosen_by() and not vulkan_env.find().has_software
    except vulkan_env.NoVulkan:
        return vulkan_env.mode() != "off"


def install_with_root(announce: Announce) -> None:
    """Run apt-get install; update the package lists and retry if the first try fails."""
    announce(f"installing {', '.join(PACKAGES)}")
    command = list(_INSTALL)
    try:
        execute(command)
    except ToolFailed:
        announce("updating the package lists")
        execute(["apt-get", "update"])
        execute(command)


def unpack_without_root(announce: Announce) -> Path:
    """Download the packages that are not installed and unpack them; return the folder."""
    target = vulkan_env.unpacked()
    state = target.parent / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    # Separate lists and downloads: those of the system belong to root, and may be empty.
    places = {"Dir::State::Lists": state / "lists", "Dir::Cache": state / "cache", "Debug::NoLocking": "1"}
    options = [part for name, value in places.items() for part in ("-o", f"{name}={value}")]
    announce("reading the package lists")
    execute(["apt-get", *options, "update"])
    kinds = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    needed = execute(["apt-cache", *options, "depends", "--recurse", *kinds, *PACKAGES])
    present = execute(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\\n"])
    names = list_missing(needed, present)
    announce(f"downloading {len(names)} packages into {target}")
    with tempfile.TemporaryDirectory(prefix="tosaic-") as downloads:
        execute(["apt-get", *options, "download", *names], Path(downloads))
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for package in sorted(Path(downloads).glob("*.deb")):
            execute(["dpkg-deb", "-x", str(package), str(target)])
    shutil.rmtree(state, ignore_errors=True)
    return target


def list_missing(needed: str, present: str) -> list[str]:
    """List the packages that start a paragraph of `apt-cache depends` and that dpkg has not installed."""
    installed = set(re.findall(r"^installed (\S+)$", present, re.MULTILINE))
    # A paragraph of a virtual package begins with `<`, one of another architecture has a colon.
    names = dict.fromkeys(re.findall(r"^([a-z0-9][a-z0-9+.-]+)$", needed, re.MULTILINE))
    return [name for name in names if name not in installed]


def execute(command: Sequence[str], folder: Path | None = None) -> str:
    """Return what a command prints; raise ToolFailed with its error if it fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    name = f"`{' '.join(command)}`"
    done = run_tool(name, command, folder=folder, environment=environment, keep_errors_apart=True)
    if done.code:
        errors = done.errors.splitlines()
        lines = [line for line in errors if line.startswith("E:")] or errors
        raise ToolFailed(f"{name} failed", log=done.output + done.errors, why=lines[0] if lines else "")
    return done.output
