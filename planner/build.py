"""``build``: the schedule of a family, with the times of a profile."""

from __future__ import annotations

from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import FAMILIES, build_family, find_family
from pipeloom.solver.weight_passing.replicate import replicate as keep_copies

from .inputs.documents import naming
from .inputs.fixed_cut import profiles_of
from .inputs.problem_setup import ProfileSource, Terms
from .requests.fields import takes
from .requests.search import BuildRequest
from .results.result import Result
from .routes.placements import assumed_cut
from .solving.progress import Note, unheard


@takes(BuildRequest)
def build(request: BuildRequest) -> Schedule:
    """Return the schedule of a family, with the times of a profile.

    The arguments are the fields of :class:`.BuildRequest`. ``progress`` receives notes, such as one
    if the schedule exceeds the device memory. Raises InputError for invalid input, and
    InfeasibleError if the family's schedule exceeds the memory limit.
    """
    find_family(request.family)
    source = ProfileSource.of(request.profile, request.progress)
    terms = Terms.of(request, source)
    _, profile_of, _ = profiles_of(source, terms.microbatches, request.partition)
    fitting = profile_of(request.family)
    with naming(source.where):
        schedule = build_family(request.family, fitting, terms.microbatches, **terms.limits)
    if request.replicate:
        schedule = keep_copies(schedule, request.replicate)
    made = Result(request.family, schedule, assumed=assumed_cut(fitting, schedule))
    for words in made.notes:
        (request.progress or unheard)(Note(f"{source.where}: {words}"))
    return schedule


def families() -> dict[str, str]:
    """Return a one-line description of each family, by the name that ``build`` accepts."""
    return {name: family.summary for name, family in FAMILIES.items()}
