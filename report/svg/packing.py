"""A packing: a bar a microbatch, as long as it keeps the busiest rank, cut into its sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeloom.ir.units import duration

from .elements import FAINT, MUTED, PAPER, STYLE, document, element, label, number, ticks

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960.0, 84.0, 150.0, 92.0, 48.0
ROW, BAR, BETWEEN = 20.0, 15.0, 24.0
SHORT, LONG = (0xC9, 0xDD, 0xF4), (0x1D, 0x4E, 0x89)
"""The colours of the shortest and the longest sequence."""


def packing_svg(packing: Mapping[str, Any]) -> str:
    """An SVG file of a packing's JSON object: microbatches under each other, replica by replica, in
    the colour of each sequence's length."""
    replicas = packing["replicas"]
    rows = sum(len(one["microbatches"]) for one in replicas)
    height = TOP + rows * ROW + (len(replicas) - 1) * BETWEEN + BOTTOM
    longest = max((max(one["busiest_ms"], default=0.0) for one in replicas), default=0.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / (longest * 1.02)
    cost, bound = duration(packing["cost"]), duration(packing["lower_bound"])
    title = f"{len(packing['lengths'])} sequences in {rows} microbatches: {cost} a step"
    words = f"ms of the busiest rank by microbatch; no packing takes less than {bound} a step"
    content = [label(title, 24, 32, class_="title"), label(words, 24, 54, fill=MUTED)]
    for value in ticks(longest * 1.02, 8):
        x = LEFT + value * scale
        path = f"M{number(x)} {number(TOP - 6)}V{number(height - BOTTOM)}"
        content.append(element("path", d=path, stroke=FAINT, fill="none"))
        content.append(label(f"{value:g}", x, TOP - 12, class_="muted", text_anchor="middle"))
    top = TOP
    for r, one in enumerate(replicas):
        name = f"replica {r}, " if len(replicas) > 1 else ""
        for j, (sequences, wide) in enumerate(
            zip(one["microbatches"], one["busiest_ms"], strict=True)
        ):
            words = f"{name}{j}" if j == 0 and name else str(j)
            content.append(label(words, LEFT - 8, top + BAR - 3, text_anchor="end"))
            content += _bar(sequences, packing["lengths"], top, wide * scale)
            top += ROW
        top += BETWEEN
    words = "each bar is cut in proportion to tokens, the darker the longer the sequence"
    content.append(label(words, LEFT, height - 18, fill=MUTED))
    return document(WIDTH, height, STYLE, content, title)


def _bar(sequences: Sequence[int], lengths: Sequence[int], top: float, wide: float) -> list[str]:
    tokens = sum(lengths[i] for i in sequences) or 1
    marks, x = [], LEFT
    for i in sorted(sequences, key=lambda i: -lengths[i]):
        part = wide * lengths[i] / tokens
        tip = f"<title>sequence {i}: {lengths[i]} tokens</title>"
        fill = _colour(lengths[i] / max(lengths))
        size = {"width": part, "height": BAR}
        marks.append(element("rect", tip, x=x, y=top, fill=fill, stroke=PAPER, **size))
        x += part
    words = f"{len(sequences)}: {tokens} tokens"
    return [*marks, label(words, x + 8, top + BAR - 3, fill=MUTED)]


def _colour(share: float) -> str:
    parts = (round(a + (b - a) * share) for a, b in zip(SHORT, LONG, strict=True))
    return "#{:02x}{:02x}{:02x}".format(*parts)
