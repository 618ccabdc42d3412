"""Checks a certificate: that no schedule of an instance costs less than a lower bound.

In exact fractions, on the instance as the schedule's document has it; no line is shared with the
solver, whose numbers are taken for nothing but multipliers. Four arguments are known:

- ``work``: a rank runs its ops one at a time.
- ``critical-path``: one microbatch passes all stages and comes back to the rank it began on.
- ``moments``, where each stage has a rank of its own: the inequalities between the moments of a
  stage have no solution with a cost of the bound or less. Counts are whole, so a tree splits their
  ranges. In each leaf the inequalities, times their multipliers, add up to one that no point of the
  leaf's box keeps.
- ``rank-moments``, of any other map of stages to ranks: the same, with the inequalities of
  :mod:`.rank_certificate`.

The moments of stage i: S its first op starts (an F), y its first B starts, t its last F starts, V
its last B ends, e its last op ends (a W)::

    S ── n F's ── y ── F's, B's, W's ── t ── one F, a + 1 B's, r W's ── V ── W's ── e

n F's come before the first B; at t there are, beside that F's own microbatch, a with B and W to
come and q with W alone, which memory holds; z is 1 where all F's come before the first B. What the
line names fits between its moments, whether or not the rank idles; a microbatch's first F, last F,
first B and last B each passed the next stage, or go on to it; and the cost is at least e - S
(period), or e less stage 0's S (makespan). Of the a + 1 W's whose B's end after t, the last B's
comes after V. No span is more than the bound, so that 2 z in its unit lifts "between".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any, TypeAlias

from ..formats.certificate import CertificateDocument, Node
from ..formats.validation import validated
from .certificate_rows import (
    MEMORY,
    Box,
    NotProvenError,
    Row,
    Terms,
    Variable,
    expect_plain,
    fusing_saves,
    times_of,
)
from .rank_certificate import RankFacts
from .schedule_facts import Facts, MicrobatchFacts, read_facts

_Named: TypeAlias = tuple[str, Terms, Fraction]
CLAIM = Fraction(1, 10**6)
"""Relative: a schedule may claim that much more than is proven, as it counts as optimal then."""

SEARCHED = {
    "crossings",
    "crossings-search",
    "interleaving",
    "enumeration",
    "cp-sat",
    "milp",
    "highs",
}
"""Names of bounds whose arguments have no certificate."""


def verify_certificate(schedule: dict[str, Any], document: object, where: str) -> list[str]:
    """Why the certificate does not prove the lower bound of a valid schedule document, or nothing.

    Raises InputError where ``document`` has not the shape of a certificate.
    """
    certificate = validated(CertificateDocument, document, where)
    facts = read_facts(schedule, "schedule")
    try:
        _check(facts, certificate)
    except NotProvenError as error:
        return [str(error)]
    return []


def _check(facts: Facts, certificate: CertificateDocument) -> None:
    claimed, bound = facts.report.lower_bound, Fraction(certificate.lower_bound)
    if claimed is None:
        raise NotProvenError("proves a lower bound, but the schedule claims none")
    if certificate.objective != facts.report.objective:
        raise NotProvenError(
            f"objective: expected the schedule's, {facts.report.objective}, got "
            f"{certificate.objective}"
        )
    if Fraction(claimed) > bound * (1 + CLAIM):
        raise NotProvenError(
            f"lower_bound: expected the schedule's, {claimed:.9g}, got "
            f"{certificate.lower_bound:.9g}, which is less{_without(facts.report.bound_name)}"
        )
    argument = certificate.argument
    if argument["kind"] in {"moments", "rank-moments"}:
        instance = instance_of(facts, argument["kind"])
        check_tree(instance, bound, argument.get("nodes", []))
        return
    proven = proven_by(facts, argument)
    if proven < bound:
        raise NotProvenError(
            f"argument: {argument['kind']}: proves {float(proven):.9g}, expected lower_bound, "
            f"{certificate.lower_bound:.9g}"
        )


def _without(name: str | None) -> str:
    return f"; no argument for {name} has a certificate yet" if name in SEARCHED else ""


def instance_of(facts: Facts, kind: str) -> LinearFacts | RankFacts:
    """The instance as ``moments`` or ``rank-moments`` has it. Raises NotProvenError."""
    return LinearFacts.of(facts) if kind == "moments" else RankFacts.of(facts)


def check_tree(instance: LinearFacts | RankFacts, bound: Fraction, nodes: Sequence[Node]) -> None:
    """Raises NotProvenError where ``nodes`` do not refute that a schedule costs less than
    ``bound``."""
    _Refutation(instance, bound).check(nodes)


def proven_by(facts: Facts, argument: Mapping[str, Any]) -> Fraction:
    """The cost that ``work`` or ``critical-path`` proves."""
    return (
        _work(facts, argument.get("rank")) if argument["kind"] == "work" else _critical_path(facts)
    )


def _work(facts: Facts, rank: int | None) -> Fraction:
    expect_plain(facts)
    pairs = {(run.stage, run.microbatch) for run in facts.runs if run.rank == rank}
    return sum((_work_of(facts.at(*pair)) for pair in pairs), Fraction(0))


def _work_of(own: MicrobatchFacts) -> Fraction:
    f, b, w = times_of(own)
    return f + (Fraction(own.durations["BW"]) if fusing_saves(own) else b + w)


def _critical_path(facts: Facts) -> Fraction:
    stages = LinearFacts.of(facts, alone=False)
    there_and_back = sum(stages.f, Fraction(0)) + sum(stages.b, Fraction(0)) + stages.w[0]
    return there_and_back + sum(stages.down, Fraction(0)) + sum(stages.up, Fraction(0))


@dataclass(frozen=True, slots=True)
class LinearFacts:
    """The instance in exact numbers, by stage; ``down`` and ``up``: delays to and from the next."""

    microbatches: int
    makespan: bool
    f: Sequence[Fraction]
    b: Sequence[Fraction]
    w: Sequence[Fraction]
    m_b: Sequence[Fraction]
    m_w: Sequence[Fraction]
    limit: Sequence[Fraction | None]
    down: Sequence[Fraction]
    up: Sequence[Fraction]

    @classmethod
    def of(cls, facts: Facts, *, alone: bool = True) -> LinearFacts:
        """``alone``: whether each stage has to have a rank of its own."""
        expect_plain(facts)
        plan = facts.plan
        if plan.passing != "activations":
            raise NotProvenError(f"argument: expected passing activations, got {plan.passing}")
        ranks = dict(sorted({(run.stage, run.rank) for run in facts.runs}))
        if alone and len(set(ranks.values())) < plan.stages:
            raise NotProvenError("argument: moments: expected one stage a rank")
        if any(own != each[0] for each in facts.each for own in each):
            raise NotProvenError("argument: knows no microbatches that are unlike")
        every = [facts.at(s, 0) for s in range(plan.stages)]
        if any(map(fusing_saves, every)):
            raise NotProvenError("argument: knows no t_bw that is less than t_b + t_w")
        f, b, w = zip(*map(times_of, every), strict=True)
        limits = [facts.limit[ranks[s]] for s in range(plan.stages)]
        hops = [(ranks[s], ranks[s + 1], own.activation_bytes) for s, own in enumerate(every[:-1])]
        delay = facts.network.delay
        return cls(
            plan.microbatches,
            facts.report.objective == "makespan",
            f,
            b,
            w,
            [Fraction(own.m_b) for own in every],
            [Fraction(own.m_w) for own in every],
            [Fraction(limit) * (1 + MEMORY) if isfinite(limit) else None for limit in limits],
            [Fraction(delay(a, b, size)) for a, b, size in hops],
            [Fraction(delay(b, a, size)) for a, b, size in hops],
        )

    def box(self) -> Box:
        """The ranges of all variables but the cost's."""
        every = (ranges(self, i) for i in range(len(self.f)))
        return {variable: range_ for own in every for variable, range_ in own.items()}

    def rows(self, unit: Fraction) -> Iterator[tuple[str, int, Row]]:
        """Each inequality with its name and stage; times in ``unit``."""
        for i in range(len(self.f)):
            for name, terms, least in inequalities(self, i, unit):
                yield name, i, (terms, least)

    def round_trip(self, stage: int) -> Fraction:
        """From the start of a microbatch's F to that of its B, at least."""
        total = self.f[stage]
        for later in range(stage + 1, len(self.f)):
            total += self.down[later - 1] + self.f[later] + self.b[later] + self.up[later - 1]
        return total

    def capacity(self, stage: int) -> int:
        """How many microbatches' M_B memory holds."""
        limit, size = self.limit[stage], self.m_b[stage]
        if limit is None or size == 0:
            return self.microbatches
        return min(self.microbatches, int(limit / size))


