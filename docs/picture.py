"""Draw docs/images/terminal.svg: real commands and what they print, as a terminal shows it.

python docs/picture.py
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tosaic.core.output import write_files

PICTURE = Path(__file__).parent / "images" / "terminal.svg"
COMMANDS = (
    "tosaic compile ds_cnn -t ethos-u55-128 --io int8 --layout nhwc",
    "tosaic verify ds_cnn.pte",
)
PROMPT = "$ "
_LINE, _LEFT, _TOP, _WIDTH = 19, 20, 36, 760


def run() -> list[str]:
    """Run the commands in an empty folder; return the lines of the terminal."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "88",
        "NO_COLOR": "1",
    }
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            done = subprocess.run(
                command.split(), cwd=folder, env=environment, capture_output=True, text=True, check=True
            )
            lines += [f"{PROMPT}{command}", *done.stdout.rstrip().splitlines(), ""]
    return lines[:-1]


def draw(lines: list[str]) -> str:
    height = _TOP + _LINE * len(lines) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">',
        f"<title>{html.escape(' and '.join(COMMANDS))}</title>",
        '<rect width="100%" height="100%" rx="8" fill="#12171e"/>',
        *(f'<circle cx="{x}" cy="16" r="5" fill="#2f3946"/>' for x in (22, 40, 58)),
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" fill="#e4e9f0">',
    ]
    for number, line in enumerate(lines):
        color = "#6db3ff" if line.startswith(PROMPT) else "#5fd396" if line.startswith("PASS") else ""
        fill = f' fill="{color}"' if color else ""
        y = _TOP + _LINE * (number + 1) - 6
        parts.append(f'<text x="{_LEFT}" y="{y}" xml:space="preserve"{fill}>{html.escape(line)}</text>')
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


if __name__ == "__main__":
    write_files({PICTURE: draw(run()).encode()})
