"""The problem that a profile and options define, with slow ranks (``--slow``) if there are any, and
the initial order of ops from an earlier schedule."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from pipeloom.ir.documents.fields import MOST_PAIRS
from pipeloom.ir.errors import InputError, UnsupportedError
from pipeloom.ir.formats import check_profile
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import Passing, Placement, PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.stage_profile import EACH
from pipeloom.ir.units import counted
from pipeloom.solver.core.options import Order
from pipeloom.solver.core.relaxations import with_stages
from pipeloom.solver.partition.cuts import Rules
from pipeloom.solver.placement.replication import BIDIRECTIONAL, why_one_way

from ..solving.progress import Event, Listener, Note, unheard
from .documents import Document, Planned, read_document, read_schedule
from .placement_spec import PlacementSpec
from .words import bytes_beside, check_whole, memory_limit_of

Slow: TypeAlias = Mapping[int, float] | None
"""For each slow rank, the factor by which its times are multiplied; None if no rank is slow."""


class ProfileSource:
    """A profile as the user gave it: an object, a JSON object, or a file, which is read once.

    ``where``: the profile's name in messages. Keys that may be misspelled are reported to
    ``progress`` as notes, or as Python warnings if there is no listener. Objects must satisfy the
    same rules as files.
    """

    def __init__(self, given: ProfileLike, progress: Listener | None = None) -> None:
        """Raise InputError if a file cannot be read, and TypeError if ``given`` is not a
        profile."""
        self._object: Profile | LayeredProfile | None = None
        self._document: dict[str, Any] = {}
        self._tell, self.where = progress or _warn, "profile"
        if isinstance(given, Profile | LayeredProfile):
            self._object = given
        elif isinstance(given, str | os.PathLike | Mapping):
            self._document, self.where = read_document(given, "profile")
        else:
            raise TypeError(f"profile: expected a profile or its file, got {given!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process: without the listener, as other processes report
        nothing."""
        return self.__dict__ | {"_tell": unheard}

    @classmethod
    def of(cls, given: ProfileLike | ProfileSource, progress: Listener | None) -> ProfileSource:
        return given if isinstance(given, ProfileSource) else cls(given, progress)

    @property
    def has_layers(self) -> bool:
        return isinstance(self._object, LayeredProfile) or self._document.get("layers") is not None

    @property
    def has_stages(self) -> bool:
        return "stages" in self._document or not self.has_layers

    def is_cut(self, **options: Any) -> bool:
        """Return whether layers are to be cut into stages: if the profile has no stages, or if one
        of ``options``, which ask for a cut, is not None.

        Raises InputError if an option asks for a cut and there are no layers.
        """
        asked = next((name for name, value in options.items() if value is not None), None)
        if asked is not None and not self.has_layers:
            raise InputError(
                f"{self.where}: layers: missing; expected a list for --{asked.replace('_', '-')}"
            )
        return asked is not None or not self.has_stages

    @cached_property
    def stages(self) -> Profile:
        """The profile by stages. Raises InputError with every fault of its file."""
        from pipeloom.ir.formats import parse_profile

        if isinstance(self._object, Profile):
            check_profile(self._object, self.where)
            return self._object
        profile = parse_profile(self._document, self.where)
        self._check_pieces(profile.stages, profile)
        return profile

    @cached_property
    def layers(self) -> LayeredProfile:
        """The profile by layers. Raises InputError with every fault of its file."""
        from pipeloom.ir.formats import parse_layers

        if isinstance(self._object, LayeredProfile):
            check_profile(self._object, self.where)
            return self._object
        profile = parse_layers(self._document, self.where)
        self._check_pieces(profile.layers, profile.cluster)
        return profile

    def check(self) -> None:
        """Read the stages, or the layers if there are no stages. Raises InputError with every
        fault."""
        _ = self.pieces

    @property
    def cluster(self) -> Profile:
        """The profile by stages; if there are only layers, a profile without stages, which contains
        the ranks, links and limits."""
        return self.stages if self.has_stages else self.layers.cluster

    @property
    def objective(self) -> Objective:
        """The default objective: the makespan if the profile has a barrier, else the period."""
        return Objective.MAKESPAN if self.cluster.barrier else Objective.PERIOD

    @property
    def pieces(self) -> Sequence[StageProfile]:
        """The stages, or the layers if there are no stages."""
        return self.stages.stages if self.has_stages else self.layers.layers

    @property
    def in_place(self) -> Schedule | None:
        """The schedule, if a schedule or a program was given instead of a profile; None if a
        profile was given."""
        kind = self._document.get("format")
        if kind not in ("pipeloom.schedule", "pipeloom.program"):
            return None
        return read_schedule(self._document, compiled=True, where=self.where)[0]

    def number(self, microbatches: int | None) -> int:
        """Return the number of microbatches: the given one, or else the length of the lists in the
        profile, which have one number per microbatch.

        Raises InputError if neither is known, or if they differ.
        """
        found = self.cluster.microbatches
        if found is None and microbatches is None:
            raise InputError(
                f"microbatches: missing; expected a number, as {self.where} has no lists of one "
                "number per microbatch"
            )
        if found is not None and microbatches not in (None, found):
            raise InputError(
                f"microbatches: expected {found}, as many as the lists in {self.where} have "
                f"numbers, got {microbatches}"
            )
        return (found or 0) if microbatches is None else microbatches

    def _check_pieces(self, pieces: Sequence[StageProfile], cluster: Profile) -> None:
        """Report parts of the profile that are not used, and doubtful values, as notes.

        ``pieces``: its stages or layers; ``cluster``: the profile with its ranks and limits. Raises
        InputError if all times are 0, or if memory is given in two units.
        """
        from pipeloom.ir.formats import doubtful_keys

        if not any(one.t_f + one.t_b + one.t_w + one.fused > 0 for one in pieces):
            words = "t_f, t_b, t_w: expected more than 0 ms somewhere, got 0 in all"
            raise InputError(f"{self.where}: {words}")
        held = max(piece.m_b for piece in pieces)
        for key in ("memory_limit", "device_memory"):
            if any(bytes_beside(held, size) for size in getattr(cluster, key) or ()):
                words = f"expected the unit of m_b, which is at most {held:g}, or null, got bytes"
                raise InputError(f"{self.where}: {key}: {words}")
        for line in doubtful_keys(self._document, self.where):
            self._tell(Note(line))
        for line in _doubts(pieces, cluster):
            self._tell(Note(f"note: {self.where}: {line}"))


