"""Minimum times and memory of a stage, as exact fractions, for the arguments of certificates."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..schedule_facts import Facts, MicrobatchFacts

MEMORY = Fraction(1, 10**9)  # relative tolerance of memory limits, for rounding errors


class NotProvenError(ValueError):
    """The argument of a certificate does not apply, or does not prove the required lower bound.

    The required bounds are that of the certificate and that of the schedule.
    """


@dataclass(frozen=True, slots=True)
class LeastFacts:
    """The minimum times and memory of a microbatch on one stage, as exact fractions.

    If microbatches differ, each number is the minimum over them: a schedule remains valid if ops
    become shorter and sizes smaller. A BW that is shorter than B and W together counts as a B that
    is at most as long as the BW, and a W with the rest of its time: this only lets the gradient
    leave earlier. ``f``, ``b``, ``w``: the times of F, B and W. ``kept``: the minimum memory that a
    microbatch holds from F to B, including when it is recomputed or offloaded.
    """

    f: Fraction
    b: Fraction
    w: Fraction
    m_b: Fraction
    m_w: Fraction
    kept: Fraction
    activation_bytes: float


def expect_alone(facts: Facts) -> None:
    """Raise NotProvenError if a rank may run two ops at a time, or steps after each microbatch.

    The arguments of certificates do not cover pairs of an F and a BW, or optimizer steps after each
    microbatch.
    """
    if facts.plan.updates == "microbatch":
        raise NotProvenError("argument: knows no updates by microbatch")
    for stage in facts.plan.profile.stages:
        if getattr(stage, "t_fb", None) is not None:
            raise NotProvenError("argument: knows no stages with t_fb")


def least_of(facts: Facts, stage: int) -> LeastFacts:
    """The minimum times and sizes of ``stage`` over all microbatches."""
    every = [facts.at(stage, j) for j in range(facts.plan.microbatches)]
    f, b, w = (min(times) for times in zip(*map(times_of, every), strict=True))
    m_b, m_w = (min(Fraction(getattr(own, key)) for own in every) for key in ("m_b", "m_w"))
    kept = min(map(_kept_of, every))
    return LeastFacts(f, b, w, m_b, m_w, kept, min(own.activation_bytes for own in every))


def times_of(own: MicrobatchFacts) -> tuple[Fraction, Fraction, Fraction]:
    """The minimum times of F, B and W of a microbatch on one stage, in ms.

    If a BW takes less time than B and W together, its time is divided: B is at most as long as the
    BW, and W has the rest.
    """
    f, b, w, fused = (Fraction(own.durations[kind]) for kind in ("F", "B", "W", "BW"))
    if fused < b + w:
        b, w = min(b, fused), max(Fraction(0), fused - b)
    return f, b, w


def _kept_of(own: MicrobatchFacts) -> Fraction:
    sizes = {"R": own.m_r, "O": own.m_o}
    ways = [size for kind, size in sizes.items() if kind in own.durations and size is not None]
    return Fraction(min([own.m_b, *ways]))
