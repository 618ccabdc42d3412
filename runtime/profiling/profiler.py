"""Measures a model's stages and the links between ranks into a profile.

Times are those that ops have while all ranks compute at the same time, each in its own process, as
in a pipeline: where processes share cores, an op measured alone would be too fast. How and why is
in ``docs/profiling.md``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.layers import Layer

from ..launch.environment import own_gpu
from ..launch.processes import launch_ranks
from ..pipeline.layered_source import by_layers
from ..pipeline.model_source import ModelSource, check_cut, most_stages
from ..probes import measuring
from ..probes.link_probe import ring_routes
from ..probes.stage_probe import Asked
from ..rank.heap import keep_pages
from ..rank.options import StagesAs, check_stages_as
from ..stages.tie_detection import Group
from ..transport import connect, whereabouts
from .memory_only import calculate_memory
from .source_probe import SourceStages


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure. ``repeats``: rounds that count, after ``warmup`` that do not; ``asked``: what
    is measured beside F, B and W, and ``pairs``. ``dtype``: None leaves the source's own."""

    stages: int
    ranks: int
    repeats: int
    warmup: int
    asked: Asked
    pairs: bool
    dtype: torch.dtype | None
    device: str
    timeout: float
    group: dist.ProcessGroup | None
    data_group: dist.ProcessGroup | None
    view: str
    stages_as: StagesAs


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
    group: dist.ProcessGroup | None = None,
    data_group: dist.ProcessGroup | None = None,
    view: str = "all",
    memory_only: bool = False,
    stages_as: StagesAs = "eager",
) -> Measurement:
    """The profile of ``source`` cut into ``stages`` on ``ranks``, stage s on rank s mod P.

    Without ``stages`` each of the source's layers is one (:mod:`..pipeline.layered_source`), which
    the profile's stages name.

    Starts one process per rank (or joins torchrun's, where it returns the same on every rank), so
    the source must pickle. With ``together`` off, one process measures one stage after the other,
    and no links: what the stages take where nothing else runs. ``recompute``: T_R and M_R as well;
    ``pairs``: T_FB; ``offload``: M_O, what is moved, and the link to the host.
    ``group``: where the source's stages are shards (tensor or expert parallelism,
    ``fully_shard`` over ``data_group``), the processes of this pipeline among those that torchrun
    started; all of these call it, and get one profile, or what ``view`` says, as
    :meth:`~..pipeline.pipeline.Pipeline.profile` does. ``memory_only``: bytes alone, by calculation
    in this process (:mod:`.memory_only`); each op takes 1 ms.

    ``stages_as``: how stages are run, as :class:`~..pipeline.pipeline.Pipeline` explains.

    Raises InputError for impossible settings, LaunchError where a rank fails.
    """
    check_stages_as(stages_as)
    layers: Sequence[Layer] = ()
    if stages is None:
        source, layers = by_layers(source)
        stages = len(layers)
    measuring.check_numbers(
        stages=stages, ranks=ranks, repeats=repeats, warmup=warmup, in_flight=in_flight or 1
    )
    _check_place(group, view, ranks, together=together)
    if ranks > stages:
        raise InputError(f"ranks: expected at most {stages}, as many as stages, got {ranks}")
    check_cut(source, stages)
    # shards of a mesh may need all processes to be made
    most = None if layers or group is not None else most_stages(source, stages)
    in_flight = max(in_flight or ranks, 2 if pairs else 1)
    asked = Asked(in_flight, not layers, recompute, offload)
    if memory_only:
        _check_memory_only(device, pairs=pairs, group=group is not None)
        found = calculate_memory(
            source, stages, ranks, asked, dtype=dtype, name=name, stages_as=stages_as
        )
        return _of_source(found, layers, most)
    settings = Settings(
        *(stages, ranks, repeats, warmup, asked, pairs, dtype, device, timeout),
        *(group, data_group, view, stages_as),
    )
    parts, links, tied, micro_batch = _on_ranks(source, settings, together=together)
    shown = 1 if view == "rank" else ranks
    found = measuring.measurement(
        parts, links, ranks=shown, together=together, name=name, tied=tied, micro_batch=micro_batch
    )
    return _of_source(found, layers, most)


def _check_place(group: dist.ProcessGroup | None, view: str, ranks: int, *, together: bool) -> None:
    measuring.check_view(view)
    if group is None:
        if view != "all":
            raise InputError(f"view: expected all where no group is given, got {view}")
        return
    if not together:
        raise InputError("group: expected none beside alone")
    if dist.get_world_size(group) != ranks:
        raise InputError(f"ranks: expected {dist.get_world_size(group)}, as in group, got {ranks}")


def _check_memory_only(device: str, **others: bool) -> None:
    """Raises InputError for options that are of times, or of where these are measured."""
    if device != "cpu":
        raise InputError(f"device: expected cpu beside memory_only, got {device}")
    for name, asked in others.items():
        if asked:
            raise InputError(f"{name}: expected none beside memory_only, which computes nothing")


def _of_source(found: Measurement, layers: Sequence[Layer], most: int | None) -> Measurement:
    """The profile with what its source says: each stage's layer, or how many it can make."""
    if not layers:
        return replace(found, profile=replace(found.profile, max_stages=most))
    named = [
        replace(stage, layers=(layer,))
        for stage, layer in zip(found.profile.stages, layers, strict=True)
    ]
    profile = replace(found.profile, stages=tuple(named))
    return replace(found, profile=profile, by_layers=True)


Found = tuple[list[measuring.StagePart], measuring.LinkParts, list[tuple[int, ...]], int | None]


def _on_ranks(source: ModelSource, settings: Settings, *, together: bool) -> Found:
    """Parts that the first rank measures: of the caller's group, or of new processes."""
    count = settings.ranks if together else 1
    arguments = source, settings, source.tied(settings.stages)
    if settings.group is not None:
        return _measure_rank(*arguments)
    results = launch_ranks(_measure_rank, count, arguments, device=settings.device)
    found: Found = next(iter(results.values()))
    return found


def _measure_rank(source: ModelSource, settings: Settings, tied: Sequence[Group]) -> Found:
    """Measurements of the settings' view, the same on every rank of it, the tied stages, and the
    sequences in a microbatch."""
    device, group = _device(settings), settings.group
    keep_pages(device)
    routes = ring_routes(whereabouts(group)[1], settings.timeout)
    transport = connect(routes, device, group)
    owners = [s % transport.size for s in range(settings.stages)]
    made = SourceStages(
        source,
        owners,
        transport,
        dtype=settings.dtype,
        device=device,
        tied=tied,
        data_group=settings.data_group,
        timeout=settings.timeout,
        stages_as=settings.stages_as,
    )
    parts = measuring.probed(
        made.probe(settings.asked),
        made.held,
        repeats=settings.repeats,
        warmup=settings.warmup,
        pairs=settings.pairs,
    )
    parts, links = measuring.gathered(
        settings.view,
        transport,
        settings.timeout,
        parts,
        lambda largest: measuring.probed_links(
            transport, largest, device, offload=settings.asked.offload
        ),
    )
    if group is not None:
        made.close()
        transport.close()
    return parts, links, made.tied, made.micro_batch


def _device(settings: Settings) -> torch.device:
    """This rank's device; on a CPU also its share of the cores, as at least one thread, but in a
    job of the caller's, which has its own."""
    device = torch.device(settings.device)
    if device.type == "cuda":
        return torch.device("cuda", own_gpu())
    if "OMP_NUM_THREADS" not in os.environ and settings.group is None:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.ranks))
    return device
