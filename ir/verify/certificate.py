"""Verifies certificates: proofs that no schedule of an instance costs less than a lower bound.

The check uses exact fractions and takes the instance from the schedule's document. It shares no
code with the solver, and uses no numbers that the solver has computed. The arguments are:

- ``work``: the cost is at least the sum of the op times of a rank, which runs one op at a time.
- ``critical-path``: the cost is at least the time of one microbatch through all stages and back.
- ``moments``, if each stage has its own rank: inequalities between moments of the stages, which
  contradict each other if a schedule costs less (:mod:`.certificates.moments`).
- ``slots`` (:mod:`.certificates.slots`) and ``arrivals`` (:mod:`.certificates.arrivals`): formulas,
  which are evaluated again by this check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from ..documents.validation import validated
from ..formats.certificate import CertificateDocument
from .certificates.arrivals import arrivals
from .certificates.least import NotProvenError, expect_alone, times_of
from .certificates.moments import check_moments
from .certificates.slots import slots
from .schedule_facts import Facts, read_facts

CLAIM = Fraction(1, 10**6)
"""Relative amount by which the lower bound in a schedule's report may exceed the proven one; it
equals the tolerance of the status "optimal"."""

ClosedForm: TypeAlias = Callable[[Facts, Mapping[str, Any]], Fraction]


def _work(facts: Facts, rank: int) -> Fraction:
    expect_alone(facts)
    pairs = {(run.stage, run.microbatch) for run in facts.runs if run.rank == rank}
    return sum((sum(times_of(facts.at(*pair)), Fraction(0)) for pair in pairs), Fraction(0))


def _critical_path(facts: Facts) -> Fraction:
    """The minimum time, in ms, of one microbatch through all stages and back.

    It consists of all F's and B's of the microbatch, the messages between them, and its W on stage
    0. If microbatches differ, the result is the maximum over all of them.
    """
    expect_alone(facts)
    ranks = {(run.stage, run.microbatch): run.rank for run in facts.runs}
    stages, delay = range(facts.plan.stages), facts.network.delay
    like = {  # one microbatch of those with equal ranks and times
        tuple((ranks[s, j], id(facts.at(s, j))) for s in stages): j
        for j in range(facts.plan.microbatches)
    }

    def of(j: int) -> Fraction:
        total = times_of(facts.at(0, j))[2]
        for s in stages:
            total += sum(times_of(facts.at(s, j))[:2])
            if s:
                ends, size = (ranks[s - 1, j], ranks[s, j]), facts.at(s - 1, j).activation_bytes
                total += Fraction(delay(*ends, size)) + Fraction(delay(*ends[::-1], size))
        return total

    return max(map(of, like.values()))


CLOSED_FORMS: Mapping[str, ClosedForm] = {
    "work": lambda facts, argument: _work(facts, argument.get("rank", 0)),
    "critical-path": lambda facts, _: _critical_path(facts),
    "slots": lambda facts, argument: slots(facts, argument.get("stage", 0)),
    "arrivals": lambda facts, _: arrivals(facts),
}
"""For each kind of argument except ``moments``, the function that computes the bound it proves.

The function takes the contents of the schedule document and the certificate's ``argument``. It
returns a lower bound in ms, and raises NotProvenError if the argument does not apply.
"""


def verify_certificate(schedule: dict[str, Any], document: object, where: str) -> list[str]:
    """A list with the reason why a certificate does not prove the lower bound of a schedule.

    The list is empty if the certificate proves the bound. ``schedule``: a valid schedule document.
    ``document``: the certificate. ``where``: the name of the certificate's file, for messages.
    Raises InputError if ``document`` is not a certificate.
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
        check_moments(facts, bound, argument.get("paths", []))
        return
    proven = CLOSED_FORMS[argument["kind"]](facts, argument)
    if proven < bound:
        raise NotProvenError(
            f"argument: {argument['kind']}: proves {float(proven):.9g}, expected lower_bound, "
            f"{float(bound):.9g}"
        )
