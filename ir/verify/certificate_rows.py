"""Rows of inequalities, and the instances that the arguments of certificates speak of."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeAlias

from .schedule_facts import Facts, MicrobatchFacts

MEMORY = Fraction(1, 10**9)  # relative: what a sum of memory may be above its limit, by rounding

UNPROVEN = {
    **{"t_fb": "", "t_r": "--recompute none", "levels": "--recompute none"},
    "m_o": "--offload none",
}
"""Keys of stages that no argument speaks of yet, and the option that plans without them."""

Variable: TypeAlias = tuple[str, int]
Terms: TypeAlias = Mapping[Variable, Fraction]
Row: TypeAlias = tuple[Terms, Fraction]
Box: TypeAlias = dict[Variable, tuple[Fraction, Fraction]]


class NotProvenError(ValueError):
    """Why a certificate proves nothing, or not what is claimed."""


def expect_plain(facts: Facts) -> None:
    """Arguments speak of F, B and W: of nothing that is recomputed, offloaded or overlapped."""
    if facts.plan.updates == "microbatch":
        raise NotProvenError("argument: knows no updates by microbatch")
    for stage in facts.plan.profile.stages:
        for key in UNPROVEN:
            if getattr(stage, key, None) is not None:
                raise NotProvenError(f"argument: knows no stages with {key}")


def times_of(own: MicrobatchFacts) -> tuple[Fraction, Fraction, Fraction]:
    f, b, w = (Fraction(own.durations[kind]) for kind in "FBW")
    return f, b, w


def fusing_saves(own: MicrobatchFacts) -> bool:
    return own.durations["BW"] < own.durations["B"] + own.durations["W"]
