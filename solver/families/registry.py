"""All families by name, and the function that builds their schedules."""

from __future__ import annotations

from pipeloom.ir.documents.json_reader import is_count
from pipeloom.ir.errors import InputError, did_you_mean
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.removed import replaced

from .base import Family, ParametrizedFamily
from .bidirectional.chimera import Chimera
from .bidirectional.dualpipe import DualPipe
from .interleaved.interleaved_1f1b import Interleaved1F1B
from .interleaved.interleaved_1f1b_grouped import GroupedInterleaved1F1B
from .interleaved.looped_bfs import LoopedBFS
from .linear.dapple import Dapple
from .linear.gpipe import GPipe
from .linear.one_f_one_b import OneFOneB
from .linear.pipedream import PipeDream
from .linear.zb_h1 import ZBH1
from .linear.zb_h2 import ZBH2
from .v_shape.dualpipev import DualPipeV
from .v_shape.v_half import VHalf
from .v_shape.v_min import VMin
from .v_shape.wave import Wave
from .v_shape.zb_v import ZBV
from .weights.fsdp import FSDP
from .weights.weipipe_interleave import WeiPipeInterleave
from .weights.weipipe_naive import WeiPipeNaive
from .weights.wzb1 import WZB1
from .weights.wzb2 import WZB2

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(GPipe(), OneFOneB(), Interleaved1F1B(), GroupedInterleaved1F1B(), LoopedBFS(), Dapple()),
        *(ZBH1(), ZBH2(), ZBV(), VHalf(), VMin(), Wave(), DualPipe(), DualPipeV(), Chimera()),
        *(PipeDream(), WeiPipeNaive(), WeiPipeInterleave(), WZB1(), WZB2(), FSDP()),
    )
}

# families with optimizer steps within an iteration: they train differently, so they cannot replace
# other families
ASYNCHRONOUS = ("pipedream",)


def synchronous() -> list[Family]:
    """Return the families with a single optimizer step per iteration, after all microbatches."""
    return [family for name, family in FAMILIES.items() if name not in ASYNCHRONOUS]


def find_family(name: str) -> Family:
    """Return the family called ``name``, which may have a parameter, as in ``interleaved-1f1b:3``.

    Raises InputError if the name is unknown or the parameter is invalid.
    """
    base, colon, parameter = name.partition(":")
    family = FAMILIES.get(base)
    if family is None:
        if (line := replaced(f"family {base}")) is not None:
            raise InputError(f"family: {base} {line}")
        hint = did_you_mean(base, FAMILIES)
        raise InputError(f"family: expected one of {', '.join(FAMILIES)}, got {name!r}{hint}")
    if not colon:
        return family
    if not isinstance(family, ParametrizedFamily):
        raise InputError(f"family: {base} takes no parameter, got {name!r}")
    number = int(parameter) if parameter.isascii() and parameter.isdigit() else -1
    if number < family.least:
        raise InputError(
            f"family: expected {base}:{family.parameter}, {family.parameter} a whole number >= "
            f"{family.least}, got {name!r}"
        )
    if number > family.most:
        raise InputError(f"family: expected {base}:{family.most} at most, got {name!r}")
    return family.with_parameter(number)


def build_family(
    name: str,
    profile: Profile,
    microbatches: int,
    *,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
) -> Schedule:
    """Build the timed schedule of the family ``name``.

    ``memory_limit``: None means the profile's limit. Families do not adapt to the limit. Raises
    InputError if the name is unknown or the family does not fit the profile, and InfeasibleError if
    a rank exceeds the limit.
    """
    if not is_count(microbatches) or microbatches < 1:
        raise InputError(f"microbatches: expected a whole number >= 1, got {microbatches}")
    family = find_family(name)
    return family.build(family.problem(profile, microbatches, memory_limit, objective))
