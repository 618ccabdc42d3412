"""The layout of labels, beside their points and without overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

CHARACTER, HEIGHT = 6.6, 12.0
"""The width of a character and the height of a line at 12 px, sufficient for common fonts."""


@dataclass(frozen=True, slots=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def around(x: float, y: float, reach: float) -> Box:
    return Box(x - reach, y - reach, x + reach, y + reach)


def along(path: Iterable[tuple[float, float]], reach: float) -> list[Box]:
    """The boxes around a line of horizontal and vertical pieces."""
    corners = list(path)
    return [
        Box(min(a, c) - reach, min(b, d) - reach, max(a, c) + reach, max(b, d) + reach)
        for (a, b), (c, d) in pairwise(corners)
    ]


def place(text: str, x: float, y: float, taken: list[Box], bounds: Box) -> Box | None:
    """The free box for ``text`` nearest to (x, y), or None; it is added to ``taken``."""
    width = CHARACTER * len(text)
    for distance in (8.0, 14.0, 22.0, 32.0):
        for left, top in (
            (x + distance, y - distance - HEIGHT + 4),
            (x - distance - width, y + distance - 4),
            (x - width / 2, y - distance - HEIGHT),
            (x - width / 2, y + distance),
            (x + distance, y + distance - 4),
            (x - distance - width, y - distance - HEIGHT + 4),
        ):
            box = Box(left, top, left + width, top + HEIGHT)
            inside = bounds.left <= left and box.right <= bounds.right
            inside = inside and bounds.top <= top and box.bottom <= bounds.bottom
            if inside and not any(map(box.meets, taken)):
                taken.append(box)
                return box
    return None
