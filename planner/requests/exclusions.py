"""Tables of options that exclude each other.

A row of a table is (option, allowed, other, values, expected). If the argument ``other`` has one of
``values`` (or is true, if ``values`` is empty), then ``option`` must have one of the values
``allowed``. Otherwise an error says what was expected: ``expected``, a format string that is filled
with the values of all arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pipeloom.ir.errors import InputError

from ..inputs.placement_spec import AUTO, BIDIRECTIONAL

Exclusion: TypeAlias = tuple[str, Sequence[object], str, Sequence[object], str]

SENT, NOT_ALL, NONE = ("activations",), ("auto", "none"), (None,)
FOR_ALL = (
    "activations with --recompute all, got {passing!r}: nothing is recomputed where weights are "
    "passed"
)
TWO_WAYS = "none with --placement {placement}, where nothing is recomputed, got {recompute!r}"
CHOSEN = "it with --placement auto and a profile by stages, got {copies} with "
CUT_FIRST = (
    "activations for a profile by layers, got {passing!r}: cut it first: the schedule that "
    "`optimize` writes without --passing has a profile by stages, under the key profile"
)
IN_A_ROW = "auto or linear with --passing auto, got {placement!r}"
START = "a profile by stages, one placement and one passing"
ON_ONE_RANK = "each stage on one rank, got --passing {passing}"
# "cut" holds if layers are cut into stages, and "placed" if the placement is not auto
OPTIMIZE: Sequence[Exclusion] = (
    ("passing", SENT, "for_", (), "none with --for, got {passing!r}"),
    ("partition", (None, "joint"), "for_", (), "none with --for, got {partition!r}"),
    ("recompute", NOT_ALL, "for_", (), "none with --for, got {recompute!r}"),
    ("copies", NONE, "for_", (), "none with --for, got {copies}"),
    ("passing", SENT, "recompute", ("all",), FOR_ALL),
    ("recompute", NOT_ALL, "placement", (BIDIRECTIONAL,), TWO_WAYS),
    ("copies", NONE, "passing", ("weights",), CHOSEN + "--passing weights"),
    ("copies", NONE, "cut", (), CHOSEN + "a profile by layers"),
    ("copies", NONE, "placed", (), CHOSEN + "--placement {placement}"),
    ("passing", SENT, "cut", (), CUT_FIRST),
    ("placement", (AUTO, "linear"), "passing", ("auto",), IN_A_ROW),
    ("start", NONE, "cut", (), START),
    ("start", NONE, "for_", (), START),
    ("start", NONE, "placement", (AUTO,), START),
    ("start", NONE, "passing", ("auto",), START),
    ("slow", NONE, "cut", (), "a profile by stages, got layers that are to be cut"),
    ("copies", (None, 1), "slow", (), "1 with --slow, got {copies}"),
    ("slow", NONE, "for_", (), "none with --for, got it with --for {for_}"),
    ("slow", NONE, "passing", ("weights", "auto"), ON_ONE_RANK),
)
COMPARE: Sequence[Exclusion] = (
    ("placement", NONE, "no_optimizer", (), "none with --no-optimizer: each family has its own"),
)


def refuse(table: Sequence[Exclusion], **asked: Any) -> None:
    """Raise InputError for the first row of ``table`` that the arguments ``asked`` violate."""
    for option, left, other, values, expected in table:
        holds = asked[other] in values if values else asked[other]
        if holds and asked[option] not in left:
            raise InputError(f"{option}: expected {expected.format(**asked)}")
