"""SVG elements as text, and round values for axes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
INK, MUTED, FAINT, PAPER = "#1d2733", "#66727f", "#d5dbe2", "#ffffff"
STYLE = f"""
text {{ font-size: 12px; }}
.title {{ font-size: 17px; font-weight: 600; }}
.muted {{ fill: {MUTED}; }}
.value {{ text-anchor: middle; stroke: {PAPER}; stroke-width: 3px; paint-order: stroke; }}
"""
"""The CSS of titles, labels and muted text."""


def number(value: float) -> str:
    """A coordinate as text with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(name: str, content: str = "", /, **attributes: Any) -> str:
    """An SVG element as text.

    ``content`` is markup and is not escaped. In attribute names, underscores become hyphens;
    attributes with the value None are left out.
    """
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{text}>{content}</{name}>" if content else f"<{name}{text}/>"


def _text(value: str | float) -> str:
    return number(value) if isinstance(value, int | float) else escape(value)


def label(text: str, x: float, y: float, **attributes: Any) -> str:
    """A text element that starts at ``x``, with its base line at ``y``."""
    return element("text", escape(text), x=x, y=y, **attributes)


def tooltip(text: str) -> str:
    """A title element: it is shown when the pointer is over the element that contains it."""
    return element("title", escape(text))


def line(*commands: str | float, stroke: str, **attributes: Any) -> str:
    """A path that is stroked and not filled, such as ``line("M", 1, 2, "H", 5, stroke=INK)``."""
    return element("path", d=path(*commands), stroke=stroke, **attributes, fill="none")


def path(*commands: str | float) -> str:
    """The commands of a path, letters and coordinates, as the text of its attribute ``d``."""
    words = (each if isinstance(each, str) else f" {number(each)}" for each in commands)
    return re.sub("(?<=[A-Za-z]) ", "", "".join(words))


def document(width: float, height: float, style: str, content: Sequence[str], title: str) -> str:
    """The text of an SVG file with a white background. ``style``: CSS; ``content``: elements."""
    paper = element("rect", width=width, height=height, fill=PAPER)
    body = "\n".join([tooltip(title), element("style", style), paper, *content])
    size = {"width": width, "height": height, "viewBox": f"0 0 {number(width)} {number(height)}"}
    head = {"xmlns": "http://www.w3.org/2000/svg", **size, "font_family": FONT, "fill": INK}
    return element("svg", f"\n{body}\n", **head) + "\n"


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, evenly spaced; approximately ``about`` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]
