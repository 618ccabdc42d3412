"""The colours of ops: one hue per kind, dark for a rank's first stage, light for its last."""

from __future__ import annotations

from pipeloom.ir.model.ops import OpKind

Colour = tuple[int, int, int]

# (first stage, last stage); the hues are distinct for every common colour blindness
_ENDS: dict[OpKind, tuple[Colour, Colour]] = {
    OpKind.F: ((0x2F, 0x6C, 0xB3), (0xA6, 0xC8, 0xEF)),
    OpKind.B: ((0x14, 0x84, 0x6B), (0x93, 0xD9, 0xC3)),
    OpKind.W: ((0xE3, 0x9A, 0x2B), (0xF8, 0xDC, 0xA4)),
    OpKind.BW: ((0x76, 0x56, 0xA4), (0xCC, 0xBB, 0xE4)),
    OpKind.R: ((0x4E, 0x5D, 0x78), (0xB9, 0xC4, 0xD6)),
    OpKind.O: ((0xB0, 0x4A, 0x5A), (0xEB, 0xB4, 0xBC)),
    OpKind.L: ((0x6F, 0x74, 0x1E), (0xD3, 0xD6, 0x8C)),
}

NAMES: dict[OpKind, str] = {
    OpKind.F: "forward",
    OpKind.B: "input gradient",
    OpKind.W: "weight gradient",
    OpKind.BW: "both gradients",
    OpKind.R: "forward again",
    OpKind.O: "out to the host",
    OpKind.L: "loaded back",
}

AT_ONCE = "a forward and both gradients at once"
_PAIR: tuple[Colour, Colour] = ((0x1B, 0x7C, 0x94), (0x9F, 0xDA, 0xE6))

AVERAGED = "gradients averaged over replicas"
AVERAGE: Colour = (0x7A, 0x4F, 0xB5)


def of_pair(shade: float) -> Colour:
    """The colour of an F and a BW run at once, drawn as one; ``shade``: 0 (dark) to 1."""
    return _between(_PAIR, shade)


def colour(kind: OpKind, shade: float) -> Colour:
    """The colour of ops of a kind; ``shade``: 0 (dark) to 1 (light)."""
    return _between(_ENDS[kind], shade)


def _between(ends: tuple[Colour, Colour], shade: float) -> Colour:
    dark, light = ends
    red, green, blue = (round(a + (b - a) * shade) for a, b in zip(dark, light, strict=True))
    return red, green, blue


def is_light(rgb: Colour) -> bool:
    """Whether dark text is more readable on this colour (by relative luminance, WCAG)."""
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return luminance > 0.3


def as_hex(rgb: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*rgb)
