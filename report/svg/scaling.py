"""Scaling with the number of GPUs: the time per token, by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .elements import FAINT, MUTED, STYLE, document, element, label, number, ticks

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480.0, 84.0, 230.0, 92.0, 64.0
STEP, BAR = 84.0, 54.0
PARTS = {
    "compute": ("#2f6cb3", "compute"),
    "memory": ("#7aa6d8", "recomputation"),
    "tp": ("#c98b2b", "tensor parallel messages"),
    "cp": ("#e0b25c", "context parallel messages"),
    "ep": ("#8c6bb1", "expert parallel messages"),
    "etp": ("#b79ad0", "tensor parallel, experts"),
    "links": ("#c2416b", "messages of the pipeline"),
    "uneven": ("#e58fa9", "unequal stages"),
    "bubble": ("#d5dbe2", "bubble"),
    "dp": ("#3b8f6b", "averaging over replicas"),
    "step": ("#8a97a6", "optimizer and host"),
}
"""The colour and the label of each part, from the bottom up."""


@dataclass(frozen=True, slots=True)
class ScaleBar:
    """The bar of one number of GPUs.

    ``tokens``: per second and GPU. ``parts``: the microseconds of a GPU per token, by cause; empty
    if no plan fits.
    """

    gpus: int
    tokens: float
    parts: Mapping[str, float]


def scaling_svg(title: str, bars: Sequence[ScaleBar]) -> str:
    """An SVG file with a bar for each number of GPUs; its height is the GPU time per token."""
    width = LEFT + STEP * max(3, len(bars)) + RIGHT
    most = max((sum(bar.parts.values()) for bar in bars), default=0.0) or 1.0
    scale = (HEIGHT - TOP - BOTTOM) / (most * 1.08)
    floor = HEIGHT - BOTTOM
    content = [label(title, 24, 32, class_="title")]
    words = "GPU microseconds a token; above the bars tokens/s/GPU"
    content.append(label(words, 24, 54, fill=MUTED))
    for value in ticks(most * 1.08, 6):
        y = floor - value * scale
        path = f"M{number(LEFT)} {number(y)}H{number(width - RIGHT)}"
        content.append(element("path", d=path, stroke=FAINT, fill="none"))
        content.append(label(f"{value:g}", LEFT - 10, y + 4, class_="muted", text_anchor="end"))
    for place, bar in enumerate(bars):
        content += _bar(bar, LEFT + STEP * (place + 0.5), floor, scale)
    content.append(label("GPUs", LEFT + STEP * len(bars) / 2, HEIGHT - 16, text_anchor="middle"))
    shown = [PARTS[part] for part in PARTS if any(bar.parts.get(part, 0.0) > 0 for bar in bars)]
    for line, (colour, words) in enumerate(reversed(shown)):
        x, y = width - RIGHT + 24, TOP + 20.0 * line
        content.append(element("rect", x=x, y=y - 10, width=12, height=12, fill=colour))
        content.append(label(words, x + 20, y))
    return document(width, HEIGHT, STYLE, content, title)


def _bar(bar: ScaleBar, middle: float, floor: float, scale: float) -> list[str]:
    at = {"text_anchor": "middle"}
    marks, top = [label(str(bar.gpus), middle, floor + 20, **at)], floor
    for part, (colour, meaning) in PARTS.items():
        value = bar.parts.get(part, 0.0)
        if value > 0:
            top -= value * scale
            tip = f"<title>{bar.gpus} GPUs, {meaning}: {value:.4g} us</title>"
            size = {"width": BAR, "height": value * scale}
            marks.append(element("rect", tip, x=middle - BAR / 2, y=top, fill=colour, **size))
    words = f"{bar.tokens:.{0 if bar.tokens >= 100 else 3}f}" if bar.parts else "no plan"
    return [*marks, label(words, middle, top - 6, **at)]
