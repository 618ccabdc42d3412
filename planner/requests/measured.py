"""Requests for profiles: measured here, or made with ``--from`` from ops measured elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from ..inputs.words import size_in
from .fields import Request, option
from .kinds import MICROBATCHES, NUMBER, TEXT, WHOLE, Kind

if TYPE_CHECKING:
    from ..inputs.documents import FilePath
    from ..measured.profile import Like
    from ..solving.progress import Listener

FROM = "from ops measured elsewhere"


@dataclass(frozen=True, kw_only=True)
class MeasuredRequest(Request):
    """Arguments common to measuring a profile and to making one from other measurements."""

    ranks: int | None = option("P", MICROBATCHES)
    """number of processes; by default, the number of stages"""
    warmup: int | None = option("N", WHOLE)
    """number of rounds before the measured ones, 2 by default; with --from, number of steps to skip
    at the beginning of the files, 1 by default if there are several"""
    name: str = option("NAME", TEXT, default="")
    """name of the profile"""
    memory_limit: float | str | None = option("X", Kind(size_in))
    """activation memory limit of each rank, to write into the profile"""


def _sizes(text: str) -> list[float]:
    return [float(size_in(word)) for word in text.split(",")]


@dataclass(frozen=True)
class ProfileFromRequest(MeasuredRequest):
    """The arguments of :func:`pipeloom.profile_from`."""

    files: FilePath | Sequence[FilePath] = option(
        "FILE", default=(), names=("--from",), nargs="+", group=FROM
    )
    """traces of torch's profiler (one per rank, or their folder), a schedule written by run
    --trace, or Primus's traces"""
    _: KW_ONLY
    split: float | None = option("X", NUMBER, group=FROM)
    """fraction of a BW's time that its B takes, from 0 to 1, where B and W ran as one op; 0.5 by
    default"""
    memory: Sequence[float] | None = option("M_B[,M_W]", Kind(_sizes), group=FROM)
    """activation memory of each stage, such as 1.2G or 1.2G,0.9G; M_W is M_B by default"""
    like: Like | None = option("FILE", group=FROM)
    """profile, schedule or program of the same stages that supplies what the files lack (memory,
    sizes, links, the split of BW)"""
    t_comm: float | None = option("MS", NUMBER, group=FROM)
    """delay of a message in ms"""
    progress: Listener | None = None
