"""How training scales with the number of GPUs, as SVG: the GPU time per token, divided by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .chart import LEFT, Chart
from .elements import element, label, tooltip

STEP, BAR, RIGHT = 84.0, 54.0, 230.0
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
"""The color and the label of each part of a bar, from the bottom up."""


@dataclass(frozen=True, slots=True)
class ScaleBar:
    """The bar for one number of GPUs.

    ``tokens``: tokens per second and GPU. ``parts``: microseconds of a GPU per token, by cause
    (:data:`PARTS`); empty if no plan fits in memory.
    """

    gpus: int
    tokens: float
    parts: Mapping[str, float]


def scaling_svg(title: str, bars: Sequence[ScaleBar]) -> str:
    """The text of an SVG file with a bar for each number of GPUs.

    The height of a bar is the GPU time per token.
    """
    most = max((sum(bar.parts.values()) for bar in bars), default=0.0) or 1.0
    columns = max(3, len(bars))
    axes = (0.0, float(columns)), (0.0, most * 1.08)
    words = "GPU microseconds a token; above the bars tokens/s/GPU"
    chart = Chart(title, words, *axes, width=LEFT + STEP * columns + RIGHT, right=RIGHT)
    chart.grid("GPU microseconds a token", "{:g}".format)
    chart.columns("GPUs", ((at + 0.5, str(bar.gpus)) for at, bar in enumerate(bars)))
    for at, bar in enumerate(bars):
        _draw_bar(chart, chart.x(at + 0.5), bar)
    for part, (colour, meaning) in reversed(PARTS.items()):
        if any(bar.parts.get(part, 0.0) > 0 for bar in bars):
            square = {"x": -6, "y": -6, "width": 12, "height": 12}
            chart.entry(meaning, element("rect", **square, fill=colour))
    return chart.svg()


def _draw_bar(chart: Chart, middle: float, bar: ScaleBar) -> None:
    total = 0.0
    for part, (colour, meaning) in PARTS.items():
        value = bar.parts.get(part, 0.0)
        if value > 0:
            bottom, total = chart.y(total), total + value
            top = chart.y(total)
            place = {"x": middle - BAR / 2, "y": top, "width": BAR, "height": bottom - top}
            tip = tooltip(f"{bar.gpus} GPUs, {meaning}: {value:.4g} us")
            chart.content.append(element("rect", tip, **place, fill=colour))
    words = f"{bar.tokens:.{0 if bar.tokens >= 100 else 3}f}" if bar.parts else "no plan"
    above = chart.y(total) - 6
    chart.content.append(label(words, middle, above, text_anchor="middle"))
