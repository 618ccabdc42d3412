"""Predicted and measured step times of all schemes of passing, on a ring with one slow link.

The configurations are chosen so that each kind of passing wins in some of them. Predictions use
only the given op times and the measured links.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeloom import Objective, Profile, Schedule, StageProfile, compile_schedule, dump_profile
from pipeloom.ir import Links, Sharing, over_wires, traffic
from pipeloom.planner import Search, Terms, compare_schemes
from pipeloom.solver import SolveOptions

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain
from .network import ABOVE, BELOW, Ring, namespaces

if TYPE_CHECKING:
    from examples.gpt import GPT

    from .ranks import RankRun

PART = "ring"
FLOAT = 4  # bytes
SECONDS = 20.0  # time limit of the optimizer for all schemes together
STEPS, WARMUP = 6, 2  # steps of each scheme, including warm-up
TIMEOUT = 600.0  # seconds, for all schemes
TIE = 0.01  # step times whose relative difference is smaller count as equal
ALLOWED = 0.15  # relative error allowed for predictions
HEADERS = 0.1  # share of bytes allowed for headers, acknowledgements and control messages
LOSSES = 1e-4  # relative tolerance: float32 sums in another order
SCHEMES = ("activations", "weights", "fsdp", "fully_shard")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A GPT with one stage per rank, and ``microbatches`` of ``microbatch`` sequences per step.

    ``time``: milliseconds of each F, B and W. Ranks sleep until this time is over, so the ops have
    the speed of an imagined device, not that of the cores of this machine.
    """

    layers: int
    width: int
    context: int
    microbatch: int
    microbatches: int
    time: float
    ring: Ring = field(default_factory=Ring)

    @property
    def model(self) -> GPT:
        """The GPT of this configuration, with heads of width 64, or of width 32 if 64 does not
        divide its width."""
        from examples.gpt import GPT

        heads = self.width // (32 if self.width % 64 else 64)
        return GPT(self.layers, self.width, heads, self.context, self.microbatch)

    def profile(self, links: Links) -> Profile:
        """A profile with the model's sizes in bytes, the given times and links, and no memory
        limit."""
        sent = FLOAT * self.microbatch * self.context * self.width
        modules = [make() for make in self.model.stages(self.ring.ranks)]
        sizes = [FLOAT * sum(p.numel() for p in module.parameters()) for module in modules]
        held, times = (sent, 0.0, sent), (self.time,) * 3
        stages = (StageProfile(*times, *held, size, size, 2 * size) for size in sizes)
        return Profile(tuple(stages), self.ring.ranks, links=links)


# Chosen by predictions, before any measurement. The slow link is in the middle of the path of the
# activations (1), or connects the last rank to the first (3).
CONFIGURATIONS = {
    "wide": Configuration(4, 256, 128, 1, 8, 60.0),
    "wider": Configuration(4, 320, 128, 1, 8, 60.0),
    "long": Configuration(4, 32, 1024, 2, 4, 90.0),
    "middle": Configuration(4, 128, 256, 4, 4, 40.0),
    "middle-short": Configuration(4, 160, 256, 2, 4, 60.0),
    "deep-ends": Configuration(8, 128, 256, 4, 4, 50.0, Ring(slow=3)),
    "deeper-ends": Configuration(12, 96, 256, 4, 4, 60.0, Ring(slow=3)),
    "wide-ends": Configuration(8, 160, 256, 2, 4, 60.0, Ring(slow=3)),
    "middle-wide": Configuration(4, 192, 256, 2, 4, 60.0),
}


def cases(size: Size) -> Iterator[Case]:
    for name in ("middle",) if size == "small" else CONFIGURATIONS:
        yield Case(PART, name, timed=True)


def measure(case: Case) -> Row:
    """Measure the links, then predict the step time of each scheme and train with it. Requires
    root."""
    from pipeloom.runtime import launch_ranks

    from . import ranks

    asked = CONFIGURATIONS[case.name]
    with namespaces(asked.ring) as maker:
        ask = partial(launch_ranks, ranks.on_ring, asked.ring.ranks, timeout=TIMEOUT)
        profile = asked.profile(_links([link for (link,) in ask((maker, ranks.probe)).values()]))
        terms = Terms(
            microbatches=asked.microbatches,
            memory_limit=None,
            objective=Objective.PERIOD,
            where="profile",
        )
        search = Search(SolveOptions(time_limit=SECONDS))
        candidates = [r for r in compare_schemes(profile, terms, search) if not r.why_not]
        programs = [compile_schedule(each.schedule) for each in candidates]
        times = (asked.time, 2 * asked.time)
        train = partial(ranks.train, asked.model, times, programs)
        *runs, torchs = zip(*ask((maker, train)).values(), strict=True)
    schemes = [
        {"scheme": one.scheme, "schedule": one.name, **_row(one.step_time, run)}
        | {"planned_wires": wires(one.schedule)}
        for one, run in zip(candidates, runs, strict=True)
    ]
    torch = {"scheme": "fully_shard", "schedule": "torch"}
    torch |= _row(fully_sharded(profile, asked.microbatches), torchs)
    least = min(row["measured_ms"] for row in schemes)
    return {
        "model": {key: getattr(asked, key) for key in ("layers", "width", "context", "microbatch")},
        "microbatches": asked.microbatches,
        "times_ms": (asked.time,) * 3,
        "ring": asdict(asked.ring),
        "links": dump_profile(profile)["links"],
        "schemes": [*schemes, torch],
        "auto": candidates[0].scheme,
        "winners": [r["scheme"] for r in schemes if r["measured_ms"] <= least * (1 + TIE)],
    }


