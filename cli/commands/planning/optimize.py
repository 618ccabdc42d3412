"""Finds the best schedule for a profile under its memory limit, with a certified lower bound.

Ctrl-C or SIGTERM writes the best schedule so far.

example:
  pipeloom optimize profile.json -m 24 --memory-limit 16 -o schedule.json
  pipeloom optimize profile.json -m 24 --placement interleaved:2 -o schedule.json
  pipeloom optimize profile.json -m 24 --passing weights -o schedule.json
  pipeloom optimize profile.json -m 24 --passing auto -o schedule.json
  pipeloom optimize layers.json -m 24 --max-layers 8 -o schedule.json
  pipeloom optimize profile.json -m 24 --memory-limit 4 --recompute auto -o schedule.json
  pipeloom optimize profile.json -m 8 --certificate certificate.json -o schedule.json
  pipeloom optimize profile.json -m 8 --time-limit 10 --json
  pipeloom optimize batch.json --start last.json --time-limit 0.5 -o schedule.json
  pipeloom optimize layers.json -m 24 --for megatron -o schedule.json
  pipeloom optimize profile.json -m 24 --memory-limit 12 --explain -o schedule.json
  pipeloom optimize profile.json -m 24 --slow 3:1.2 -o schedule.json
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError
from pipeloom.planner.requests.fields import option
from pipeloom.planner.requests.search import OptimizeRequest

from ...arguments import Quiet, WritingCommand
from ...failures import say
from ...inputs import searched
from ...output import check_apart, check_output, finish

if TYPE_CHECKING:
    from pipeloom.planner.inputs.problem_setup import ProfileSource
    from pipeloom.planner.results.result import Result


@dataclass(frozen=True, kw_only=True)
class OptimizeCommand(WritingCommand, Quiet, OptimizeRequest):
    """The command ``pipeloom optimize``: calls :func:`pipeloom.optimize`, and writes the
    schedule."""

    explain: bool = option(default=False)
    """explain why no schedule is cheaper, and where the one found idles"""
    certificate: str | None = option("FILE")
    """also write a certificate of the schedule's lower bound, which verify --certificate checks
    with code that shares nothing with the solver"""

    def run(self) -> int:
        check_output(self)
        if self.certificate:
            self._check_certificate(self.certificate)
        answer = searched(self, self._plan, OptimizeRequest, self.quiet)
        if answer.stopped:
            best = "this is the best schedule so far"
            say(f"interrupted: {best if answer.step is None else 'not every scheme was optimized'}")
        facts, words = answer.to_dict(), str(answer)
        if self.explain:
            explained = answer.explain()
            facts, words = facts | {"explanation": explained.to_dict()}, f"{words}\n\n{explained}"
        certified = bool(self.certificate) and _certify(str(self.certificate), answer)
        if self.certificate:
            facts |= {"certificate": self.certificate if certified else None}
        finish(self, answer.document, facts, words, answer.schedule)
        return 0 if certified or not self.certificate else 1

    def _check_certificate(self, path: str) -> None:
        """Raise InputError if ``path`` cannot be written or is the schedule's file."""
        from pipeloom.ir.formats import check_writable

        if path == "-":
            raise InputError("certificate: expected a file, got - (standard output)")
        schedule = "-" if self.output is None and not self.json else self.output
        if schedule is not None and os.path.realpath(path) == os.path.realpath(schedule):
            raise InputError(f"certificate: expected another file than the schedule's, got {path}")
        check_apart(self, "certificate", path)
        check_writable(path)

    def _plan(self, profile: ProfileSource, **asked: Any) -> Result:
        from pipeloom.planner.optimize import optimize
        from pipeloom.planner.results.certificate import check_certifiable

        if self.certificate:
            check_certifiable(profile)
        return optimize(profile, **asked)


def _certify(path: str, answer: Result) -> bool:
    """Write the certificate of ``answer`` to ``path``, and return True.

    If there is no certificate, print a message and return False.
    """
    from pipeloom.ir.formats import write_json
    from pipeloom.planner.results.certificate import shortfall

    try:
        certificate = answer.certificate()
    except InputError as error:
        say(f"--{error}; {path} is not written")
        return False
    write_json(certificate, path)
    if words := shortfall(certificate, answer.schedule):
        say(f"note: {path} {words}")
    return True
