"""The profile: times and sizes of a model's stages, and the links between ranks.

Times are milliseconds, memory is bytes; any consistent unit works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
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
    Each,
    Flag,
    Limits,
    MaybeEach,
    Unbounded,
    Words,
    keep,
    known,
)
from ..documents.json_reader import is_count
from ..documents.struct import IN_MEMORY, Struct
from ..documents.validation import DocumentFault, Whole, raise_faults, said, wrong
from ..errors import InputError, UnsupportedError, show
from ..units import counted
from .layers import Layer
from .links import Link, Links, Pair, Sharing
from .ops import FloatArray
from .ties import Ties, ties_of

__all__ = ["DataParallel", "Link", "Links", "Profile", "Sharing", "StageProfile"]

PROFILE = "pipeloom.profile"
EACH = (
    *("t_f", "t_b", "t_w", "t_bw", "t_r", "m_b", "m_w", "m_r", "m_o"),
    *("activation_bytes", "offload_bytes"),
)
"""Keys that can be lists with one number per microbatch."""

_DIVIDED = (
    *("t_f", "t_b", "t_w", "t_fb", "t_r", "t_bw", "m_b", "m_w"),
    *("weight_bytes", "grad_bytes", "optimizer_bytes", "offload_bytes"),
)
_CAPPED = ("m_r", "m_o")  # at most the part's M_B


@dataclass(frozen=True, slots=True)
class StageProfile(Struct):
    """Times and sizes of one stage for one microbatch.

    ``t_f``, ``t_b``, ``t_w``: T_F, T_B, T_W. ``t_bw``: time of a BW op; None: T_B + T_W. ``t_fb``:
    time of F and BW run at once, as one op (:mod:`..cost.overlap`); None: they take as long as one
    after the other. ``m_b``: memory held from the start of F to the end of B. ``m_w``: the part of
    it that is held until the end of W. ``activation_bytes``: size of the stage's output. Unknown
    sizes are None. ``layers``: the layers that the stage consists of, if known.

    For recomputation, ``t_r`` is the time of R, and ``m_r`` the memory held from F to the start of
    R. For offload, ``m_o`` is the memory that stays on the device, and ``offload_bytes`` the bytes
    moved, each way (None: M_B - ``m_o``). ``t_r`` or ``m_o`` is None if the stage cannot be
    recomputed or offloaded.

    ``each``: one profile per microbatch if microbatches differ; the other fields are then their
    means. In files, the keys in :data:`EACH` are then lists. ``spread``: relative standard
    deviation of the op times (:mod:`..cost.spread`), if known.
    """

    REQUIRED: ClassVar[tuple[str, ...]] = ("m_b", "m_w")

    t_f: Annotated[Each, Field(description="ms of the forward of a microbatch")]
    t_b: Annotated[Each, Field(description="ms of its backward to the input")]
    t_w: Annotated[Each, Field(description="ms of its backward to the weights, 0 if in t_b")]
    m_b: Annotated[Each, Field(description="memory held from its F to its B")] = 1.0
    m_w: Annotated[Each, Field(description="the part of m_b still held from B to W")] = 0.0
    activation_bytes: MaybeEach = None
    weight_bytes: Cost | None = None
    grad_bytes: Cost | None = None
    optimizer_bytes: Cost | None = None
    t_fb: Cost | None = None
    layers: tuple[Layer, ...] = ()
    t_r: MaybeEach = None
    m_r: MaybeEach = None
    m_o: MaybeEach = None
    offload_bytes: MaybeEach = None
    t_bw: MaybeEach = None
    each: Annotated[tuple[StageProfile, ...], IN_MEMORY] = ()
    spread: Annotated[float | None, IN_MEMORY] = None

    @classmethod
    def _before(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if data.get("spread") is not None:
            line = "expected it beside stages or layers, a number or one each"
            raise_faults([DocumentFault(("spread",), said(f"{line}, got {show(data['spread'])}"))])
        return data

    def _after(self, info: ValidationInfo) -> StageProfile:
        """Make a profile for each microbatch of the lists, which all must be equally long."""
        if (self.t_r is None) != (self.m_r is None):
            given, absent = ("t_r", "m_r") if self.m_r is None else ("m_r", "t_r")
            raise_faults([DocumentFault((absent,), said(f"missing; expected it beside {given}"))])
        lists = {key: value for key in EACH if isinstance(value := getattr(self, key), list)}
        each: Sequence[StageProfile] = [self]
        if lists:
            number = (info.context or {}).setdefault("each", len(next(iter(lists.values()))))
            line = f"expected a number, or a list of {number} as before, one per microbatch, got"
            raise_faults(
                DocumentFault((key,), said(f"{line} {counted(len(value), 'number')}"))
                for key, value in lists.items()
                if len(value) != number
            )
            rows = ({key: value[j] for key, value in lists.items()} for j in range(number))
            each = [replace(self, **row) for row in rows]
        for key in ("m_w", "m_r", "m_o"):
            most = next((one.m_b for one in each if (getattr(one, key) or 0.0) > one.m_b), None)
            if most is not None:
                raise_faults(
                    [DocumentFault((key,), wrong(f"at most m_b ({most:g})"), getattr(self, key))]
                )
        return StageProfile.of(each)

    def values(self) -> dict[str, Any]:
        return Struct.values(self) | {key: self._figure(key) for key in EACH}

    def _figure(self, key: str) -> Any:
        """One number, or one per microbatch if they differ."""
        each = [getattr(one, key) for one in self.each]
        return each if len(set(each)) > 1 else getattr(self.at(0), key)

    @classmethod
    def of(cls, each: Sequence[StageProfile]) -> StageProfile:
        """The stage of these microbatches; their numbers are kept in ``each`` if they differ."""
        first = each[0]
        if all(one == first for one in each):
            return first
        return replace(first, **_means(each), each=tuple(each))

    def at(self, microbatch: int) -> StageProfile:
        """The stage's profile for one microbatch."""
        return self.each[microbatch] if self.each else self

    def changed(self, change: Callable[[StageProfile], StageProfile]) -> StageProfile:
        """The stage with ``change`` applied, for each microbatch if microbatches differ."""
        return StageProfile.of(tuple(map(change, self.each))) if self.each else change(self)

    def scaled(self, by: float, keys: Iterable[str]) -> StageProfile:
        """The stage with the fields ``keys`` multiplied by ``by``; unknown values stay unknown."""
        figures = {key: getattr(self, key) for key in keys}
        known = {key: figure * by for key, figure in figures.items() if figure is not None}
        return replace(self, **known)

    @property
    def kept(self) -> float:
        """Memory that a recomputed microbatch holds from its F to its R."""
        return self.m_b if self.m_r is None else self.m_r

    @property
    def fused(self) -> float:
        """Time of B and W as one op."""
        return self.t_b + self.t_w if self.t_bw is None else self.t_bw

    @property
    def moved(self) -> float:
        """Bytes moved to the host, and back, if a microbatch is offloaded."""
        return self.m_b - (self.m_o or 0.0) if self.offload_bytes is None else self.offload_bytes

    @property
    def saving(self) -> float:
        """Time saved by running F and BW at once; negative if that takes longer."""
        return 0.0 if self.t_fb is None else self.t_f + self.fused - self.t_fb


