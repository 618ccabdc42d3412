"""SVG elements as text, and the ticks of axes."""

from __future__ import annotations

import math
from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
INK, MUTED, FAINT, PAPER = "#1d2733", "#66727f", "#d5dbe2", "#ffffff"
STYLE = f"""
text {{ font-size: 12px; }}
.title {{ font-size: 17px; font-weight: 600; }}
.muted {{ fill: {MUTED}; }}
.value {{ text-anchor: middle; stroke: {PAPER}; stroke-width: 3px; paint-order: stroke; }}
"""
"""The CSS of a chart's title, labels and muted text."""


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(name: str, content: str = "", **attributes: str | float | None) -> str:
    """An SVG element. ``content`` is markup; underscores in attribute names become hyphens."""
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{text}>{content}</{name}>" if content else f"<{name}{text}/>"


def _text(value: str | float) -> str:
    return number(value) if isinstance(value, int | float) else escape(value)


def label(text: str, x: float, y: float, **attributes: str | float | None) -> str:
    """A text element with its base line at ``y``."""
    return element("text", escape(text), x=x, y=y, **attributes)


def document(width: float, height: float, style: str, content: list[str], title: str) -> str:
    """A complete SVG file with a white background."""
    body = "\n".join(
        [
            element("title", escape(title)),
            element("style", style),
            element("rect", width=width, height=height, fill=PAPER),
            *content,
        ]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" '
        f'height="{number(height)}" '
        f'viewBox="0 0 {number(width)} {number(height)}" font-family="{FONT}" fill="{INK}">\n'
        f"{body}\n</svg>\n"
    )


def ticks(end: float, about: int) -> list[float]:
    """Round numbers from 0 to ``end``, approximately ``about`` of them."""
    if end <= 0:
        return [0.0]
    raw = end / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    return [i * step for i in range(int(end / step + 1e-9) + 1)]
