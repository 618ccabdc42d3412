"""Fixed orders, compared with ranks that run whatever is ready, if op times vary.

In a readiness policy such as RRFP's (arXiv 2605.18750), the order of a schedule is only a list of
priorities: a free rank runs the first op whose inputs have arrived. One kernel simulates fixed
orders and such policies with the same random op times. Decisions take no time, which favors
readiness. No policy knows in advance how long an op takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from pipeloom import Objective, Placement, Problem, Profile, solve
from pipeloom.ir import Costs, Op, OpKind, kernel, pack
from pipeloom.ir.model.ops import FloatArray, IntArray, fields_of, offsets_of
from pipeloom.solver import find_family

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain
from ..gaps.unequal import T_F, equal_stages, times

PART, SEED, DRAWS, WORK = "readiness", 41, 40, 30.0
SPREADS = ("0 %", "3 %", "8 %", "15 %", "30 %", "2 % of ops x 3", "microbatches 50 %")
MEASURED, ENOUGH = ("3 %", "8 %"), 2
CHUNKS = {"ours": 1, "ours, V": 2, "1f1b": 1, "zb-h1": 1, "zb-v": 2}
"""The number of stages per rank, by schedule."""
EPS, ALL, F, W = 1e-9, 1 << 30, int(OpKind.F), int(OpKind.W)
Policy: TypeAlias = tuple[int, bool, bool]
"""The number of ops at the head of its list that a rank considers; whether it considers only W's
besides the first op; and whether the rest of the list, in its order, must fit in memory afterwards.

