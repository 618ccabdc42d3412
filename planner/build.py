"""``build``: a named schedule, a family's fixed shape filled in for a profile."""

from __future__ import annotations

from collections.abc import Sequence

from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Schedule
from pipeloom.report.summaries import transfer_note
from pipeloom.solver.families import FAMILIES, build_family, find_family
from pipeloom.solver.weight_passing.replicate import replicate as keep_copies

from .inputs.documents import naming
from .inputs.problem_setup import ProfileLike, ProfileSource, objective_of
from .inputs.words import memory_limit_of
from .partition.fixed_cut import CutLike, profiles_of
from .placement.choose import assumed_cut
from .solving.progress import Listener, Note, unheard
from .solving.search import too_full


def build(
    family: str,
    profile: ProfileLike | ProfileSource,
    microbatches: int | None = None,
    *,
    memory_limit: float | str | None = None,
    objective: str | Objective | None = None,
    replicate: Sequence[int] = (),
    partition: CutLike | None = None,
    progress: Listener | None = None,
) -> Schedule:
    """The schedule of ``family``, such as ``zb-h1``, with the times that the profile gives it.

    ``memory_limit``: of the activations on each rank, in the profile's unit of memory; the
    profile's own by default. ``replicate``: where weights are passed, stages of which every rank
    that runs them keeps a copy. ``partition``: of a profile by layers, ``balanced`` (the default),
    ``even`` or a schedule whose cut is taken. ``progress`` is told what is worth a note.

    Raises InputError for wrong input, InfeasibleError where the family does not keep the limit.
    """
    find_family(family)
    source, tell = ProfileSource.of(profile, progress), progress or unheard
    memory_limit = memory_limit_of(memory_limit, source)
    objective, microbatches = objective_of(objective, source), source.number(microbatches)
    _, profile_of, _ = profiles_of(source, microbatches, partition)
    fitting = profile_of(family)
    with naming(source.where):
        schedule = build_family(
            family, fitting, microbatches, memory_limit=memory_limit, objective=objective
        )
    if replicate:
        schedule = keep_copies(schedule, replicate)
    note, full = transfer_note(schedule), too_full(schedule)
    cut = assumed_cut(fitting, schedule)
    notes = [note, cut and f"assumed: {cut}", full and f"{full}: build keeps --memory-limit only"]
    for words in filter(None, notes):
        tell(Note(f"{source.where}: {words}"))
    return schedule


def families() -> dict[str, str]:
    """The names that ``build`` knows, each with a line of what it is."""
    return {name: family.summary for name, family in FAMILIES.items()}
