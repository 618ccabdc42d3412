"""The order of ops of an earlier schedule, for a search to begin with."""

from __future__ import annotations

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.solver.core.options import Order

from .documents import Document, Planned, read_schedule
from .placement_spec import PlacementSpec


def order_of(start: Schedule | Planned | Document, problem: Problem) -> Order:
    """The order of ``start``, an object or a file.

    Raises InputError that begins with ``start`` where it is of other stages, ranks or numbers of
    microbatches than ``problem``, sends weights, or has ops at once.
    """
    given, where = read_schedule(start)
    if Passing.ACTIVATIONS is not given.problem.placement.passing or any(given.pairs):
        raise InputError(f"start: {where}: expected activations sent, and one op at a time")
    expected, found = problem.owner, given.problem.owner
    if expected.shape != found.shape:
        raise InputError(f"start: {where}: expected {_size(problem)}, got {_size(given.problem)}")
    if (expected != found).any():
        raise InputError(f"start: {where}: expected each stage on the rank where it is planned")
    return given.order


def placement_of(start: Schedule | Planned | Document) -> PlacementSpec:
    """The placement of ``start``. Raises InputError where it cannot be read."""
    placement = read_schedule(start)[0].problem.placement
    if placement.kind is PlacementKind.CUSTOM:
        return PlacementSpec.of(placement.owners)
    sends_weights = placement.passing is Passing.WEIGHTS  # which :func:`order_of` refuses
    return PlacementSpec.of("linear" if sends_weights else placement.name)


def _size(problem: Problem) -> str:
    microbatches = counted(problem.microbatches, "microbatch")
    return f"{counted(problem.stages, 'stage')} and {microbatches}"
