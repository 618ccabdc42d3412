"""Steps of other programs than a pipeline's own: of other numbers of microbatches, or a step's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..rank.checks import checked_count, checked_program
from ..rank.consistency import same
from ..rank.options import Programs
from .first_step import StepRequest

if TYPE_CHECKING:
    from .rank_pipeline import RankPipeline


class StepPrograms:
    """The pipelines that run steps of ``own``, beside itself, with its stages.

    ``given``: that of the last step with a program of its own, kept until a step is given another;
    ``make``: makes the program of another number of microbatches, if there are several.
    """

    def __init__(self, own: RankPipeline, make: Programs | None) -> None:
        self._own, self._make = own, make
        self._by_count: dict[int, RankPipeline] = {}
        self.given: RankPipeline | None = None

    def of_step(self, program: Program | None, microbatches: int | None, *, update: bool) -> Any:
        """The pipeline of a step: of the step's own ``program``, or of so many ``microbatches``,
        made when they are first asked for; all ranks call it."""
        own, first = self._own, self._own._first
        ask = partial(self._asked, program, microbatches, update)
        with own.together():
            asked = (ask() if first.over else first.agree(ask)).program
        if program is None:
            return self._of_count(asked)
        for known in filter(None, (own, self.given)):
            if same(known.program, program):
                return known
        self.given = own._instead(self.given, program)
        return self.given

    def _of_count(self, program: Program) -> RankPipeline:
        """The pipeline of another number of microbatches, made when it is first asked for."""
        count = program.schedule.problem.microbatches
        if program is not self._own.program and count not in self._by_count:
            self._by_count[count] = self._own.with_program(program)
        return self._by_count.get(count, self._own)

    def _asked(
        self, program: Program | None, microbatches: int | None, update: bool
    ) -> StepRequest:
        """This rank's request. Raises InputError for what cannot be."""
        if program is None:
            count = self._own.microbatches if microbatches is None else checked_count(microbatches)
            return StepRequest(self._of(count), False, update)
        if not isinstance(program, Program):
            raise InputError(f"program: expected a Program, got {type(program).__name__}")
        count = program.schedule.problem.microbatches
        if microbatches not in (None, count):
            raise InputError(f"microbatches: expected {count}, as program= has, got {microbatches}")
        return StepRequest(program, True, update)

    def _of(self, count: int) -> Program:
        """The program of so many microbatches, a new one where it is first asked for. Raises
        InputError."""
        if count == self._own.microbatches:
            return self._own.program
        if count in self._by_count:
            return self._by_count[count].program
        if self._make is None:
            raise InputError(
                f"microbatches: expected {self._own.microbatches}, as the program has, without "
                f"programs=, which makes others, got {count!r}"
            )
        return checked_program(self._make, count)
