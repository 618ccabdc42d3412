"""Requests for profiles: measured here, or made with ``--from`` from ops measured elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from ..inputs.words import size_in
from .fields import Request, option
from .kinds import MICROBATCHES, TEXT, WHOLE, Kind

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


@dataclass(frozen=True)
class ProfileFromRequest(MeasuredRequest):
    """The arguments of :func:`pipeloom.profile_from`."""

    files: FilePath | Sequence[FilePath] = option(
        "FILE", default=(), names=("--from",), nargs="+", group=FROM
    )
    """traces of torch's profiler (one per rank, or their folder), or a schedule written by run
    --trace"""
    _: KW_ONLY
    like: Like | None = option("FILE", group=FROM)
    """profile, schedule or program of the same stages that supplies what the files lack (memory,
    sizes, links, the split of BW)"""
    progress: Listener | None = None