def _links(pairs: Sequence[Any]) -> Links:
    """The links between neighbors in the ring, from the results of :func:`.ranks.probe`."""
    fastest = max((link for _, _, link in pairs), key=lambda link: link.gigabytes_per_second)
    return Links(fastest, tuple(pairs), Sharing.RING)


def _row(time: float, runs: Sequence[RankRun]) -> Row:
    """The figures of a scheme. ``time``: the predicted step time in ms; ``runs``: the measurements
    of all ranks, in their order.

    ``measured_ms`` is the median interval between the ends of successive steps after the warm-up,
    averaged over ranks.
    """
    ends = np.array([run.ends for run in runs])[:, WARMUP - 1 :]
    intervals = [1e3 * float(np.mean(b - a)) for a, b in pairwise(ends.T)]
    losses = zip(*(run.losses for run in runs), strict=True)
    above = zip(runs, (*runs[1:], runs[0]), strict=True)
    return {
        "predicted_ms": time,
        "measured_ms": median(intervals),
        "error": time / median(intervals) - 1,
        "least_ms": min(intervals),
        "most_ms": max(intervals),
        "losses": [mean(loss for rank in step for loss in rank) for step in losses],
        "wires": [(low.sent[ABOVE], high.sent[BELOW]) for low, high in above],
    }


def wires(schedule: Schedule) -> list[tuple[float, float]]:
    """The planned bytes per step over each link, without headers: (from rank i to i + 1, from i + 1
    to i) for link i."""
    ranks, carried = schedule.problem.ranks, defaultdict[str, float](float)
    carried |= over_wires(schedule.problem.profile, traffic(schedule))
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    return [(carried[f"{a} to {b}"], carried[f"{b} to {a}"]) for a, b in pairs]


def fully_sharded(profile: Profile, microbatches: int) -> float:
    """Predicted step time of torch's ``fully_shard`` over Gloo, in milliseconds.

    On a CPU nothing overlaps: for each of its M / P microbatches, a rank gathers and runs F of each
    stage, then gathers, runs BW and reduces. Gloo gathers in a ring: P - 1 hops with 1 / P of the
    weights (n bytes), each at the speed of the slowest link. It reduce-scatters by an all-reduce,
    which takes 2 (P - 1) such hops. Hence

        M / P x sum over stages of  T_F + T_BW + 4 (P - 1) (latency + n / P / bandwidth)
    """
    ranks = profile.ranks
    assert profile.links is not None
    links = (link for _, _, link in profile.links.pairs)
    slowest = min(links, key=lambda link: link.gigabytes_per_second)
    hop = [slowest.delay((s.weight_bytes or 0.0) / ranks) for s in profile.stages]
    work = sum(s.t_f + s.t_b + s.t_w for s in profile.stages)
    return microbatches / ranks * (work + 4 * (ranks - 1) * sum(hop))


def judge(rows: Rows) -> Iterator[Claim]:
    picked = sum(row["auto"] in row["winners"] for row in rows)
    words = (
        f"`--passing auto` picks the fastest scheme, or one within {TIE:.0%} of it, in "
        f"{picked} of {len(rows)} trained configurations."
    )
    yield Claim(PART, words, picked == len(rows))
    schemes = [scheme for row in rows for scheme in row["schemes"]]
    ours, torchs = (
        max(abs(each["error"]) for each in schemes if (each["scheme"] == "fully_shard") == theirs)
        for theirs in (False, True)
    )
    words = (
        f"Steps of our schemes are within {ours:.1%} of their predictions, those of `fully_shard` "
        f"within {torchs:.0%}."
    )
    yield Claim(PART, words, max(ours, torchs) <= ALLOWED)
    pairs = [
        pair
        for row in rows
        for scheme in row["schemes"]
        for pair in zip(scheme["losses"], row["schemes"][0]["losses"], strict=True)
    ]
    equal = all(math.isclose(a, b, rel_tol=LOSSES) for a, b in pairs)
    yield Claim(PART, "Losses of all schemes agree to 1e-4.", equal)
    more = [share for each in schemes for share in _more_than_planned(each)]
    words = f"Every link carries the planned bytes, and at most {max(more):.1%} more for headers."
    yield Claim(PART, words, 0 <= min(more) <= max(more) <= HEADERS)


def _more_than_planned(scheme: Mapping[str, Any]) -> Iterator[float]:
    """Yield, for each link and direction, the relative excess of the bytes sent over the planned
    bytes."""
    for planned, carried in zip(scheme.get("planned_wires", ()), scheme["wires"], strict=False):
        yield from (b / a - 1 for a, b in zip(planned, carried, strict=True) if a)


def _scheme(name: str) -> Column:
    def cell(row: Row) -> str | None:
        found = [each for each in row["schemes"] if each["scheme"] == name]
        if not found:
            return None
        text = f"{found[0]['measured_ms']:.0f} / {found[0]['predicted_ms']:.0f}"
        return f"**{text}**" if name == row["auto"] else text

    return Column(name, cell)


MODEL = "{layers} blocks of {width}, {microbatch} x {context}"
columns = {
    PART: Table(
        *plain({"configuration": "case"}),
        Column("model", lambda row: MODEL.format(**row["model"])),
        Column("M", "microbatches"),
        Column("T_F, T_B, T_W ms", lambda row: f"{row['times_ms'][0]:g} each"),
        Column("slow link", lambda row: row["ring"]["slow"]),
        *map(_scheme, SCHEMES),
        Column("fastest", lambda row: ", ".join(row["winners"])),
    )
}
