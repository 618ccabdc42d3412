"""A measured profile from the probes of all ranks, or of one rank's part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Figure, Measurement, fused_time, spread_of
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.weight_coverage import WeightCoverage, joined

from ..transport import Transport
from .link_probe import LARGE, LinkSamples, link_of, links_of, probe_host, probe_links

MESSAGES = 20  # round trips of each size on each link
UNKNOWN = [1.0]  # milliseconds of an op that was not timed
ACTIVATION = "activation_bytes"
VIEWS = ("all", "pipeline", "rank")


def check_view(view: str) -> None:
    """Raises InputError for a view that there is not."""
    if view not in VIEWS:
        raise InputError(f"view: expected {', '.join(VIEWS)}, got {view!r}")


def check_numbers(**numbers: int | None) -> None:
    """Raises InputError for a number below 1, ``warmup`` below 0; None stands for the default."""
    for key, value in numbers.items():
        least = 0 if key == "warmup" else 1
        if value is not None and value < least:
            raise InputError(f"{key}: expected a whole number >= {least}, got {value}")


def _of_all(value: Any) -> list[Any]:
    """The values of all processes, objects too."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@dataclass(frozen=True, slots=True)
class StagePart:
    """Measurements of one stage on one device: milliseconds by kind of op, 1 where none counted,
    and of pairs; ``sizes``: bytes by the keys of a stage's profile.

    ``eager``: why it ran as it is where it was to be a graph.
    """

    stage: int
    times: Mapping[OpKind, Sequence[float]]
    pairs: Sequence[float]
    sizes: Mapping[str, int]
    coverage: WeightCoverage | None = None
    eager: str | None = None


class LinkParts(NamedTuple):
    """Messages as large as an activation, and large ones; copies to the host and back."""

    messages: Sequence[LinkSamples] = ()
    links: Sequence[LinkSamples] = ()
    host: Sequence[LinkSamples] = ()


def sequences(inputs: Sequence[Any]) -> int | None:
    """The sequences in a microbatch with these inputs of the first stage: where the first is a
    tensor of several dimensions, as many as its first has; else None."""
    first = inputs[0] if inputs else None
    return len(first) if isinstance(first, Tensor) and first.dim() > 1 and len(first) else None


def probed_links(
    transport: Transport, largest: int, device: torch.device, *, offload: bool
) -> LinkParts:
    """This rank's links, over a transport with routes of a ring; all ranks call it, with the
    ``largest`` activation's bytes."""
    sent = probe_links(transport, largest, MESSAGES, device)
    large = sent if largest >= LARGE else probe_links(transport, LARGE, MESSAGES, device)
    host = [probe_host(device, MESSAGES, transport.rank)] if offload else []
    return LinkParts(sent, large, host)


def gathered(
    view: str,
    transport: Transport,
    parts: list[StagePart],
    links_of_rank: Callable[[int], LinkParts],
) -> tuple[list[StagePart], LinkParts]:
    """Measurements of the ``view``: of a rank its ``parts``; else stages of the transport's ranks,
    or of all processes, then links, by the largest message."""
    if view == "rank":
        return parts, LinkParts()
    everywhere = view == "all" and dist.is_initialized()
    gather = _of_all if everywhere else transport.gather
    every = [part for row in gather(list(parts)) for part in row]
    largest = max(part.sizes.get(ACTIVATION, 0) for part in every)
    rows = gather(links_of_rank(largest))
    return every, LinkParts(*(list(chain(*each)) for each in zip(*rows, strict=True)))


def measurement(
    parts: Sequence[StagePart],
    links: LinkParts,
    *,
    ranks: int,
    name: str = "",
    tied: Sequence[tuple[int, ...]] = (),
    micro_batch: int | None = None,
) -> Measurement:
    """A profile of the stages that ``parts`` are of. Of one that several devices ran all samples
    count, and the most bytes."""
    numbers = sorted({part.stage for part in parts})
    whole = [_joined([part for part in parts if part.stage == s]) for s in numbers]
    sent = [time for link in links.messages for time in link.large]
    delay = Figure.of(sent) if sent else None
    found = links_of(links.links, delay.median if delay else inf) if links.links else None
    uniform = found is None or not found.pairs
    times = tuple({k: Figure.of(ms or UNKNOWN) for k, ms in part.times.items()} for part in whole)
    pairs = tuple(Figure.of(part.pairs) for part in whole if part.pairs)
    profile = Profile(
        stages=tuple(map(_stage, whole, times, pairs or (None,) * len(whole))),
        shared_by=1,
        ranks=ranks,
        t_comm=delay.median if delay is not None and uniform else None,
        links=found,
        name=name,
        host_link=link_of(links.host) if links.host else None,
        tied=tuple(tied),
        micro_batch=micro_batch,
    )
    coverage = tuple(part.coverage for part in whole if part.coverage is not None)
    eager = {part.stage: part.eager for part in whole if part.eager is not None}
    return Measurement(profile, times, delay, True, pairs, coverage=coverage, eager=eager)


def _joined(parts: Sequence[StagePart]) -> StagePart:
    """One part of the parts of a stage on several devices."""
    first = parts[0]
    return StagePart(
        first.stage,
        {kind: [ms for part in parts for ms in part.times[kind]] for kind in first.times},
        [ms for part in parts for ms in part.pairs],
        {key: max(part.sizes[key] for part in parts) for key in first.sizes},
        joined({p.stage: p.coverage} for p in parts if p.coverage is not None).get(first.stage),
        next((part.eager for part in parts if part.eager is not None), None),
    )


def _stage(part: StagePart, times: Mapping[OpKind, Figure], pair: Figure | None) -> StageProfile:
    sizes: dict[str, Any] = {key: float(size) for key, size in part.sizes.items()}
    return StageProfile(
        times[OpKind.F].median,
        times[OpKind.B].median,
        times[OpKind.W].median,
        t_r=times[OpKind.R].median if OpKind.R in times else None,
        t_fb=None if pair is None else pair.median,
        t_bw=fused_time(times),
        spread=spread_of(times),
        **sizes,
    )
