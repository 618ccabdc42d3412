"""``compare``: all families and the optimizer side by side for one profile and memory limit."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError, UnsupportedError
from pipeloom.solver.families import FAMILIES, build_family

from .inputs.fixed_cut import Profiles, profiles_of
from .inputs.problem_setup import ProfileSource, Terms
from .optimize import optimize
from .requests.exclusions import COMPARE, refuse
from .requests.fields import takes
from .requests.search import CompareRequest, SearchRequest
from .results import table as of
from .results.result import OPTIMIZER, Result
from .results.table import ResultTable, grouped, results_table
from .routes.placements import assumed_cut

WIDTH = 100
"""Width, in characters, of the table and of the lines below it."""


@dataclass(frozen=True)
class Comparison(ResultTable):
    """A table of all families and the optimizer: one row per family, with its schedule or the
    reason why it cannot be built, and at the end the optimizer's row, if it was run."""

    @property
    def best(self) -> Result | None:
        """The optimizer's row; None if it has no schedule or was not run."""
        return next((row for row in self.built if row.name == OPTIMIZER), None)

    @property
    def interrupted(self) -> bool:
        """Whether the optimizer's search was ended by the caller."""
        return self.best is not None and self.best.stopped

    @property
    def averaged(self) -> bool:
        """Whether gradients are averaged over replicas in any row."""
        return any(row.averaging is not None for row in self.built)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``compare --json`` prints."""
        rows = [row.row() for row in self.rows]
        if (best := self.best) is not None:
            rows[-1] |= {"interrupted": self.interrupted, "all_cuts": "partition" in best.facts}
        return super().to_dict() | {"results": rows}

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self._table(), "\n".join(map(_wrapped, self._lines()))]))

    def _lines(self) -> Iterator[str]:
        """Yield the lines of explanations and notes below the table."""
        yield from self.notes
        if self.averaged:
            until = f"the {self.objective.value} until gradients are averaged over the replicas"
            yield f"iteration: {until}; the first row's is the shortest"
        yield from self._of_the_optimizer()
        # because of fused pairs or recomputation
        other = [r.name for r in self.built if not math.isclose(r.work_ratio, 1.0, rel_tol=1e-6)]
        if other:
            line = "their ops take another time in total, so that bubbles are not comparable"
            yield f"{', '.join(other)}: {line}"
        if any(row.link_bytes is None for row in self.built):
            needed = "activation_bytes, and weight_bytes where weights are sent"
            yield f"link bytes -: unknown; the profile's stages need {needed}"
        for note, names in grouped(self._of_rows()).items():
            yield f"{', '.join(names)}: {note}"

    def _table(self) -> str:
        """Return the table of the rows with a schedule, sorted by iteration time. Rows whose cost
        excludes transfers of weights come last, below a remark. The result is an empty string if no
        row has a schedule."""
        if not self.built:
            return ""
        shown = [of.SCHEDULE, *([of.ITERATION] if self.averaged else []), of.PERIOD, of.MAKESPAN]
        shown += [of.BUBBLE, of.LINK_BYTES, of.PEAK_MEMORY, of.BALANCE]
        rows = sorted(self.built, key=lambda row: (row.uncosted is not None, row.cost))
        lines = results_table(rows, shown).splitlines()
        unreal = next((row.uncosted for row in rows if row.uncosted), None)
        if unreal:
            apart = sum(row.uncosted is None for row in rows) - len(rows)
            words = f"Not comparable with the rows above, as they send weights ({unreal}):"
            lines[apart:apart] = ["", _wrapped(words)]
        return "\n".join(lines)

    def _of_rows(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of a note and the name of the row to which it applies. If a row has no
        schedule, its only note is the reason."""
        for row in self.rows:
            notes = [row.refusal] if row.planned is None else row.notes
            yield from ((note, row.name) for note in notes if note != row.uncosted)

    def _of_the_optimizer(self) -> list[str]:
        if (best := self.best) is None:
            return []
        tried = [one.name for one in best.candidates if one.lower_bound is not None]
        chosen = best.schedule.problem.placement.name
        among = f"the placements {', '.join(tried)}" if len(tried) > 1 else best.scope
        other = [
            row
            for row in self.built
            if row.uncosted is None and (row.schedule.problem.placement.name not in tried)
        ]
        cuts = "all cuts and " if "partition" in best.facts else ""
        known, end = best.proven_over_all, "; interrupted" if self.interrupted else ""
        lines = [f"{OPTIMIZER}: {chosen}, {known} among {cuts}all schedules with {among}{end}"]
        if other:
            named = ", ".join(row.name for row in other)
            pairs = best.scope.endswith("without pairs")
            kind = "placement, passing or pairs" if pairs else "placement or passing"
            lines.append(f"not covered by this bound, as they have another {kind}: {named}")
        return lines


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


@takes(CompareRequest)
def compare(request: CompareRequest) -> Comparison:
    """Build the schedules of all families, and search for the optimizer's, for the same profile and
    memory limit.

    The arguments are the fields of :class:`.CompareRequest`. A profile by layers is cut for each
    family into as many stages as the family has: balanced, unless ``partition`` is ``even``. Raises
    InputError for invalid input.
    """
    refuse(COMPARE, **vars(request))
    source = ProfileSource.of(request.profile, request.progress)
    terms = Terms.of(request, source)
    found, profile_of, cut = profiles_of(source, terms.microbatches, **request.cuts)
    all_cuts = cut is not None and request.passing == "activations"
    rows = families(profile_of, terms)
    if not request.no_optimizer:
        given = source if all_cuts or cut is None else cut.into(found.ranks)
        asked: dict[str, Any] = {"profile": given, **terms.limits}
        asked |= {} if all_cuts else dict.fromkeys(request.cuts)
        try:
            rows.append(optimize(**request.arguments(SearchRequest) | asked))
        except (InfeasibleError, UnsupportedError) as error:
            rows.append(Result.refused(OPTIMIZER, error))
    return Comparison(found, terms.microbatches, terms.objective, tuple(rows))


def families(profile_of: Profiles, terms: Terms) -> list[Result]:
    """Return a row for each family: its schedule, or the reason why it cannot be built.

    ``profile_of``: a function that returns the profile for a family, given its name. ``terms``: the
    number of microbatches, the memory limit and the objective.
    """
    return [family_row(name, profile_of, terms) for name in FAMILIES]


def family_row(name: str, profile_of: Profiles, terms: Terms) -> Result:
    """Return the row of the family ``name``; the other arguments are those of :func:`families`."""
    try:
        profile = profile_of(name)
        schedule = build_family(name, profile, terms.microbatches, **terms.limits)
    except (InfeasibleError, InputError) as error:
        return Result.refused(name, error)
    return Result(name, schedule, assumed=assumed_cut(profile, schedule))
