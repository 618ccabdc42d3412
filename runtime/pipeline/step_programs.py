"""Steps of other programs than a pipeline's own: of other numbers of microbatches, or a step's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..rank.checks import checked_program
from ..rank.options import Programs
from .agreement import StepAgreement, StepRequest
from .steps.step_io import checked_count

if TYPE_CHECKING:
    from .pipeline import Pipeline


class StepPrograms:
    """The pipelines that run steps of one, beside itself, with its stages.

    ``given``: that of the last step with a program of its own, kept until a step is given another;
    ``make``: makes the program of another number of microbatches, if there are several.
    """

    def __init__(self, agreement: StepAgreement, make: Programs | None) -> None:
        self._agreement, self._make = agreement, make
        self._by_count: dict[int, Pipeline] = {}
        self.given: Pipeline | None = None

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
        made: list[Program] = []
        asks = {"program=": program is not None, "update=False": not update}
        ask = partial(self._asked, own, program, microbatches, update, made)
        with own.together():
            words = [x for x, asked in asks.items() if asked]
            mine, places = self._agreement.check(ask, words, program)
        count = mine.microbatches
        if places == {1} and self.given is not None:
            return self.given
        if places != {0}:  # what one rank knows and another does not, a copy say, is new
            planned = self._by_count.get(count, own).program
            self.given = instead(self.given, program or next(iter(made), planned))
            return self.given
        if made:
            self._by_count[count] = own.with_program(made[0])
        return self._by_count.get(count, own)

    def _asked(
        self,
        own: Pipeline,
        program: Program | None,
        microbatches: int | None,
        update: bool,
        made: list[Program],
    ) -> StepRequest:
        """This rank's request. Raises InputError for what cannot be."""
        if program is None:
            count = own.microbatches if microbatches is None else checked_count(microbatches)
            return StepRequest(update, False, self._counted(own, count, made), 0)
        if not isinstance(program, Program):
            raise InputError(f"program: expected a Program, got {type(program).__name__}")
        count = program.schedule.problem.microbatches
        if microbatches not in (None, count):
            raise InputError(f"microbatches: expected {count}, as program= has, got {microbatches}")
        known = [own] if self.given is None else [own, self.given]
        place = next((i for i, each in enumerate(known) if each.program is program), None)
        return StepRequest(update, True, count, place)

    def _counted(self, own: Pipeline, count: int, made: list[Program]) -> int:
        """``count``, whose program is added to ``made`` where it is a new one. Raises
        InputError."""
        if count in (own.microbatches, *self._by_count):
            return count
        if self._make is None:
            raise InputError(
                f"microbatches: expected {own.microbatches}, as the program has, without "
                f"programs=, which makes others, got {count!r}"
            )
        made.append(checked_program(self._make, count))
        return count
