"""``pack``: from the sequence lengths of a batch to microbatches and their schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats.lengths_document import parse_lengths
from pipeloom.ir.model.ops import IntArray
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule, gap_between
from pipeloom.ir.units import counted, duration
from pipeloom.report.summaries import percent
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.tolerances import ROUNDING

from .inputs.documents import read_document
from .inputs.placement_spec import AUTO, BIDIRECTIONAL, PlacementSpec
from .inputs.problem_setup import (
    ProfileSource,
    Terms,
    check_alike,
    make_problem,
    order_of,
    stages_of,
)
from .packing.costs import Microbatches, SequenceCosts, packing_bound
from .packing.search import by_replica, choose
from .requests.fields import takes
from .requests.search import PackRequest

TIME_LIMIT = 10.0
"""Default time limit, in seconds."""


@dataclass(frozen=True)
class Packing:
    """The sequences in each microbatch of each replica, and a schedule for each replica.

    ``lengths``: tokens of each sequence. ``replicas``: for each replica its microbatches, each a
    list of indices into ``lengths``. ``lower_bound``: lower bound on the slowest replica's cost, in
    milliseconds, over all packings into this number of microbatches and over all schedules.
    """

    lengths: tuple[int, ...]
    replicas: tuple[Microbatches, ...]
    schedules: tuple[Schedule, ...]
    lower_bound: float

    @property
    def cost(self) -> float:
        """Cost of the slowest replica, by the objective, in milliseconds."""
        return max(map(iteration_time, self.schedules))

    @property
    def gap(self) -> float:
        """(cost - lower bound) / cost."""
        return gap_between(self.cost, self.lower_bound)

    def __str__(self) -> str:
        count, replicas = sum(map(len, self.replicas)), len(self.replicas)
        where = f" of {counted(replicas, 'replica')}" if replicas > 1 else ""
        return (
            f"{counted(len(self.lengths), 'sequence')} of {sum(self.lengths)} tokens in "
            f"{counted(count, 'microbatch')}{where}: {duration(self.cost)} per step; no packing "
            f"takes less than {duration(self.lower_bound)} (gap {percent(self.gap)})"
        )


@takes(PackRequest)
def pack(request: PackRequest) -> Packing:
    """Pack sequences into microbatches such that the planned step is as short as possible, and
    schedule the microbatches.

    ``lengths``: a lengths file or its object, which lists the tokens of each sequence and describes
    the microbatch on which the profile was measured (``docs/packing.md``). ``profile``: a profile
    by stages. ``microbatches``: number of microbatches per replica. ``max_tokens``: maximum tokens
    of a microbatch. ``data_parallel``: number of replicas; by default that of the profile, or 1 if
    it has none. ``start``: a schedule with the same number of microbatches, whose order of ops is
    the initial one. ``time_limit``: seconds for packing and schedules together, 10 by default. The
    other arguments are as in ``optimize``.

    Recomputation, offload and fused pairs are not planned, and a BW takes the time of B plus W.
    Raises InputError for invalid input, and InfeasibleError if no packing fits.
    """
    if isinstance(request.lengths, list | tuple):
        keys = "lengths, reference_length and attention"
        raise InputError(f"lengths: expected a pipeloom.lengths object with {keys}, got a list")
    document, where = read_document(request.lengths, "lengths")
    given, problem = parse_lengths(document, where), _problem(request)
    over = problem.profile.data_parallel
    replicas = request.data_parallel or (over.size if over else 1)
    costs = SequenceCosts.of(problem, given, where)
    fit = tokens_that_fit(costs)
    most = min(fit, request.max_tokens or inf)
    limit = "max_tokens" if most < fit else "the memory limit"
    number = request.microbatches * replicas
    _check_room(costs.lengths, number, int(min(most, sum(given.lengths))), limit)
    order = None if request.start is None else order_of(request.start, problem)
    found = choose(costs, replicas, most, request.search(TIME_LIMIT), order)
    return Packing(
        tuple(given.lengths),
        tuple(by_replica(found.packed, request.microbatches)),
        tuple(found.schedules),
        packing_bound(costs, replicas),
    )


def _problem(request: PackRequest) -> Problem:
    """Return the problem in which every microbatch equals that of the profile. Raises InputError if
    the profile or an option is invalid."""
    source = ProfileSource.of(request.profile, request.progress)
    check_alike(source.stages, f"{source.where}: stages", "pack, which makes the lists")
    terms = Terms.of(request, source)
    stages = stages_of(source, terms.microbatches, "none", "none")
    bare = tuple(replace(stage, t_bw=None, t_fb=None) for stage in stages.stages)
    spec = PlacementSpec.of(request.placement or "linear")
    if spec.name in (AUTO, BIDIRECTIONAL):
        raise InputError(f"placement: expected one rank for each stage, got {spec.name}")
    return make_problem(replace(stages, stages=bare), terms, spec)


def _check_room(lengths: IntArray, number: int, most: int, limit: str) -> None:
    """Raise InfeasibleError if the longest sequence exceeds ``most`` tokens, or all sequences
    together exceed ``number`` microbatches of ``most`` tokens.

    ``limit``: what determines ``most``, in words.
    """
    longest, total = int(lengths.max()), int(lengths.sum())
    why = ""
    if longest > most:
        why = f"sequence {int(lengths.argmax())} has {longest}"
    elif total > most * number:
        why = f"the sequences have {total}"
    if why:
        room = f"{counted(number, 'microbatch')} of at most {most} tokens ({limit})"
        raise InfeasibleError(f"no packing: {room}, but {why}")


def tokens_that_fit(costs: SequenceCosts) -> float:
    """Return the largest number of tokens in a microbatch for which the microbatch fits in the
    memory limit of every rank."""
    problem = costs.problem
    held = np.bincount(problem.owner[:, 0], costs.held[0], problem.ranks)
    with np.errstate(divide="ignore"):
        return float((np.array(problem.memory_limit) / held).min()) * (1 + ROUNDING)
