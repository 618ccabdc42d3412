"""A program for each batch of sequences, by costs that follow what steps took: what ``tune`` packs
with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.packing_document import parse_lengths
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..inputs.documents import Document, read_document
from ..pack import Packing, pack
from ..packing.balance import Microbatches
from ..packing.refit import refit
from ..packing.sequence_costs import SequenceCosts
from .replan import relays

QUICK = 0.01
"""Work of a packing that is not run."""


@dataclass(slots=True)
class Repacker:
    """Packs and plans each step's batch, beginning with the last one's order of ops.

    ``first``: whose placement, number of microbatches, limits and profile are those of all, and as
    which they are compiled; where its microbatches were packed, by the profile that they were
    packed by, and with its own order of ops for the first batch. ``tied``: groups of stages that
    share parameters. ``time_limit``: seconds for each plan. ``max_tokens``: of a microbatch at
    most.
    """

    first: Program
    tied: Sequence[Sequence[int]]
    time_limit: float
    seed: int
    max_tokens: int | None = None
    _profile: Profile = field(init=False)
    _length: int | None = None  # tokens of each sequence of the microbatch that was measured
    _attention: dict[str, Any] | None = None
    _packings: list[Packing] = field(default_factory=list)
    _document: dict[str, Any] = field(default_factory=dict)
    _last: Schedule | None = None

    def __post_init__(self) -> None:
        problem = self.first.schedule.problem
        if (problem.owner != problem.owner[:, :1]).any():
            raise InputError("schedule: placement: expected one rank a stage where tune packs")
        self._profile = replace(problem.profile.unpacked, memory_limit=problem.memory_limit)
        if (packing := problem.profile.packing) is not None:
            self._length, self._last = packing.reference_length, self.first.schedule

    def check(self, batch: Document) -> Microbatches:
        """The microbatches of a quick packing. Raises as :meth:`plan`."""
        document, where = read_document(batch, "lengths")
        self._check_reference(document, where)
        return self._packed(document, work_limit=QUICK).replicas[0]

    def plan(self, batch: Document) -> tuple[Program, Microbatches]:
        """The program of a batch, a lengths file or its object, and the sequences of each of its
        microbatches. Raises InputError for what is wrong, InfeasibleError where nothing fits."""
        document, where = read_document(batch, "lengths")
        self._check_reference(document, where)
        if self._attention is not None:
            document = document | {"attention": self._attention, "model": None}
        whole = self._number(document) == self.first.schedule.problem.microbatches
        start = self._last if whole else None
        packing = self._packed(document, start=start, time_limit=self.time_limit)
        (found,) = packing.schedules
        self._last = found if whole else self._last
        self._document, self._length = document, document["reference_length"]
        self._packings.append(packing)
        post = relays(self.first)
        program = compile_schedule(found, tied=self.tied, post_validation=post)
        return program, packing.replicas[0]

    def _check_reference(self, document: Mapping[str, Any], where: str) -> None:
        found = document.get("reference_length")
        if self._length not in (None, found):
            raise InputError(
                f"{where}: reference_length: expected {self._length}, as before, got {found}"
            )

    def _number(self, document: Mapping[str, Any]) -> int:
        """The first program's microbatches, or as many as sequences where these are fewer."""
        lengths = document.get("lengths")
        most = self.first.schedule.problem.microbatches
        return min(most, len(lengths)) if lengths and isinstance(lengths, list) else most

    def _packed(self, document: dict[str, Any], **options: Any) -> Packing:
        problem = self.first.schedule.problem
        return pack(
            document,
            replace(self._profile, data_parallel=None),
            self._number(document),
            max_tokens=self.max_tokens,
            objective=problem.objective,
            placement=problem.owner[:, 0].tolist(),
            seed=self.seed,
            **options,
        )

    def learn(self, traces: Sequence[Schedule]) -> None:
        """Takes the times of the last of the steps that were planned since the last time."""
        steps = zip(self._packings[-len(traces) :], traces, strict=True)
        self._profile, document = refit(self._profile, self._document, steps)
        self._attention, self._packings = document["attention"], []

    def learnt(self) -> tuple[Program, Mapping[str, Any] | None]:
        """The first program on the profile that was measured, and the shares that go with it."""
        first = self.first.schedule
        problem = replace(first.problem, profile=self._profile)
        if (packing := first.problem.profile.packing) is not None:
            problem = self._of(problem, packing.lengths, packing.microbatches)
        schedule = timed(replace(first, problem=problem, report=None))
        return replace(self.first, schedule=schedule), self._attention

    def _of(
        self, problem: Problem, lengths: Sequence[int], rows: Sequence[Sequence[int]]
    ) -> Problem:
        """The problem with microbatches of these sequences, by the costs that were measured."""
        document = self._document | {"lengths": list(lengths)}
        document |= {"attention": self._attention, "model": None}
        return SequenceCosts.of(problem, parse_lengths(document, "lengths"), "lengths").problem_of(
            rows
        )
