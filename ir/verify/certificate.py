"""Verifies certificates: proofs that no schedule of an instance costs less than a lower bound.

The check uses exact fractions and takes the instance from the schedule's document. It shares no
code with the solver, and uses none of its numbers except multipliers. The arguments are:

- ``work``: a rank runs its ops one at a time.
- ``critical-path``: one microbatch passes all stages and comes back to its first rank.
- ``moments``, if each stage has its own rank: the inequalities between the moments of a stage
  (:mod:`.certificates.linear`) have no solution with at most the cost of the bound. A tree splits
  the ranges of the counts, which are integers. In each leaf, the inequalities, times their
  multipliers, add up to one that every point of the leaf's box violates.
- ``slots`` and ``crossings`` (:mod:`.certificates.slots`), ``through``, ``memory-time`` and
  ``head-tail`` (:mod:`.certificates.microbatches`), ``arrivals`` (:mod:`.certificates.arrivals`):
  formulas, which are evaluated here again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from ..documents.validation import validated
from ..formats.certificate import CertificateDocument, Node
from .certificates.arrivals import arrivals
from .certificates.linear import LinearFacts
from .certificates.microbatches import critical_path, head_tail, memory_time, through
from .certificates.rows import COUNTS, Box, NotProvenError, Row, Variable, expect_alone, times_of
from .certificates.slots import crossings, slots
from .schedule_facts import Facts, read_facts

CLAIM = Fraction(1, 10**6)
"""Relative amount by which a schedule may claim more than is proven; it equals the tolerance of the
status "optimal"."""

ClosedForm: TypeAlias = Callable[[Facts, Mapping[str, Any]], Fraction]


def _work(facts: Facts, rank: int) -> Fraction:
    expect_alone(facts)
    pairs = {(run.stage, run.microbatch) for run in facts.runs if run.rank == rank}
    return sum((sum(times_of(facts.at(*pair)), Fraction(0)) for pair in pairs), Fraction(0))


def _of_rank(proven: Callable[[Facts, int], Fraction]) -> ClosedForm:
    return lambda facts, argument: proven(facts, argument.get("rank", 0))


def _of_stage(proven: Callable[[Facts, int], Fraction]) -> ClosedForm:
    return lambda facts, argument: proven(facts, argument.get("stage", 0))


CLOSED_FORMS: Mapping[str, ClosedForm] = {
    "work": _of_rank(_work),
    "critical-path": lambda facts, _: critical_path(facts),
    "through": through,
    "memory-time": _of_rank(memory_time),
    "head-tail": _of_rank(head_tail),
    "slots": _of_stage(slots),
    "crossings": _of_stage(crossings),
    "arrivals": lambda facts, _: arrivals(facts),
}
"""For each kind of argument, the function that returns the cost it proves, or raises
NotProvenError."""


def verify_certificate(schedule: dict[str, Any], document: object, where: str) -> list[str]:
    """The reasons why the certificate does not prove the lower bound of ``schedule``; empty if it
    does.

    ``schedule``: a valid schedule document. Raises InputError if ``document`` is not a certificate.
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
    _check_argument(facts, bound, certificate.argument)
    if Fraction(claimed) > bound * (1 + CLAIM):
        raise NotProvenError(
            f"lower_bound: proves {certificate.lower_bound:.9g}, less than {claimed:.9g}, which "
            "the schedule claims"
        )


def _check_argument(facts: Facts, bound: Fraction, argument: Mapping[str, Any]) -> None:
    if argument["kind"] == "moments":
        check_tree(LinearFacts.of(facts), bound, argument.get("nodes", []))
        return
    proven = CLOSED_FORMS[argument["kind"]](facts, argument)
    if proven < bound:
        raise NotProvenError(
            f"argument: {argument['kind']}: proves {float(proven):.9g}, expected lower_bound, "
            f"{float(bound):.9g}"
        )


def check_tree(instance: LinearFacts, bound: Fraction, nodes: Sequence[Node]) -> None:
    """Raise NotProvenError unless ``nodes`` prove that no schedule costs less than ``bound``."""
    _Refutation(instance, bound).check(nodes)


class _Refutation:
    """Proves that no schedule costs less than ``bound``; times are in units of it.

    Such a schedule would satisfy all ``rows`` (each a sum of terms that is at least a number) with
    variables in the ranges of ``box``.
    """

    def __init__(self, instance: LinearFacts, bound: Fraction) -> None:
        self._rows: dict[tuple[str, int], Row] = {}
        self._box: Box = {("C", 0): (Fraction(0), Fraction(1))}
        if bound > 0:
            self._box |= instance.box()
            self._rows = {(name, i): row for name, i, row in instance.rows(bound)}

    def check(self, nodes: Sequence[Node]) -> None:
        """Check the tree in depth-first order. Raises NotProvenError with the index of a wrong
        node."""
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
    """The boxes of the node's children: first the second child's, then the first child's."""
    variable = node.get("count", ""), node.get("stage", 0)
    if variable not in box or variable[0][0] not in COUNTS:
        raise NotProvenError(f"{where}: no count {variable[0]!r} of stage {variable[1]}")
    low, high = box[variable]
    most = Fraction(node.get("most", -1))
    if not low <= most < high:
        raise NotProvenError(f"{where}: most: expected {low} to {high - 1}, got {most}")
    return box | {variable: (most + 1, high)}, box | {variable: (low, most)}
