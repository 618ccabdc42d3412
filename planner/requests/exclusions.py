"""What excludes what: a row for each option that another one, or the profile, leaves no choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pipeloom.ir.errors import InputError

from ..inputs.placement_spec import AUTO, BIDIRECTIONAL


class Exclusion(NamedTuple):
    """``option`` is one of ``only`` where ``other`` is one of ``values``, or, without these, is
    given at all; ``expected``: the message for another value."""

    option: str
    only: Sequence[object]
    other: str
    values: Sequence[object]
    expected: str


SENT, NOT_ALL, NONE = ("activations",), ("auto", "none"), (None,)
CHOSEN = "it with --placement auto and a profile by stages, got {copies} with "
START = "a profile by stages, one placement and one passing"
NOTHING = "nothing is recomputed where weights are passed"
CUT_FIRST = (
    "cut it first: the schedule that `optimize` writes without --passing has a profile by stages, "
    "under the key profile"
)
# placed: the placement is not auto; cut: layers are to be cut
OPTIMIZE = (
    Exclusion("passing", SENT, "for_", (), "none with --for, got {passing!r}"),
    Exclusion("partition", (None, "joint"), "for_", (), "none with --for, got {partition!r}"),
    Exclusion("recompute", NOT_ALL, "for_", (), "none with --for, got {recompute!r}"),
    Exclusion("copies", NONE, "for_", (), "none with --for, got {copies}"),
    Exclusion(
        "passing",
        SENT,
        "recompute",
        ("all",),
        f"activations with --recompute all, got {{passing!r}}: {NOTHING}",
    ),
    Exclusion(
        "recompute",
        NOT_ALL,
        "placement",
        (BIDIRECTIONAL,),
        "none with --placement {placement}, where nothing is recomputed, got {recompute!r}",
    ),
    Exclusion("copies", NONE, "passing", ("weights",), CHOSEN + "--passing weights"),
    Exclusion("copies", NONE, "cut", (), CHOSEN + "a profile by layers"),
    Exclusion("copies", NONE, "placed", (), CHOSEN + "--placement {placement}"),
    Exclusion(
        "passing",
        SENT,
        "cut",
        (),
        f"activations for a profile by layers, got {{passing!r}}: {CUT_FIRST}",
    ),
    Exclusion(
        "placement",
        (AUTO, "linear"),
        "passing",
        ("auto",),
        "auto or linear with --passing auto, got {placement!r}",
    ),
    Exclusion("start", NONE, "cut", (), START),
    Exclusion("start", NONE, "for_", (), START),
    Exclusion("start", NONE, "placement", (AUTO,), START),
    Exclusion("start", NONE, "passing", ("auto",), START),
    Exclusion("slow", NONE, "cut", (), "a profile by stages, got layers that are to be cut"),
    Exclusion("copies", (None, 1), "slow", (), "1 with --slow, got {copies}"),
    Exclusion("slow", NONE, "for_", (), "none with --for, got it with --for {for_}"),
    Exclusion(
        "slow",
        NONE,
        "passing",
        ("weights", "auto"),
        "each stage on one rank, got --passing {passing}",
    ),
)
COMPARE = (
    Exclusion(
        "placement",
        NONE,
        "no_optimizer",
        (),
        "none with --no-optimizer: each family has its own",
    ),
)


def refuse(table: Sequence[Exclusion], **asked: Any) -> None:
    """Raises InputError for the first row of the table that what is ``asked`` breaks."""
    for option, only, other, values, expected in table:
        holds = asked[other] in values if values else asked[other]
        if holds and asked[option] not in only:
            raise InputError(f"{option}: expected {expected.format(**asked)}")
