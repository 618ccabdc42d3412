"""A profile from measured ops: for each stage, the median times. Values that are not in the files
are taken from another profile of the same stages."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pipeloom.ir.documents.fields import MOST_RANKS, MOST_STAGES
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Figure, Measurement, fused_time
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted

from ..inputs.documents import Planned, read_schedule
from ..inputs.problem_setup import ProfileLike, ProfileSource
from ..inputs.words import memory_limit_of
from ..requests.fields import takes
from ..requests.measured import ProfileFromRequest
from ..solving.progress import Listener, Note, unheard
from .files import read_recordings
from .samples import MeasuredOps, Sample

Like: TypeAlias = ProfileLike | Schedule | Planned


def profile_like(given: Like, progress: Listener | None = None) -> Profile:
    """Return a profile by stages: ``given`` itself, or the profile in the given schedule or
    program. Raises InputError if it has only layers."""
    if isinstance(given, Schedule | Planned):
        return read_schedule(given)[0].problem.profile
    source = ProfileSource(given, progress)
    if isinstance(given, Mapping):
        source.where = "like"
    if (planned := source.in_place) is not None:
        return planned.problem.profile
    if not source.has_stages:
        raise InputError(
            f"like: expected a profile by stages, got one by layers ({source.where}): a schedule "
            "that was made of it has its stages"
        )
    return source.stages


FAR = 2.0
"""Ops that take more than this times the median of their stage and kind are reported as
outliers."""
BOTH = frozenset({OpKind.B, OpKind.W})
Times = Mapping[int, Mapping[OpKind, Figure]]


@takes(ProfileFromRequest)
def profile_from(request: ProfileFromRequest) -> Measurement:
    """Make a profile from ops that were measured elsewhere. Needs no torch.

    ``files``: traces of torch's profiler, from runs of pipeloom or torch.distributed.pipelining,
    one per rank, or their folder; or a measured schedule (``docs/profiling.md``).
    Times are medians over all microbatches of all steps, without the first ``warmup`` steps (by
    default 1 if there are several). ``like``: a profile of the same stages, or a schedule or
    program for it, from which missing values are taken. ``ranks``: number of ranks; by default that
    of ``like``, or of the files. ``progress`` receives notes on what was omitted or assumed.

    Raises InputError for other files, for missing ops, and for files that do not match each other.
    """
    tell, files = request.progress or unheard, request.files
    given = [files] if isinstance(files, str) or not isinstance(files, Sequence) else list(files)
    memory_limit = memory_limit_of(request.memory_limit)
    recordings = read_recordings(given)
    told = recordings[0].profile
    if request.like is not None:
        told = profile_like(request.like, request.progress)
    _check_peers(recordings)
    for note in (note for recording in recordings for note in recording.notes):
        tell(Note(f"note: {note}"))
    samples = [sample for recording in recordings for sample in recording.samples]
    times = _figures(_after_warmup(samples, request.warmup, tell), tell)
    _check_stages(times, [recording.where for recording in recordings])
    if told is not None and told.num_stages != len(times):
        raise InputError(
            f"like: expected a profile of {counted(len(times), 'stage')}, got {told.num_stages}"
        )
    for note in _assumed(times, told):
        tell(Note(f"note: {note}"))
    like = told or Profile((), 1)
    old = like.stages or (None,) * len(times)
    profile = replace(
        like,
        stages=tuple(_stage(times[s], old[s]) for s in range(len(times))),
        ranks=_ranks(recordings, request.ranks, told, len(times)),
        name=request.name or like.name,
    )
    if memory_limit is not None and memory_limit < math.inf:
        profile = replace(profile, memory_limit=(memory_limit,) * profile.ranks)
    return Measurement(profile, tuple(times[s] for s in sorted(times)), None, together=True)


def _check_peers(recordings: Sequence[MeasuredOps]) -> None:
    """Raise InputError if messages were sent to a stage, but no file contains ops of this stage."""
    found = {sample.stage for recording in recordings for sample in recording.samples}
    for recording in recordings:
        for stage, rank in sorted(recording.peers.items()):
            if stage not in found:
                raise InputError(
                    f"files: rank {rank}'s file is missing: messages went to its stage {stage}, of "
                    "which no file has ops"
                )


def _ranks(
    recordings: Sequence[MeasuredOps], given: int | None, told: Profile | None, stages: int
) -> int:
    """Return the number of ranks: ``given`` if it is not None, else that of the profile ``told``
    (given as ``like`` or found in a file), else that of the files.

    Raises InputError if ``given`` differs from the number of ranks of ``told``, or exceeds both the
    number of stages and that of ranks in the files.
    """
    found = min(sum(recording.ranks for recording in recordings), MOST_RANKS)
    if told is not None and given not in (None, told.ranks):
        raise InputError(f"ranks: expected {told.ranks} as in the other profile, got {given}")
    if told is None and given is not None and not 1 <= given <= max(stages, found):
        most = max(stages, found)
        raise InputError(f"ranks: expected 1 to {most}, of which files tell, got {given}")
    return given or (told.ranks if told else found)


def _after_warmup(samples: Sequence[Sample], warmup: int | None, tell: Listener) -> list[Sample]:
    """Return the samples of the steps after warm-up. Raises InputError if none is left."""
    steps = 1 + max((sample.step for sample in samples), default=0)
    first = min(1, steps - 1) if warmup is None else warmup
    if first >= steps:
        raise InputError(f"warmup: expected less than the {counted(steps, 'step')}, got {first}")
    if first:
        tell(Note(f"note: {first} of {counted(steps, 'step')} left out as warm-up", routine=True))
    elif steps == 1:
        tell(Note("note: there is one step, in which ops may have been slow as first ones are"))
    return [sample for sample in samples if sample.step >= first]


def _figures(samples: Sequence[Sample], tell: Listener) -> Times:
    """Return the median time by stage and kind of op, without copies to and from the host. Outliers
    are reported to ``tell``."""
    apart: defaultdict[int, defaultdict[OpKind, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sample in samples:
        if not sample.kind.copies:
            apart[sample.stage][sample.kind].append(sample.milliseconds)
    lists = [times for kinds in apart.values() for times in kinds.values()]
    far = sum(t > FAR * statistics.median(times) for times in lists for t in times)
    if far:
        total = sum(map(len, lists))
        tell(Note(f"note: {far} of {total} ops took over {FAR:g} times their stage's median"))
    return {
        s: {kind: Figure.of(times) for kind, times in sorted(kinds.items())}
        for s, kinds in apart.items()
    }


def _check_stages(times: Times, files: Sequence[str]) -> None:
    """Raise InputError, naming the files, unless every stage has measured times of F and of its
    backward (BW, or both B and W), or if there are too many stages."""
    count, where = 1 + max(times, default=-1), _listed(files)
    if not 0 < count <= MOST_STAGES:
        raise InputError(f"{where}: expected ops of 1 to {MOST_STAGES} stages, got {count}")
    missing = [s for s in range(count) if s not in times]
    if missing:
        raise InputError(
            f"{where}: expected ops of each of {count} stages, found none of stage {missing[0]}: "
            "each rank's file is needed"
        )
    for s, kinds in sorted(times.items()):
        if OpKind.F not in kinds or not (OpKind.BW in kinds or kinds.keys() >= BOTH):
            found = ", ".join(kind.name for kind in kinds)
            raise InputError(f"{where}: stage {s}: expected F, and B and W or BW, found {found}")


def _listed(files: Sequence[str]) -> str:
    """Return the name of the first file, followed by the number of further files if there are any,
    as in ``a.json and 2 other files``."""
    more = len(files) - 1
    return files[0] if more < 1 else f"{files[0]} and {counted(more, 'other file')}"


def _stage(times: Mapping[OpKind, Figure], old: StageProfile | None) -> StageProfile:
    t_b, t_w = _backward(times, old)
    kept = old or StageProfile(0.0, 0.0, 0.0, 1.0, 1.0)
    again = times.get(OpKind.R)
    both = times.keys() >= BOTH
    return replace(
        kept,
        t_f=times[OpKind.F].median,
        t_b=t_b,
        t_w=t_w,
        t_bw=fused_time(times) if both else None,
        t_fb=None,
        t_r=kept.t_r if again is None or kept.m_r is None else again.median,
    )


def _backward(times: Mapping[OpKind, Figure], old: StageProfile | None) -> tuple[float, float]:
    """Return T_B and T_W, as measured if B and W are separate ops. Otherwise, the time of BW is
    divided: T_B gets the share that it has in the stage ``old``, or half if that is not known."""
    if times.keys() >= BOTH:
        return times[OpKind.B].median, times[OpKind.W].median
    both = times[OpKind.BW].median
    known = 0.0 if old is None else old.t_b + old.t_w
    share = 0.5 if old is None or known == 0 else old.t_b / known
    return both * share, both * (1 - share)


def _assumed(times: Times, told: Profile | None) -> list[str]:
    """Return notes on values of the profile that were not measured. ``told``: the profile given as
    ``like`` or found in a file, or None."""
    notes = []
    whole = [s for s, kinds in sorted(times.items()) if not kinds.keys() >= BOTH]
    if whole:
        equally = "equally, as the files do not say how; --like sets the share"
        notes.append(
            f"{counted(len(whole), 'stage')} ran B and W as one op: t_b and t_w share its time "
            + ("as in the other profile" if told else equally)
        )
    old = told.stages if told else (None,) * len(times)
    again = [o for s, o in enumerate(old) if OpKind.R in times[s]]
    if any(o is None or o.t_r is None for o in again):
        notes.append("t_r is left out, as m_r is not known for each stage: --like sets it")
    if told is None:
        notes += [
            "memory is not in the files: m_b and m_w are 1, so that limits count microbatches; "
            "--like sets bytes",
            "links are not in the files: messages take no time; --like sets them",
        ]
    return notes