def _means(each: Sequence[StageProfile]) -> dict[str, Any]:
    """The mean of each field that differs between the profiles."""
    columns = {key.name: [getattr(one, key.name) for one in each] for key in fields(StageProfile)}
    unlike = {key: column for key, column in columns.items() if column.count(column[0]) < len(each)}
    return {key: math.fsum(column) / len(each) for key, column in unlike.items()}


@dataclass(frozen=True, slots=True)
class DataParallel(Struct):
    """Data parallelism: ``size`` replicas of the pipeline; ``link`` joins ranks of the same number.

    ``exposed``: the averaging time that ops do not hide, as a multiple of one all-reduce of the
    gradients over the link; above 1 if they are averaged several times.
    """

    INLINE = "link"

    size: Annotated[int, Whole(1, MOST_RANKS)]
    link: Link
    exposed: Cost = 1.0

    def time(self, gradient: float) -> float:
        """The exposed part, in milliseconds, of a ring all-reduce of ``gradient`` bytes.

        See :mod:`..cost.gradient_averaging`.
        """
        return self.exposed * 2 * (self.size - 1) * self.link.delay(gradient / self.size)


def _delays(value: Any, info: ValidationInfo) -> Any:
    """One delay, or a matrix with the delays from rank (row) to rank."""
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
_SPREAD: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
_SPREADS = TypeAdapter(list[_SPREAD])
Delays: TypeAlias = float | tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True, slots=True)
class Profile(Struct):
    """Times and sizes of a model's stages on a cluster; see ``docs/formats.md``.

    - ``stages``: a single entry is repeated ``shared_by`` times, by default once per rank. After
      construction ``stages`` is complete and ``shared_by`` is 1.
    - ``t_comm``: one delay between any two ranks, or a matrix (row: sender).
    - ``memory_limit``: limit of activations, one number per rank; None is unlimited.
    - ``device_memory``: limit of all memory of the device, one number per rank; None is unlimited.
    - ``host_link``: each rank's own link to the host, equally fast in both directions at once.
    - ``tied``: groups of stages, each ascending, that share parameters.
    - ``micro_batch``: sequences per measured microbatch, if known.
    - ``microbatches``: the number of microbatches, if the profile has a number for each of them.
    - ``max_stages``: the largest number of stages that the model can be cut into, if known.
    - ``barrier``: whether all ranks wait for each other before each optimizer step.
    """

    FORMAT = PROFILE
    ALSO: ClassVar[tuple[str, ...]] = ("layers", "spread")

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
        if info.context is not None:
            info.context["spread"] = data.get("spread")
        return data

    def _after(self, info: ValidationInfo) -> Profile:
        """Check the keys that depend on the number of stages."""
        number = self.num_stages
        if self.max_stages is not None and self.max_stages < number:
            words = f"at least {number}, the number of stages"
            raise_faults([DocumentFault(("max_stages",), wrong(words), self.max_stages)])
        if info.context is not None:
            info.context["stages"] = number
        places: dict[Any, int] = {stage: stage for stage in range(number)}
        for s, stage in enumerate(self.stages):
            places |= {layer.name: s for layer in stage.layers}
        return self._of(self.stages, places, "stage", info)

    def _of(
        self, stages: Sequence[StageProfile], places: dict[Any, int], one: str, info: ValidationInfo
    ) -> Profile:
        """The profile of these stages or layers, with the ties and the spread of the file.

        ``places``: the place of each number or name in ``tied``. ``one``: ``stage`` or ``layer``.
        """
        context, number = info.context or {}, len(stages)
        what = "names of layers" if one == "layer" else f"stages of 0..{number - 1}"
        ties, faults = ties_of(self.tied, places, what)
        spread = context.pop("spread", None)
        each = spread if isinstance(spread, list) else [spread] * number
        try:
            each = each if spread is None else _SPREADS.validate_python(each)
        except ValidationError:
            each = []
        if len(each) != number:
            words = f"a number from 0 to 1, or a list of {number} of them, one per {one}"
            faults.append(DocumentFault(("spread",), wrong(words), spread))
        raise_faults(faults)
        if spread is not None:
            pairs = zip(stages, each, strict=True)
            stages = [stage.changed(partial(replace, spread=own)) for stage, own in pairs]
        return replace(self, stages=tuple(stages), tied=ties, microbatches=context.get("each"))

    def values(self) -> dict[str, Any]:
        stages: list[Any] = list(self.stages)
        if self.microbatches is not None and not self.unlike:  # the file needs M
            figures = stages[0].values()
            stages[0] = figures | {"t_f": [figures["t_f"]] * self.microbatches}
        return Struct.values(self) | {
            "stages": stages,
            # otherwise a reader would repeat the stage on all ranks
            "num_stages": 1 if self.num_stages == 1 else None,
            "spread": _spread_in_file(self.stages),
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
        """Whether microbatches differ in any stage."""
        return any(stage.each for stage in self.stages)

    def offload_time(self, stage: int, microbatch: int = 0) -> float | None:
        """Milliseconds to copy the stage's activations to the host, or back; None if it cannot
        offload."""
        of = self.stages[stage].at(microbatch)
        return None if self.host_link is None or of.m_o is None else self.host_link.delay(of.moved)

    def delays(self, size: float | None) -> FloatArray:
        """Delay in ms of a message of ``size`` bytes from rank (row) to rank, (P, P), diagonal 0.

        ``t_comm`` if it is given, otherwise from ``links`` (an unknown size counts as 0), otherwise
        0.
        """
        if self.t_comm is None:
            return self.link_delays(size or 0.0)
        matrix = np.array(
            np.broadcast_to(np.asarray(self.t_comm, dtype=np.float64), (self.ranks, self.ranks))
        )
        np.fill_diagonal(matrix, 0.0)
        return matrix

    def link_delays(self, size: float) -> FloatArray:
        """Delay in ms of ``size`` bytes over ``links``, shape (P, P); 0 without links."""
        if self.links is None:
            return np.zeros((self.ranks, self.ranks))
        return self.links.delays(size, self.ranks)

    def wires(self, messages: Sequence[Pair]) -> list[tuple[str, ...]]:
        """The wires, by name, that a message between each (source rank, target rank) occupies."""
        links = self.links
        if links is None:
            return [()] * len(messages)
        wires = cache(lambda source, target: links.wires(source, target, self.ranks))
        return [wires(*pair) for pair in messages]

    def wire_shares(self, messages: Sequence[Pair]) -> list[tuple[float, ...]]:
        """For each (source, target), the fraction of its time that a message occupies each wire."""
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
        at most the chunk's M_B). The last stage has no output: its chunks send each other as much
        as the stage receives. All chunks of tied stages are tied, as it is unknown which of them
        share parameters.

        Raises ValueError if ``chunks`` is below 1, and UnsupportedError if there would be more than
        ``max_stages`` stages.
        """
        if chunks < 1:
            raise ValueError(f"cannot cut a stage into {chunks} chunks")
        self.check_stages(self.num_stages * chunks)
        parts = self.changed(lambda stage: _part(stage, 1.0 / chunks)).stages
        if chunks > 1 and len(parts) > 1:
            parts = (*parts[:-1], _sending_like(parts[-1], parts[-2]))
        stages = tuple(part for part in parts for _ in range(chunks))
        tied = tuple(
            tuple(stage * chunks + chunk for stage in group for chunk in range(chunks))
            for group in self.tied
        )
        return replace(self, stages=stages, tied=tied)

    def check_stages(self, number: int, where: str = "") -> None:
        """Raise UnsupportedError if ``number`` exceeds ``max_stages``; ``where`` names the file."""
        if self.max_stages is not None and number > self.max_stages:
            file = f"{where}: " if where else ""
            raise UnsupportedError(
                f"{file}max_stages: expected at least {number}, one for each stage, got "
                f"{self.max_stages}: the model cannot be cut further"
            )

    @property
    def pairs_known(self) -> bool:
        """Whether every stage has a time for F and BW run at once."""
        return all(stage.t_fb is not None for stage in self.stages)

    def pair_time(self, forward: int, backward: int, first: int = 0, second: int = 0) -> float:
        """Time of the F of stage ``forward`` and the BW of stage ``backward`` run at once.

        ``first`` and ``second`` are the microbatches of the F and of the BW. The pair saves the
        smaller of the two stages' savings, and takes no less time than either op by itself.
        """
        f, b = self.stages[forward].at(first), self.stages[backward].at(second)
        least = max(f.t_f, b.fused)
        return max(least, f.t_f + b.fused - min(f.saving, b.saving))

    def limit_from(self, limit: float | None) -> tuple[float, ...]:
        """The memory limit of each rank, (P,): ``limit``, else the profile's, else ``math.inf``.

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


def _spread_in_file(stages: Sequence[StageProfile]) -> float | list[float] | None:
    each = [stage.spread or 0.0 for stage in stages]
    if all(stage.spread is None for stage in stages):
        return None
    return each[0] if len(set(each)) == 1 else each


def _sending_like(stage: StageProfile, before: StageProfile) -> StageProfile:
    """``stage`` with the message sizes of the stage ``before``, for each microbatch."""
    number = max(len(stage.each), len(before.each), 1)
    return StageProfile.of(
        [
            replace(stage.at(j), activation_bytes=before.at(j).activation_bytes)
            for j in range(number)
        ]
    )


def _part(stage: StageProfile, share: float) -> StageProfile:
    part = stage.scaled(share, _DIVIDED)
    sizes = {key: getattr(stage, key) for key in _CAPPED}
    kept = {key: min(size, part.m_b) for key, size in sizes.items() if size is not None}
    return replace(part, **kept, layers=())
