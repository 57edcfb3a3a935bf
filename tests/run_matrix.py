"""The tests in every combination of releases: `make test-matrix`, or `python tests/run_matrix.py --help`.

Each combination has an environment of its own in the cache folder. The interpreters must be installed (`python3.12`, or
by pyenv). The download size is printed first, and nothing is installed without `--yes`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from tosaic.core.paths import find_cache_folder  # noqa: E402
from tosaic.core.releases import TESTED, Releases  # noqa: E402

EXTRAS = "dev,vision,board"


def find_python(version: str) -> str | None:
    """The interpreter of a version: on the path, or one of pyenv's."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(folder.glob(f"{version}.*/bin/python")))]
    return next((path for path in candidates if path and _is(path, version)), None)


def _is(python: str, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def find_folder(one: Releases) -> Path:
    return find_cache_folder() / "matrix" / f"python{one.python}-torch{one.torch}-executorch{one.executorch}"


def list_requirements(one: Releases, folder: Path) -> list[str]:
    """The arguments of `pip install`: all versions as in constraints.txt, but those of the combination."""
    kept = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.partition("==")[0] not in ("torch", "executorch")
    ]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(kept))
    packages = [f"torch=={one.torch}", f"executorch=={one.executorch}", "-e", f"{ROOT}[{EXTRAS}]"]
    return ["--no-compile", *packages, "-c", str(constraints)]


def prepare(one: Releases, python: str) -> Path:
    """Make an empty environment, and return its interpreter."""
    folder = find_folder(one)
    found = folder / "bin" / "python"
    if not found.exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    return found


def measure_download(one: Releases, python: Path) -> int:
    """How many bytes pip would download."""
    report = find_folder(one) / "report.json"
    arguments = ["install", "-q", "--dry-run", "--report", str(report), *list_requirements(one, find_folder(one))]
    subprocess.run([str(python), "-m", "pip", *arguments], check=True)
    installs: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return sum(_size(item["download_info"]["url"]) for item in installs if "archive_info" in item["download_info"])


def _size(url: str) -> int:
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as reply:
        return int(reply.headers.get("Content-Length") or 0)


def run(one: Releases, python: Path, tests: Sequence[str]) -> tuple[bool, str]:
    """Run the tests, and return whether they passed, and what pytest prints at the end."""
    log = find_folder(one) / "tests.log"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    with log.open("w") as file:
        command = [str(python), "-m", "pytest", "-q", *tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
    last = log.read_text().strip().rpartition("\n")[2].strip("= ")
    return done.returncode == 0, f"{last}   ({log})"


def ask() -> bool:
    """Ask whether to install; without a terminal the answer is no."""
    return sys.stdin.isatty() and input("install? [y/N] ").strip().lower() in ("y", "yes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="only this version of Python, e.g. 3.12")
    parser.add_argument("--executorch", action="append", help="only this release of ExecuTorch, e.g. 1.5.1")
    parser.add_argument("--yes", action="store_true", help="install without a question")
    parser.add_argument("tests", nargs="*", help="arguments of pytest instead of the quick suite")
    options = parser.parse_args()
    tests = options.tests or ["-n", "2", "-m", "not slow"]
    ready: list[tuple[Releases, Path]] = []
    for one in TESTED:
        if one.python not in (options.python or [one.python]) or one.executorch not in (
            options.executorch or [one.executorch]
        ):
            continue
        python = find_python(one.python)
        if python is None:
            print(f"{one}: skipped, there is no python{one.python}; install it, e.g. with pyenv")
            continue
        ready.append((one, prepare(one, python)))
    sizes = {one: measure_download(one, python) for one, python in ready}
    for one, size in sizes.items():
        print(f"{one}: {size / 1e6:,.0f} MB to download")
    print(f"together {sum(sizes.values()) / 1e6:,.0f} MB", flush=True)
    if any(sizes.values()) and not options.yes and not ask():
        print("nothing was installed; --yes installs without a question")
        return 1
    results: list[bool] = []
    for one, python in ready:
        requirements = list_requirements(one, find_folder(one))
        subprocess.run([str(python), "-m", "pip", "install", "-q", *requirements], check=True)
        passed, last = run(one, python, tests)
        results.append(passed)
        print(f"{one}: {last}", flush=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