The last condition excludes deadlocks: what is left can always run in the order of the lists. There
it fits in memory, and its dependencies are some of those of the schedule.
"""
FIXED: Policy = (1, False, True)
POLICIES = {"ready": (ALL, False, True), "one ahead": (2, False, True), "W's": (ALL, True, True)}
BFW: Policy = (ALL, False, False)
"""RRFP's default: B's before F's before W's. With one stage per rank, F's run in the order of
microbatches, and the first microbatch that is not done can always continue."""


class Lists(NamedTuple):
    """The list of each rank, one after the other, with the arrays of a problem's costs.

    ``ops``: kind, stage and microbatch of each op, (3, N). ``first``: where each rank's ops begin,
    (P + 1,). ``delta``: what an op adds to the memory of its rank, (4, S). The other fields are
    those of :class:`pipeloom.ir.Costs`.
    """

    ops: IntArray
    first: IntArray
    delta: FloatArray
    times: FloatArray
    owner: IntArray
    into_f: FloatArray
    into_b: FloatArray
    limit: FloatArray

    @classmethod
    def of(cls, problem: Problem, order: Sequence[IntArray]) -> Lists:
        ops = np.stack(fields_of(np.concatenate(order).astype(np.int64)))
        c = Costs.of(problem)
        delta = np.stack([c.m_b, c.m_w - c.m_b, -c.m_w, -c.m_b])
        more = (c.durations[:3], c.owner, c.into_f, c.into_b, c.limit)
        return cls(ops, offsets_of(order), delta, *more)

    def run(self, factors: FloatArray, policy: Policy) -> tuple[FloatArray, FloatArray]:
        """Start and end of each op, (N,). ``factors``: on the times of F, B and W, (3, S, M)."""
        f, b, w = factors * self.times[:, :, None]
        durations, start = np.stack([f, b, w, b + w]), np.full(self.ops.shape[1], -1.0)
        play(self, durations, policy, start)
        assert start.min() >= 0.0, "deadlock"
        return start, start + durations[tuple(self.ops)]


@kernel
def play(lists: Lists, durations: FloatArray, policy: Policy, start: FloatArray) -> None:
    """Compute the start of each op, which is -1 before; those that can never start keep it."""
    (stages, count), ranks = lists.owner.shape, len(lists.limit)
    end = np.full((2, stages + 1, count), np.inf)  # of F's of the stage before, and of B's
    end[0, 0] = end[1, stages] = 0.0
    free, held, when = np.zeros(ranks), np.zeros(ranks), np.empty(ranks)
    found, stale = np.empty(ranks, dtype=np.int64), np.ones(ranks, dtype=np.bool_)
    for _ in range(len(start)):
        for r in range(ranks):
            if stale[r]:
                found[r], when[r] = _chosen(lists, r, start, end, free[r], held[r], policy)
        r = int(np.argmin(when))
        if when[r] == np.inf:
            return
        kind, s, j = lists.ops[:, found[r]]
        start[found[r]] = when[r]
        free[r] = when[r] + durations[kind, s, j]
        held[r] += lists.delta[kind, s]
        stale[:] = False
        stale[r] = True
        if kind == F:
            end[0, s + 1, j] = free[r]
            stale[lists.owner[min(s + 1, stages - 1), j]] = True
        elif kind != W:
            end[1, s, j] = free[r]
            stale[lists.owner[max(s - 1, 0), j]] = True


@kernel
def _chosen(  # noqa: PLR0917
    lists: Lists, rank: int, start: FloatArray, end: FloatArray, free: float, held: float,
    policy: Policy,
) -> tuple[int, float]:  # fmt: skip
    """The op that a rank starts next, and when; -1 and infinity if no op can start yet."""
    window, only_w, safe = policy
    high, head, best, when = held, True, -1, np.inf
    for n in range(lists.first[rank], lists.first[rank + 1]):
        if start[n] >= 0.0:
            continue
        kind, s, j = lists.ops[:, n]
        if kind == F:
            came = end[0, s, j] + lists.into_f[s, j]
        elif kind == W:
            came = end[1, s, j]
        else:
            came = max(end[0, s + 1, j], end[1, s + 1, j] + lists.into_b[s, j])
        came = max(came, free)
        fits = high + lists.delta[kind, s] <= lists.limit[rank] + EPS
        if fits and (head or kind == W or not only_w) and came < when - EPS:
            best, when = n, came
        window, head = window - 1, False
        if window == 0 or when <= free:
            break
        if safe:  # the peak of the ops that this one would pass
            held += lists.delta[kind, s]
            high = max(high, held)
    return best, when


@cache
def lists_of(ranks: int, limit: int, rounds: int, delay: float, equal: bool) -> dict[str, Lists]:
    """The lists for the 6.2B model of the Zero Bubble paper, by schedule.

    ``limit``: in units of P x M_B. ``rounds``: M / P. ``delay``: in units of T_F. ``equal``:
    whether stages take the same time; if not, times differ by up to 20 %.
    """
    found, count, most = dict[str, Lists](), rounds * ranks, (float(limit * ranks),) * ranks
    stages = equal_stages(ranks) if equal else times(ranks, np.random.default_rng(SEED))[0]
    for name, chunks in CHUNKS.items():
        profile = Profile(stages, ranks, delay * T_F).split(chunks)
        placement = (Placement.linear if chunks == 1 else Placement.v)(ranks)
        problem = Problem(profile, count, placement, most, Objective.MAKESPAN)
        ours = name.startswith("ours")
        made = solve(problem, work_limit=WORK) if ours else find_family(name).build(problem)
        found[name] = Lists.of(problem, made.order)
        if name == "ours":
            kinds = (OpKind.B, OpKind.F, OpKind.W)
            rows = ([Op(kind, s, j) for kind in kinds for j in range(count)] for s in range(ranks))
            found["bfw"] = Lists.of(problem, [pack(row) for row in rows])
    return found


def factors(spread: str, shape: tuple[int, ...], draw: int) -> FloatArray:
    """Random factors on op times, with mean 1 except where some ops take three times as long."""
    rng = np.random.default_rng([SEED, draw])
    if spread.endswith("x 3"):
        return np.where(rng.random(shape) < 0.02, 3.0, 1.0)
    share = float(spread.split()[-2]) / 100
    variance = np.log1p(share**2)
    drawn = rng.standard_normal((1, 1, shape[2]) if "microbatches" in spread else shape)
    return np.broadcast_to(np.exp(drawn * np.sqrt(variance) - variance / 2), shape)


def cases(size: Size) -> Iterator[Case]:
    for ranks, limit, spread in product((4, 8, 16), (1, 2), SPREADS):
        if size != "small" or (ranks, limit, spread) == (4, 1, "8 %"):
            given = {"ranks": ranks, "limit": limit, "spread": spread}
            yield Case(PART, f"P = {ranks}, {limit} P x M_B, {spread}", given)


def measure(case: Case) -> Row:
    """The change of the makespan in percent by schedule and policy, [mean, half of its 95 %
    interval]: the mean over eight problems and all draws, and the interval over draws.

    Policies are compared with the fixed order of the same schedule; fixed orders and BFW with ours.
    """
    ranks, limit, spread = case.given.values()
    ratios: dict[str, list[FloatArray]] = {}
    for given in product((2, 4), (0.0, 0.05), (True, False)):
        spans = {}
        for name, lists in lists_of(ranks, limit, *given).items():
            drawn = [factors(spread, (3, *lists.owner.shape), draw) for draw in range(DRAWS)]
            policies = {"ready": BFW} if name == "bfw" else {"fixed": FIXED, **POLICIES}
            for way, policy in policies.items():
                spans[name, way] = np.array([lists.run(each, policy)[1].max() for each in drawn])
        for (name, way), each in spans.items():
            base = spans["ours" if name == "bfw" or way == "fixed" else name, "fixed"]
            ratios.setdefault(f"{name}: {way}", []).append(each / base)
    by_draw = {key: 100 * np.mean(each, axis=0) - 100 for key, each in ratios.items()}
    half = {key: 1.96 * each.std(ddof=1) / DRAWS**0.5 for key, each in by_draw.items()}
    change = {key: [round(float(x), 3) for x in (by_draw[key].mean(), half[key])] for key in half}
    return {**case.given, "draws": DRAWS, "work_limit": WORK, "change": change}


def judge(rows: Rows) -> Iterator[Claim]:
    gains = [
        [-row["change"][f"{name}: {way}"][0] for way in ("ready", "one ahead")]
        for row, name in product(rows, CHUNKS)
    ]
    kept = [one > whole / 2 for whole, one in gains if whole >= ENOUGH]
    words = (
        f"Readiness shortens steps by {ENOUGH} % or more in {len(kept)} of {len(gains)} cases; if "
        f"only the second op may pass the first, more than half of that remains in {sum(kept)}."
    )
    yield Claim(PART, words)
    for limit in (1, 2):
        own = [r["change"] for r in rows if r["limit"] == limit and r["spread"] in MEASURED]
        by = {name: [each[f"{name}: ready"][0] for each in own] for name in CHUNKS}
        words = f"With a spread of 3 to 8 % and {limit} P x M_B, readiness changes steps by "
        if own:
            words += ", ".join(f"{min(c):+.1f} to {max(c):+.1f} % ({n})" for n, c in by.items())
            yield Claim(PART, f"{words}.")


def _change(key: str) -> Column:
    return Column(key, lambda row: "{:+.1f} ± {:.1f}".format(*row["change"][key]))


_WAYS = (*(f"{name}: ready" for name in CHUNKS), "ours: one ahead", "ours: W's")
_TO_OURS = ("ours, V: fixed", "1f1b: fixed", "bfw: ready")
columns = {
    PART: Table(*plain({"P": "ranks", "limit": "limit"}, "d"), *plain("spread"),
                *map(_change, (*_WAYS, *_TO_OURS)))
}  # fmt: skip
