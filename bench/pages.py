"""Write the pages of docs/bench and bench/results/goals.json again from the JSON files: nothing is measured.

python bench/pages.py
"""

from __future__ import annotations

import json
from typing import Any

import accuracy
import run
import tflite
import verdicts

import vgf


def read(name: str) -> Any:
    return json.loads((verdicts.PAGES / f"{name}.json").read_text())


def main() -> None:
    run.write_pages(read("results"), verdicts.PAGES)
    accuracy.write_pages(read("accuracy"), verdicts.PAGES)
    tflite.write_pages(read("tflite"), verdicts.PAGES)
    vgf.write_pages(read("vgf"), verdicts.PAGES)


if __name__ == "__main__":
    main()
