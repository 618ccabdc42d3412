"""Steps of other programs than a pipeline's own: of other numbers of microbatches, or a step's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..rank.checks import checked_program
from ..rank.consistency import same
from ..rank.options import Programs
from .first_step import FirstStep, StepRequest
from .steps.step_io import checked_count

if TYPE_CHECKING:
    from .pipeline import Pipeline


class StepPrograms:
    """The pipelines that run steps of one, beside itself, with its stages.

    ``given``: that of the last step with a program of its own, kept until a step is given another;
    ``make``: makes the program of another number of microbatches, if there are several.
    """

    def __init__(self, first: FirstStep, make: Programs | None) -> None:
        self._first, self._make = first, make
        self._by_count: dict[int, Pipeline] = {}
        self.given: Pipeline | None = None

    @property
    def agreed(self) -> bool:
        """Whether all ranks have begun a step alike, or need not be asked."""
        return self._first.over

    def of_step(
        self,
        own: Pipeline,
        instead: Callable[[Pipeline | None, Program], Pipeline],
        program: Program | None,
        microbatches: int | None,
        *,
        update: bool,
    ) -> Pipeline:
        """The pipeline of a step of ``own``: of the step's own program, which ``instead`` makes in
        place of the last such one's, or of so many microbatches, made when they are first asked
        for; all ranks call it."""
        ask = partial(self._asked, own, program, microbatches, update)
        with own.together():
            asked = (ask() if self._first.over else self._first.agree(ask)).program
        if program is None:
            return self._of_count(own, asked)
        for known in filter(None, (own, self.given)):
            if same(known.program, program):
                return known
        self.given = instead(self.given, program)
        return self.given

    def _of_count(self, own: Pipeline, program: Program) -> Pipeline:
        """The pipeline of another number of microbatches, made when it is first asked for."""
        count = program.schedule.problem.microbatches
        if program is not own.program and count not in self._by_count:
            self._by_count[count] = own.with_program(program)
        return self._by_count.get(count, own)

    def _asked(
        self, own: Pipeline, program: Program | None, microbatches: int | None, update: bool
    ) -> StepRequest:
        """This rank's request. Raises InputError for what cannot be."""
        if program is None:
            count = own.microbatches if microbatches is None else checked_count(microbatches)
            return StepRequest(self._of(own, count), False, update)
        if not isinstance(program, Program):
            raise InputError(f"program: expected a Program, got {type(program).__name__}")
        count = program.schedule.problem.microbatches
        if microbatches not in (None, count):
            raise InputError(f"microbatches: expected {count}, as program= has, got {microbatches}")
        return StepRequest(program, True, update)

    def _of(self, own: Pipeline, count: int) -> Program:
        """The program of so many microbatches, a new one where it is first asked for. Raises
        InputError."""
        if count == own.microbatches:
            return own.program
        if count in self._by_count:
            return self._by_count[count].program
        if self._make is None:
            raise InputError(
                f"microbatches: expected {own.microbatches}, as the program has, without "
                f"programs=, which makes others, got {count!r}"
            )
        return checked_program(self._make, count)