class _Refutation:
    """Refutes that a schedule costs less than ``bound``; times are in units of it.

    Such a schedule keeps all of ``rows`` (terms that add up to a number at least) within ``box``.
    """

    def __init__(self, instance: LinearFacts | RankFacts, bound: Fraction) -> None:
        self._rows: dict[tuple[str, int], Row] = {}
        self._box: Box = {("C", 0): (Fraction(0), Fraction(1))}
        if bound > 0:
            self._box |= instance.box()
            self._rows = {(name, i): row for name, i, row in instance.rows(bound)}

    def check(self, nodes: Sequence[Node]) -> None:
        """Raises NotProvenError with the place of the node that is wrong."""
        open_, at = [self._box], 0
        for at, node in enumerate(nodes):
            where = f"argument: nodes[{at}]"
            if not open_:
                raise NotProvenError(f"{where}: expected nothing after the last leaf")
            box = open_.pop()
            if "multipliers" in node:
                self._refute(box, node, where)
            else:
                open_ += _split(box, node, where)
        if open_ and len(self._box) > 1:
            raise NotProvenError(f"argument: nodes: expected more than {len(nodes)}")

    def _refute(self, box: Box, leaf: Node, where: str) -> None:
        total: dict[Variable, Fraction] = defaultdict(Fraction)
        least = Fraction(0)
        for entry in leaf["multipliers"]:
            row, times = (entry["inequality"], entry["stage"]), Fraction(entry["by"])
            if row not in self._rows:
                raise NotProvenError(f"{where}: no inequality {row[0]!r} of stage {row[1]}")
            terms, right = self._rows[row]
            least += times * right
            for variable, factor in terms.items():
                total[variable] += times * factor
        most = sum((factor * box[v][factor > 0] for v, factor in total.items()), Fraction(0))
        if most >= least:
            raise NotProvenError(
                f"{where}: its multipliers leave a solution: expected less than "
                f"{float(least):.9g}, got {float(most):.9g}"
            )


