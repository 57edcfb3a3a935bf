"""Bars of ours over the peer's, as SVG: a line at 1 is the peer."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from figures import ONE_OPERATOR, divide, group

BAR, GAP, LEFT, WIDTH, TOP = 13, 8, 170, 460, 46
COLORS = ("#2f6f9f", "#e0893b")


def draw(report: Mapping[str, Any], figure: str, column: str, title: str) -> str:
    """One group of bars per model, one bar per target; cycles are left out where the peer computes on the CPU."""
    found: dict[str, dict[str, float]] = {}
    targets = list(dict.fromkeys(row["target"] for row in report["rows"]))
    for (model, target), columns in group(report["rows"]).items():
        peer = columns["peer"]["figures"]
        ratio = divide(columns[column]["figures"][figure], peer[figure])
        if model not in ONE_OPERATOR and ratio is not None and not ("cycles" in figure and peer["cpu_compute"]):
            found.setdefault(model, {})[target] = ratio
    step = BAR * len(targets) + GAP
    height = TOP + step * len(found) + 24
    scale = WIDTH / max([1.1, *(r for bars in found.values() for r in bars.values())])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="18" font-size="14">{html.escape(title)}</text>',
    ]
    for index, target in enumerate(targets):
        x = LEFT + 150 * index
        parts.append(f'<rect x="{x}" y="27" width="10" height="10" fill="{COLORS[index % 2]}"/>')
        parts.append(f'<text x="{x + 15}" y="36">{html.escape(target)}</text>')
    for place, (model, bars) in enumerate(found.items()):
        y = TOP + place * step
        parts.append(f'<text x="{LEFT - 8}" y="{y + step / 2}" text-anchor="end">{html.escape(model)}</text>')
        for index, target in enumerate(targets):
            if target in bars:
                wide, at = bars[target] * scale, y + index * BAR
                parts.append(
                    f'<rect x="{LEFT}" y="{at}" width="{wide:.1f}" height="{BAR - 2}" fill="{COLORS[index % 2]}"/>'
                )
                parts.append(f'<text x="{LEFT + wide + 4:.1f}" y="{at + 10}" font-size="10">{bars[target]:.2f}</text>')
    line = LEFT + scale
    parts.append(f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{TOP - 4}" y2="{height - 20}" stroke="black"/>')
    parts.append(f'<text x="{line:.1f}" y="{height - 6}" text-anchor="middle">the peer</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
