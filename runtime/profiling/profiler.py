"""Measures a model's stages and the links between ranks into a profile.

Times are those that ops have while all ranks compute at the same time, each in its own process, as
in a pipeline: where processes share cores, an op measured alone would be too fast. How and why is
in ``docs/profiling.md``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Figure, Measurement, fused_time
from pipeloom.ir.model.layers import Layer
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.profile import Profile, StageProfile

from ..launch.processes import launch
from ..launch.threads import launch_local
from ..pipeline.layered_source import by_layers
from ..pipeline.model_source import ModelSource
from ..stages.tie_detection import Group
from ..transport import connect, whereabouts
from ..transport.thread_rank import here
from .host_probe import probe_host
from .link_probe import LARGE, LinkSamples, link_of, links_of, probe_links, ring_routes
from .stage_probe import Sizes, StageProbe

MESSAGES = 20  # round trips of each size on each link


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure. ``repeats``: rounds that count, after ``warmup`` that do not; in each round
    every stage runs ``in_flight`` microbatches. ``dtype``: None leaves the source's own."""

    stages: int
    ranks: int
    repeats: int
    warmup: int
    in_flight: int
    dtype: torch.dtype | None
    device: str
    timeout: float
    fused: bool
    recompute: bool
    pairs: bool
    offload: bool


def measure_profile(
    source: ModelSource,
    *,
    stages: int | None = None,
    ranks: int,
    repeats: int = 10,
    warmup: int = 2,
    in_flight: int | None = None,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    together: bool = True,
    name: str = "",
    timeout: float = 300.0,
    recompute: bool = False,
    pairs: bool = False,
    offload: bool = False,
    local: bool = False,
) -> Measurement:
    """The profile of ``source`` cut into ``stages`` on ``ranks``, stage s on rank s mod P.

    Without ``stages`` each of the source's layers is one (:mod:`..pipeline.layered_source`), which
    the profile's stages name.

    Starts one process a rank (or joins torchrun's, where it returns the same on every rank), so
    the source must pickle. With ``together`` off, one process measures one stage after the other,
    and no links: what the stages take where nothing else runs. ``recompute``: T_R and M_R as well;
    ``pairs``: T_FB; ``offload``: M_O, what is moved, and the link to the host.
    ``local``: ranks are threads of this process (:mod:`..launch.threads`), all of them on one GPU,
    too.

    Raises InputError for impossible settings, LaunchError where a rank fails.
    """
    layers: Sequence[Layer] = ()
    if stages is None:
        source, layers = by_layers(source)
        stages = len(layers)
    for key, value, least in (
        ("stages", stages, 1),
        ("ranks", ranks, 1),
        ("repeats", repeats, 1),
        ("warmup", warmup, 0),
        ("in_flight", in_flight or 1, 1),
    ):
        if value < least:
            raise InputError(f"{key}: expected a whole number >= {least}, got {value}")
    in_flight = max(in_flight or ranks, 2 if pairs else 1)
    settings = Settings(
        stages,
        ranks,
        repeats,
        warmup,
        in_flight,
        dtype,
        device,
        timeout,
        fused=not layers,
        recompute=recompute,
        pairs=pairs,
        offload=offload,
    )
    count, arguments = ranks if together else 1, (source, settings, source.tied(stages))
    if local:
        results = launch_local(_measure_rank, count, arguments, device=device)
    else:
        backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
        results = launch(_measure_rank, count, arguments, backend=backend)
    found = _measurement(next(iter(results.values())), settings, together, name)
    return found if not layers else _named(found, layers)


def _named(found: Measurement, layers: Sequence[Layer]) -> Measurement:
    """With the layer that each stage is."""
    named = [
        replace(stage, layers=(layer,))
        for stage, layer in zip(found.profile.stages, layers, strict=True)
    ]
    return replace(found, profile=replace(found.profile, stages=tuple(named)))