def _split(box: Box, node: Node, where: str) -> tuple[Box, Box]:
    """The box of the second branch, then that of the first, which comes next."""
    variable = node.get("count", ""), node.get("stage", 0)
    if variable not in box:
        raise NotProvenError(f"{where}: no count {variable[0]!r} of stage {variable[1]}")
    low, high = box[variable]
    most = Fraction(node.get("most", -1))
    if not low <= most < high:
        raise NotProvenError(f"{where}: most: expected {low} to {high - 1}, got {most}")
    return box | {variable: (most + 1, high)}, box | {variable: (low, most)}


def ranges(stages: LinearFacts, i: int) -> Box:
    """Times are within two bounds: stage 0 starts at 0 and runs its last B, which comes after each
    stage's first op, within one, and each stage ends within one of its first op."""
    fits, m = stages.capacity(i), stages.microbatches
    counts = {"n": (1, fits), "a": (0, fits - 1), "q": (0, m - 1), "r": (0, m - 1)}
    counts["z"] = 0, int(fits >= m)
    times = dict.fromkeys("SytVe", (0, 2))
    return {(k, i): (Fraction(a), Fraction(b)) for k, (a, b) in (counts | times).items()}


def inequalities(stages: LinearFacts, i: int, unit: Fraction) -> Iterator[_Named]:
    """The inequalities of a stage, each with its name: ``terms >= number``."""
    f, b, w = (times[i] / unit for times in (stages.f, stages.b, stages.w))
    m, trip = Fraction(stages.microbatches), stages.round_trip(i) / unit
    one = Fraction(1)

    def of(name: str, least: Fraction | int, **of_stage: Fraction | int) -> _Named:
        return name, {(k, i): Fraction(v) for k, v in of_stage.items()}, Fraction(least)

    yield of("first F's", 0, y=1, S=-1, n=-f)
    yield of("first round trip", trip, y=1, S=-1)
    yield of("all F's", f * (m - 1), t=1, S=-1)
    yield of("between", (f + b + w) * (m - 1), t=1, y=-1, n=f, a=b + w, q=w, z=2)
    yield of("F's left", 1 - m, n=-1, z=1)
    yield of("B's left", 0, a=1, z=1 - m)
    yield of("microbatches", 1 - m, a=-1, q=-1)
    yield of("W's", 0, a=1, q=1, r=-1)
    yield _memory(stages, i)
    yield of("last B's", f + b, V=1, t=-1, a=-b, r=-w)
    yield of("all B's", (f + b) * m + w * (m - 1), V=1, y=-1, n=f, a=w, q=w, r=-w)
    yield of("last round trip", trip + b, V=1, t=-1)
    yield of("last W's", w, e=1, V=-1, a=-w, q=-w, r=w)
    first = 0 if stages.makespan else i
    yield "cost", {("C", 0): one, ("e", i): -one, ("S", first): one}, Fraction(0)
    if i + 1 < len(stages.f):
        down, up = stages.down[i] / unit, stages.up[i] / unit
        back = stages.b[i + 1] / unit + up
        yield "first F on", {("S", i + 1): one, ("S", i): -one}, f + down
        yield "last F on", {("t", i + 1): one, ("t", i): -one}, f + down
        yield "first B back", {("y", i): one, ("y", i + 1): -one}, back
        yield "last B back", {("V", i): one, ("V", i + 1): -one}, up + b


def _memory(stages: LinearFacts, i: int) -> _Named:
    """Memory at the last F, in units of the limit, or of twice what all hold if less."""
    m_b, m_w = stages.m_b[i], stages.m_w[i]
    most = 2 * stages.microbatches * m_b
    limit = min(filter(None, (stages.limit[i], most)), default=Fraction(1))
    return "memory", {("a", i): -m_b / limit, ("q", i): -m_w / limit}, m_b / limit - 1
