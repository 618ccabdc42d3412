"""``verify``: whether a schedule or program is valid, independently of its origin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.documents.json_reader import format_hint
from pipeloom.ir.errors import InfeasibleError, InputError, show
from pipeloom.ir.formats import PROGRAM, SCHEDULE, dump_program, dump_schedule
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration
from pipeloom.ir.verify.certificate import verify_certificate
from pipeloom.ir.verify.program import verify_program
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bounds
from pipeloom.solver.core.tolerances import CLOSED

from .inputs.documents import Document, Planned, naming, read_document, read_schedule


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a schedule or a program (``kind``).

    ``violations``: one line each; empty if it is valid. ``averaging``: time that averaging of
    gradients over replicas adds to the cost, in milliseconds; None without replicas, or if there
    are violations. ``where``: the input's name in messages. ``bound``: whether the claimed lower
    bound is confirmed, by a closed-form bound or by the certificate; None if none is claimed.
    """

    kind: str
    violations: list[str]
    averaging: float | None
    where: str
    bound: bool | None = None

    @property
    def ok(self) -> bool:
        return not self.violations

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``verify --json`` prints, without the file's name."""
        answer = {"kind": self.kind, "ok": self.ok, "violations": self.violations}
        bound = {} if self.bound is None else {"lower_bound": _CHECKED[self.bound]}
        return answer | bound | ({} if self.averaging is None else {"averaging": self.averaging})

    def __str__(self) -> str:
        if self.violations:
            return "\n".join(f"{self.where}: {violation}" for violation in self.violations)
        words = f"ok: {self.where} is a valid {self.kind}"
        if self.bound is not None:
            words += f"; its lower bound is {_CHECKED[self.bound]}"
        if self.averaging is None:
            return words
        return f"{words}; {duration(self.averaging)} of averaging left after ops"


_CHECKED = {True: "checked", False: "not checked, but taken from the file"}
_VERIFIERS: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]] = {
    SCHEDULE: ("schedule", verify_schedule),
    PROGRAM: ("program", verify_program),
}


def verify(
    given: Schedule | Planned | Document, *, certificate: Document | None = None
) -> Verification:
    """Verify a schedule or program, given as an object, a JSON object or a file, independently of
    its origin.

    Its lower bound is only a claim. It is checked against closed-form bounds, or, if
    ``certificate`` is given, by the certificate (:meth:`.result.Result.certificate`), with code
    that shares nothing with the solver; whatever the certificate does not prove is a violation.

    Raises InputError if the input is neither a schedule nor a program, or lacks a required key.
    """
    document, where = _document(given)
    format_name = document.get("format")
    if not isinstance(format_name, str) or format_name not in _VERIFIERS:
        got = "nothing" if format_name is None else show(format_name)
        raise InputError(
            f'{where}: format: expected "{SCHEDULE}" or "{PROGRAM}", got {got}'
            f"{format_hint(SCHEDULE, format_name)}"
        )
    kind, verifier = _VERIFIERS[format_name]
    with naming(where):
        violations = verifier(document)
    if violations:
        return Verification(kind, violations, None, where)
    with naming(where):
        checked = bound_is_checked(read_schedule(document, compiled=True)[0])
    if certificate is not None and (lines := _unproven(document, certificate)):
        also = "; a bound in closed form proves the claim, without --certificate" if checked else ""
        return Verification(kind, [f"{line}{also}" for line in lines], None, where)
    checked = True if certificate is not None else checked
    return Verification(kind, [], _averaging(document), where, checked)


def _unproven(document: dict[str, Any], certificate: Document) -> list[str]:
    """Return a line for each claim of ``document`` that the certificate does not prove."""
    found, where = read_document(certificate, "certificate")
    lines = verify_certificate(schedule_in(document), found, where)
    return [f"{where}: {line}" for line in lines]


def schedule_in(document: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of the schedule: in a program, of the schedule from which it was
    compiled."""
    return document["schedule"] if document.get("format") == PROGRAM else document


def bound_is_checked(schedule: Schedule) -> bool | None:
    """Return whether a closed-form bound confirms the lower bound in the schedule's report; None if
    the report claims none.

    This takes a fraction of a second, although the claimed bound may have taken minutes of search.
    """
    claimed = None if schedule.report is None else schedule.report.lower_bound
    if claimed is None:
        return None
    with suppress(InfeasibleError):  # for example a measured schedule
        least = claimed * (1 - CLOSED)
        return any(bound.value >= least for bound in lower_bounds(schedule.problem))
    return False


def _document(given: Schedule | Planned | Document) -> tuple[dict[str, Any], str]:
    if isinstance(given, Program):
        return dump_program(given), "program"
    if isinstance(given, Schedule | Planned):
        return dump_schedule(read_schedule(given)[0]), "schedule"
    return read_document(given, "document")


def _averaging(document: dict[str, Any]) -> float | None:
    """Return the time that averaging of gradients over replicas adds to the cost of a valid
    schedule or program, in milliseconds; None without replicas."""
    report = schedule_in(document)["report"]
    iteration = report.get("iteration_time", report.get("step"))
    return None if iteration is None else float(iteration - report[report["objective"]])