def _doubts(pieces: Sequence[StageProfile], cluster: Profile) -> Iterator[str]:
    """Yield a note, as text, for each doubtful delay or size of messages.

    ``pieces``: the profile's stages or layers; ``cluster``: the profile with its ranks and links.
    """
    if cluster.t_comm is None:
        sizes = [piece.activation_bytes for piece in pieces[:-1]]
        if cluster.links is not None and cluster.ranks > 1 and None in sizes:
            yield "activation_bytes: missing: if activations are sent, only latency counts"
        return
    longest, delay = max(max(p.t_f, p.t_b, p.t_w) for p in pieces), cluster.delays(0.0).max()
    if delay > 1e3 * longest > 0 or longest > 1e5 * delay > 0:
        words = f"t_comm is {delay:g} ms, and the longest t_f, t_b or t_w {longest:g} ms"
        yield f"{words}: are both in milliseconds?"


def _warn(event: Event) -> None:
    warnings.warn(str(event), stacklevel=2)


ProfileLike: TypeAlias = Profile | LayeredProfile | Document


def check_microbatches(microbatches: int, stages: int) -> None:
    """Raise InputError unless ``microbatches`` is an integer >= 1 with at most MOST_PAIRS pairs of
    stage and microbatch."""
    check_whole("microbatches", microbatches)
    most = max(1, MOST_PAIRS // max(1, stages))
    if not 1 <= microbatches <= most:
        raise InputError(
            f"microbatches: expected at {f'most {most}' if microbatches > most else 'least 1'} "
            f"for {counted(stages, 'stage')}, got {microbatches}"
        )


def with_remat(profile: Profile, recompute: str, offload: str, missing: str) -> Profile:
    """Return ``profile``, without the possibility of recomputation or of offload if the respective
    option is ``none``.

    Raises InputError with the prefix ``missing`` if ``recompute`` is ``all`` and no stage can be
    recomputed.
    """
    from pipeloom.solver.core.relaxations import without_offloading, without_recomputing

    if recompute == "all" and all(stage.t_r is None for stage in profile.stages):
        raise InputError(f"{missing}: t_r: missing; expected it with m_r for --recompute all")
    if recompute == "none":
        profile = without_recomputing(profile)
    return without_offloading(profile) if offload == "none" else profile


def check_alike(profile: Profile, where: str, what: str) -> None:
    """Raise InputError if the values of any stage differ between microbatches; the message names
    the first such list.

    ``where``: the list of stages or layers in messages. ``what``: the function or option, in words,
    that does not support such lists.
    """
    for s, stage in enumerate(profile.stages):
        for key in EACH:
            if len({getattr(one, key) for one in stage.each}) > 1:
                raise InputError(f"{where}[{s}]: {key}: expected one number for {what}, got a list")


def stages_of(
    source: ProfileSource, microbatches: int, recompute: str = "auto", offload: str = "auto"
) -> Profile:
    """Return the profile by stages. Raises InputError if the number of microbatches is too large
    for it, or if an option does not match the profile."""
    profile = source.stages
    check_microbatches(microbatches, profile.num_stages)
    return with_remat(profile, recompute, offload, f"{source.where}: stages")


def layers_of(
    source: ProfileSource, recompute: str = "auto", offload: str = "auto"
) -> LayeredProfile:
    """Return the profile by layers. Raises InputError if an option does not match the profile."""
    profile = source.layers
    cluster = with_remat(profile.as_stages, recompute, offload, f"{source.where}: layers")
    return replace(profile, layers=cluster.stages, cluster=replace(cluster, stages=()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Everything that defines a problem, except its stages (or layers) and their placement.

    ``memory_limit``: None for the profile's own limit. ``where``: the profile's name in messages.
    ``slow``: for each slow rank, the factor by which its times are multiplied. ``rules``: which
    cuts of layers are allowed. ``kinds``: the kinds of placements to try.
    """

    microbatches: int
    memory_limit: float | None
    objective: Objective
    where: str
    slow: Slow = None
    rules: Rules = Rules()  # noqa: RUF009 - frozen
    kinds: Collection[PlacementKind] = tuple(PlacementKind)

    @classmethod
    def of(cls, request: Any, source: ProfileSource, **more: Any) -> Terms:
        """Return the terms of a request for the profile ``source``; ``more``: further fields.
        Raises InputError if the number of microbatches or the memory limit is invalid."""
        return cls(
            microbatches=source.number(request.microbatches),
            memory_limit=memory_limit_of(getattr(request, "memory_limit", None), source),
            objective=Objective(request.objective or source.objective),
            where=source.where,
            **more,
        )

    @property
    def limits(self) -> dict[str, Any]:
        """Memory limit and objective, as keyword arguments of functions that build or solve."""
        return {"memory_limit": self.memory_limit, "objective": self.objective}


def make_problem(
    profile: Profile, terms: Terms, spec: PlacementSpec, passing: str = "activations"
) -> Problem:
    """Return the problem for the optimizer.

    ``passing``: ``weights`` distributes microbatches round-robin over the ranks instead of placing
    stages. Raises InputError if the profile, or the number of microbatches, does not match the
    placement.
    """
    if passing == "weights":
        placed = _round_robin(profile, spec)
    else:
        profile, placed = spec.place(profile, terms.where)
    if placed.kind is PlacementKind.BIDIRECTIONAL:
        why_not = why_one_way(profile, terms.microbatches)
        if why_not is not None:
            raise UnsupportedError(f"{terms.where}: the placement {BIDIRECTIONAL} {why_not}")
    limit = profile.limit_from(terms.memory_limit)
    problem = Problem(profile, terms.microbatches, placed, limit, terms.objective)
    return slowed(problem, terms.slow)


def _round_robin(profile: Profile, spec: PlacementSpec) -> Placement:
    """Return the placement in which rank j mod P runs all stages of microbatch j. Raises InputError
    if a placement other than ``linear``, the default, was requested."""
    if spec.name != "linear":
        raise InputError(
            "placement: expected none with --passing weights, where every rank runs all stages, "
            f"got {spec.name!r}"
        )
    return Placement.round_robin(profile.ranks)


def order_of(start: Schedule | Planned | Document, problem: Problem) -> Order:
    """Return the order of ops of ``start``, an object or a file with a schedule.

    Raises InputError with the prefix ``start`` if its stages, their ranks or its number of
    microbatches differ from those of ``problem``, if it passes weights, or if it has fused pairs.
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
    """Return the placement of ``start``, an object or a file with a schedule. Raises InputError if
    it cannot be read."""
    placement = read_schedule(start)[0].problem.placement
    if placement.kind is PlacementKind.CUSTOM:
        return PlacementSpec.of(placement.owners)
    sends_weights = placement.passing is Passing.WEIGHTS  # :func:`order_of` rejects it later
    return PlacementSpec.of("linear" if sends_weights else placement.name)


def _size(problem: Problem) -> str:
    microbatches = counted(problem.microbatches, "microbatch")
    return f"{counted(problem.stages, 'stage')} and {microbatches}"


_TIMES = ("t_f", "t_b", "t_w", "t_bw", "t_fb", "t_r")


def slowed(problem: Problem, slow: Slow) -> Problem:
    """Return the problem with the times of slow ranks multiplied by their factors, and with these
    ranks in the profile's name; the problem itself if no rank is slow.

    Raises InputError for an invalid factor or rank, or if a stage runs on several ranks.
    """
    if not slow:
        return problem
    _check(slow, problem.ranks)
    if problem.placement.passing is not Passing.ACTIVATIONS:
        two = problem.placement.kind is PlacementKind.BIDIRECTIONAL
        got = "--placement bidirectional" if two else "--passing weights"
        raise InputError(f"slow: expected each stage on one rank, got {got}")
    times = [slow.get(rank, 1.0) for rank in problem.owner[:, 0].tolist()]
    found = with_stages(problem, lambda stage, own: stage.scaled(own, _TIMES), times)
    ranks = [f"rank {rank} takes {factor:g}x as long" for rank, factor in sorted(slow.items())]
    name = ", ".join(filter(None, [found.profile.name, *ranks]))
    return replace(found, profile=replace(found.profile, name=name))


def _check(slow: Mapping[int, float], ranks: int) -> None:
    for rank, times in slow.items():
        if isinstance(times, bool) or not (isinstance(times, int | float) and 0 < times < math.inf):
            raise InputError(f"slow: expected a number > 0 of rank {rank}, got {times!r}")
        if not 0 <= rank < ranks:
            raise InputError(f"slow: expected ranks 0..{ranks - 1}, got {rank}")
