"""The profile: times and sizes of a model's stages, and the links between ranks.

Times are in milliseconds. Memory is in bytes, or in any other unit that is used throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from ..documents.fields import (
    MOST_COST,
    MOST_RANKS,
    MOST_STAGES,
    Cost,
    Flag,
    Limits,
    Unbounded,
    Words,
    keep,
    known,
)
from ..documents.json_reader import is_count
from ..documents.struct import IN_MEMORY, Struct
from ..documents.validation import DocumentFault, Whole, raise_faults, said, wrong
from ..errors import InputError, UnsupportedError
from .links import Link, Links, Pair, Sharing
from .ops import FloatArray
from .stage_profile import StageProfile, part_of, sending_like
from .ties import Ties, ties_of

__all__ = ["DataParallel", "Link", "Links", "Profile", "Sharing", "StageProfile"]

PROFILE = "pipeloom.profile"


@dataclass(frozen=True, slots=True)
class DataParallel(Struct):
    """Data parallelism: ``size`` replicas of the pipeline.

    ``link`` connects the ranks with the same number in all replicas. ``exposed``: the factor by
    which the time of an all-reduce is multiplied: below 1 if ops hide a part of the averaging,
    above 1 if gradients are averaged several times.
    """

    INLINE = "link"

    size: Annotated[int, Whole(1, MOST_RANKS)]
    link: Link
    exposed: Cost = 1.0

    def time(self, gradient: float) -> float:
        """``exposed`` times the duration, in ms, of a ring all-reduce of ``gradient`` bytes.

        See :mod:`..cost.gradient_averaging`.
        """
        return self.exposed * 2 * (self.size - 1) * self.link.delay(gradient / self.size)


def _delays(value: Any, info: ValidationInfo) -> Any:
    """Validate ``t_comm``: one delay, or a P x P matrix of delays, where the row is the sender."""
    if value is None:
        return None
    ranks, is_matrix = known(info, "ranks"), isinstance(value, list | tuple)
    try:
        rows = _DELAYS.validate_python(value if is_matrix else [[value]])
    except ValidationError:
        rows = ()
    size = (ranks or len(rows)) if is_matrix else 1
    if not rows or {len(rows), *map(len, rows)} != {size}:
        p = ranks or "P"
        raise wrong(f"a finite number >= 0 or a {p} x {p} matrix of them")
    largest = max(map(max, rows))
    if largest > MOST_COST:
        raise said(f"expected at most {MOST_COST:g} each, got {largest:g}")
    return rows if is_matrix else rows[0][0]


def _a_list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise wrong("a list")
    return tuple(value)


_DELAYS = TypeAdapter(tuple[tuple[Unbounded, ...], ...])
Delays: TypeAlias = float | tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True, slots=True)
class Profile(Struct):
    """Times and sizes of a model's stages on a cluster; see ``docs/formats.md``.

    - ``stages``: a single entry is repeated ``shared_by`` times, by default once per rank. After
      construction ``stages`` is complete and ``shared_by`` is 1.
    - ``t_comm``: one delay in ms between any two ranks, or a P x P matrix (row: sender).
    - ``links``: latencies, bandwidths and wires; None if they are not modeled.
    - ``memory_limit``: limit of activations, one number per rank; None is unlimited.
    - ``device_memory``: limit of all memory of the device, one number per rank; None is unlimited.
    - ``host_link``: each rank's own link to the host. It has its full speed in both directions at
      the same time.
    - ``tied``: groups of stages, each ascending, that share parameters.
    - ``micro_batch``: sequences per measured microbatch, if known.
    - ``microbatches``: the number of microbatches, if a field of a stage has a value for each of
      them, otherwise None.
    - ``max_stages``: the largest number of stages that the model can be cut into, if known.
    - ``barrier``: whether all ranks wait for each other before each optimizer step.
    """

    FORMAT = PROFILE
    ALSO: ClassVar[tuple[str, ...]] = ("layers",)

    stages: tuple[StageProfile, ...]
    ranks: Annotated[
        int,
        Whole(1, MOST_RANKS),
        AfterValidator(keep),
        Field(description='the GPUs of the pipeline, such as "ranks": 8'),
    ]
    t_comm: Annotated[Delays, PlainValidator(_delays)] = None
    links: Links | None = None
    memory_limit: Limits = None
    device_memory: Limits = None
    name: Words = ""
    host_link: Link | None = None
    data_parallel: DataParallel | None = None
    tied: Annotated[Ties, PlainValidator(_a_list)] = ()
    micro_batch: Annotated[int, Whole(1)] | None = None
    microbatches: Annotated[int | None, IN_MEMORY] = None
    max_stages: Annotated[int, Whole(1)] | None = None
    barrier: Flag = False
    shared_by: Annotated[int | None, Whole(1, MOST_STAGES), Field(alias="num_stages")] = None

    @classmethod
    def _before(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        found: list[DocumentFault] = []
        if "stages" not in data and data.get("layers") is not None:
            line = "missing; expected a list (it has layers, which optimize and build cut)"
            found.append(DocumentFault(("stages",), said(line)))
        if not isinstance(data.get("layers"), list | None):
            found.append(DocumentFault(("layers",), wrong("a list"), data["layers"]))
        if data.get("stages") in ([], ()):
            found.append(DocumentFault(("stages",), wrong("at least one stage"), []))
        entries, number = data.get("stages"), data.get("num_stages")
        if isinstance(entries, list) and is_count(number) and len(entries) not in (1, number):
            words = f"{len(entries)}, the number of entries in stages, or one shared entry"
            found.append(DocumentFault(("num_stages",), wrong(words), number))
        raise_faults(found)
        return data

    def _after(self, info: ValidationInfo) -> Profile:
        """Check what depends on the number of stages; return the profile with its ties."""
        number = self.num_stages
        if self.max_stages is not None and self.max_stages < number:
            words = f"at least {number}, the number of stages"
            raise_faults([DocumentFault(("max_stages",), wrong(words), self.max_stages)])
        if info.context is not None:
            info.context["stages"] = number
        places: dict[Any, int] = {stage: stage for stage in range(number)}
        for s, stage in enumerate(self.stages):
            places |= {layer.name: s for layer in stage.layers}
        return self._of(self.stages, places, f"stages of 0..{number - 1}", info)

    def _of(
        self,
        stages: Sequence[StageProfile],
        places: dict[Any, int],
        what: str,
        info: ValidationInfo,
    ) -> Profile:
        """The profile with ``stages`` (stages or layers), and with the file's ties.

        ``places``: the index of the stage or layer for each number or name that ``tied`` may have.
        ``what``: what ``tied`` lists, as in messages.
        """
        ties, faults = ties_of(self.tied, places, what)
        raise_faults(faults)
        each = (info.context or {}).get("each")
        return replace(self, stages=tuple(stages), tied=ties, microbatches=each)

    def values(self) -> dict[str, Any]:
        stages: list[Any] = list(self.stages)
        if self.microbatches is not None and not self.unlike:  # else M would not be in the file
            figures = stages[0].values()
            stages[0] = figures | {"t_f": [figures["t_f"]] * self.microbatches}
        return Struct.values(self) | {
            "stages": stages,
            # otherwise a reader would repeat the stage on all ranks
            "num_stages": 1 if self.num_stages == 1 else None,
        }

    def __post_init__(self) -> None:
        if len(self.stages) == 1:
            number = self.ranks if self.shared_by is None else self.shared_by
            object.__setattr__(self, "stages", self.stages * number)
        object.__setattr__(self, "shared_by", 1)

    @property
    def num_stages(self) -> int:
        """The number of stages, S."""
        return len(self.stages)

    @property
    def unlike(self) -> bool:
        """Whether microbatches differ in the times or sizes of any stage."""
        return any(stage.each for stage in self.stages)

    def offload_time(self, stage: int, microbatch: int = 0) -> float | None:
        """Milliseconds to copy a microbatch's activations of ``stage`` to the host, or back.

        It is None if the stage cannot be offloaded.
        """
        of = self.stages[stage].at(microbatch)
        return None if self.host_link is None or of.m_o is None else self.host_link.delay(of.moved)

    def delays(self, size: float | None) -> FloatArray:
        """Delays in ms of a message of ``size`` bytes between ranks, (P, P), diagonal 0.

        The row is the sender. The delays are ``t_comm`` if it is given; otherwise they follow from
        ``links``, where a ``size`` of None (unknown) counts as 0; without either, they are 0.
        """
        if self.t_comm is None:
            return self.link_delays(size or 0.0)
        matrix = np.array(
            np.broadcast_to(np.asarray(self.t_comm, dtype=np.float64), (self.ranks, self.ranks))
        )
        np.fill_diagonal(matrix, 0.0)
        return matrix

    def link_delays(self, size: float) -> FloatArray:
        """Delays in ms of ``size`` bytes over ``links``, (P, P), row: sender; 0 without links."""
        if self.links is None:
            return np.zeros((self.ranks, self.ranks))
        return self.links.delays(size, self.ranks)

    def wires(self, messages: Sequence[Pair]) -> list[tuple[str, ...]]:
        """For each (source rank, target rank), the names of the wires that its message occupies.

        They are empty tuples without links.
        """
        links = self.links
        if links is None:
            return [()] * len(messages)
        wires = cache(lambda source, target: links.wires(source, target, self.ranks))
        return [wires(*pair) for pair in messages]

    def wire_shares(self, messages: Sequence[Pair]) -> list[tuple[float, ...]]:
        """For each (source rank, target rank), the :meth:`.links.Links.shares` of its message.

        These are the fractions of the message's duration for which it occupies each of its
        :meth:`wires`, in the same order.
        """
        links = self.links
        if links is None:
            return [()] * len(messages)
        shares = cache(lambda source, target: links.shares(source, target, self.ranks))
        return [shares(*pair) for pair in messages]

    def changed(self, change: Callable[[StageProfile], StageProfile]) -> Profile:
        """The profile with ``change`` applied to each stage (:meth:`StageProfile.changed`)."""
        return replace(self, stages=tuple(stage.changed(change) for stage in self.stages))

    def split(self, chunks: int) -> Profile:
        """The profile with each stage cut evenly into ``chunks`` consecutive stages.

        Times and memory are divided. Message sizes, ``m_r`` and ``m_o`` are not (the latter two are
        at most the chunk's M_B). The size of the last stage's output is not used: its chunks send
        each other as many bytes as the last stage receives. All chunks of tied stages are tied, as
        it is unknown which of them share parameters.

        Raises ValueError if ``chunks`` is below 1, and UnsupportedError if there would be more than
        ``max_stages`` stages.
        """
        if chunks < 1:
            raise ValueError(f"cannot cut a stage into {chunks} chunks")
        self.check_stages(self.num_stages * chunks)
        parts = self.changed(lambda stage: part_of(stage, 1.0 / chunks)).stages
        if chunks > 1 and len(parts) > 1:
            parts = (*parts[:-1], sending_like(parts[-1], parts[-2]))
        stages = tuple(part for part in parts for _ in range(chunks))
        tied = tuple(
            tuple(stage * chunks + chunk for stage in group for chunk in range(chunks))
            for group in self.tied
        )
        return replace(self, stages=stages, tied=tied)

    def check_stages(self, number: int, where: str = "") -> None:
        """Raise UnsupportedError if ``number``, the number of stages, exceeds ``max_stages``.

        ``where``: the name of the profile's file, for the message.
        """
        if self.max_stages is not None and number > self.max_stages:
            file = f"{where}: " if where else ""
            raise UnsupportedError(
                f"{file}max_stages: expected at least {number}, one for each stage, got "
                f"{self.max_stages}: the model cannot be cut further"
            )

    @property
    def pairs_known(self) -> bool:
        """Whether every stage has ``t_fb``, the time of an F and a BW that run as a pair."""
        return all(stage.t_fb is not None for stage in self.stages)

    def pair_time(self, forward: int, backward: int, first: int = 0, second: int = 0) -> float:
        """Time in ms of a pair: the F of stage ``forward`` and the BW of stage ``backward``.

        ``first`` and ``second`` are the microbatches of the F and of the BW. The pair takes the sum
        of its ops' times minus the smaller of the two stages' :attr:`StageProfile.saving`, but no
        less time than either op by itself.
        """
        f, b = self.stages[forward].at(first), self.stages[backward].at(second)
        least = max(f.t_f, b.fused)
        return max(least, f.t_f + b.fused - min(f.saving, b.saving))

    def limit_from(self, limit: float | None) -> tuple[float, ...]:
        """The limit of each rank, (P,): ``limit`` if given, else the profile's, else ``math.inf``.

        Raises InputError if ``limit`` is not a number or is negative.
        """
        if limit is not None:
            check_limit(limit)
            return (float(limit),) * self.ranks
        return self.memory_limit or (math.inf,) * self.ranks


def check_limit(limit: object) -> None:
    """Raise InputError unless ``limit`` is a number >= 0 or infinity."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
        raise InputError(f"memory_limit: expected a number >= 0 or inf, got {limit!r}")