@dataclass(frozen=True, slots=True)
class _StagePart:
    """What was measured of one stage."""

    stage: int
    times: Mapping[OpKind, Figure]
    pair: Figure | None
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class _Parts:
    """What was measured on all ranks: of each stage; messages as large as an activation, and large
    ones; copies. ``tied``: the stages that share parameters."""

    stages: Sequence[_StagePart]
    messages: Sequence[LinkSamples]
    links: Sequence[LinkSamples]
    host: Sequence[LinkSamples]
    tied: Sequence[tuple[int, ...]]


def _measure_rank(source: ModelSource, settings: Settings, tied: Sequence[Group]) -> _Parts:
    """All ranks' results, on every rank."""
    device = _device(settings)
    transport = connect(ring_routes(whereabouts()[1], settings.timeout), device)
    probe = StageProbe(
        source,
        [s % transport.size for s in range(settings.stages)],
        transport,
        in_flight=settings.in_flight,
        dtype=settings.dtype,
        device=device,
        fused=settings.fused,
        recompute=settings.recompute,
        offload=settings.offload,
        tied=tied,
    )
    probe.times(settings.warmup)
    samples = probe.times(settings.repeats)
    pairs = probe.pair_times(settings.repeats) if settings.pairs else {}
    parts = [
        _StagePart(
            s,
            {kind: Figure.of(samples[s, kind]) for kind in probe.kinds},
            Figure.of(pairs[s]) if pairs else None,
            probe.sizes(s),
        )
        for s in probe.stages
    ]
    gathered = transport.gather(parts)
    all_parts = sorted((p for part in gathered for p in part), key=lambda part: part.stage)
    largest = max(part.sizes.activation or 0 for part in all_parts)
    host = [probe_host(device, MESSAGES, transport.rank)] if settings.offload else []

    def messages(size: int) -> list[LinkSamples]:
        links = probe_links(transport, size, MESSAGES, device)
        return [link for found in transport.gather(links) for link in found]

    sent = messages(largest)
    return _Parts(
        all_parts,
        sent,
        sent if largest >= LARGE else messages(LARGE),
        [copies for found in transport.gather(host) for copies in found],
        probe.tied,
    )


def _device(settings: Settings) -> torch.device:
    """This rank's device; on a CPU also its share of the cores, as at least one thread."""
    device = torch.device(settings.device)
    if here() is not None:  # threads share what the process has
        return (
            torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device
        )
    if device.type == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.ranks))
    return device


def _measurement(parts: _Parts, settings: Settings, together: bool, name: str) -> Measurement:
    sent = [time for link in parts.messages for time in link.large]
    delay = Figure.of(sent) if sent else None
    found = links_of(parts.links) if parts.links else None
    uniform = found is None or not found.pairs
    profile = Profile(
        stages=tuple(map(_stage, parts.stages)),
        ranks=settings.ranks,
        t_comm=delay.median if delay is not None and uniform else None,
        links=found,
        name=name,
        host_link=link_of(parts.host) if parts.host else None,
        tied=tuple(parts.tied),
    )
    times = tuple(part.times for part in parts.stages)
    pairs = tuple(part.pair for part in parts.stages if part.pair is not None)
    return Measurement(profile, times, delay, together, pairs)


def _stage(part: _StagePart) -> StageProfile:
    sizes, again = part.sizes, part.times.get(OpKind.R)
    return StageProfile(
        t_f=part.times[OpKind.F].median,
        t_b=part.times[OpKind.B].median,
        t_w=part.times[OpKind.W].median,
        m_b=float(sizes.m_b),
        m_w=float(sizes.m_w),
        activation_bytes=None if sizes.activation is None else float(sizes.activation),
        weight_bytes=float(sizes.weight),
        grad_bytes=float(sizes.grad),
        optimizer_bytes=float(sizes.optimizer),
        t_r=None if again is None else again.median,
        m_r=None if sizes.m_r is None else float(min(sizes.m_r, sizes.m_b)),
        t_fb=None if part.pair is None else part.pair.median,
        m_o=None if sizes.m_o is None else float(min(sizes.m_o, sizes.m_b)),
        offload_bytes=None if sizes.offload is None else float(sizes.offload),
        t_bw=fused_time(part.times),
    )
