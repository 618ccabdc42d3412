"""The colors of ops: one hue per kind, dark for a rank's first stage and light for its last."""

from __future__ import annotations

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.schedule import TransferKind

Colour = tuple[int, int, int]

# (first stage, last stage); the hues are distinct with every common color blindness
_ENDS: dict[OpKind, tuple[str, str]] = {
    OpKind.F: ("2f6cb3", "a6c8ef"),
    OpKind.B: ("14846b", "93d9c3"),
    OpKind.W: ("e39a2b", "f8dca4"),
    OpKind.BW: ("7656a4", "ccbbe4"),
    OpKind.R: ("4e5d78", "b9c4d6"),
    OpKind.O: ("b04a5a", "ebb4bc"),
    OpKind.L: ("6f741e", "d3d68c"),
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
PAIR: Colour = (0x1B, 0x7C, 0x94)
AVERAGED = "gradients averaged over replicas"
AVERAGE: Colour = (0x7A, 0x4F, 0xB5)
TRANSFERS: dict[TransferKind, Colour] = {
    TransferKind.WEIGHT: (0x5B, 0x6B, 0x7F),
    TransferKind.GRADIENT: (0xC2, 0x41, 0x6B),
}


def colour(kind: OpKind, shade: float) -> Colour:
    """The color of ops of a kind. ``shade``: from 0 (dark) to 1 (light)."""
    dark, light = map(bytes.fromhex, _ENDS[kind])
    red, green, blue = (round(a + (b - a) * shade) for a, b in zip(dark, light, strict=True))
    return red, green, blue


def is_light(rgb: Colour) -> bool:
    """Whether dark text is more readable than white text on this color.

    It is decided by the color's relative luminance, as in WCAG.
    """
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.3


def as_hex(rgb: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*rgb)
