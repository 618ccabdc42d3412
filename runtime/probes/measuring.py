"""Builds a measured profile from the probes of all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Figure, Measurement, fused_time
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.profile import Profile, StageProfile

from .link_probe import LinkSamples, link_of, links_of, times_of

ACTIVATION = "activation_bytes"


def check_numbers(**numbers: int | None) -> None:
    """Raises InputError if a number is less than 1, or ``warmup`` less than 0; ignores None."""
    for key, value in numbers.items():
        least = 0 if key == "warmup" else 1
        if value is not None and value < least:
            raise InputError(f"{key}: expected a whole number >= {least}, got {value}")


@dataclass(frozen=True, slots=True)
class StagePart:
    """Measurements of one ``stage`` in one process.

    ``times``: for each kind of op, the milliseconds of each of its runs. ``sizes``: bytes, by the
    keys of a stage in a profile. ``eager``: the reason why the stage ran as a module although
    graphs were requested, else None.
    """

    stage: int
    times: Mapping[OpKind, Sequence[float]]
    sizes: Mapping[str, int]
    eager: str | None = None


def sequences(inputs: Sequence[Any]) -> int | None:
    """Returns the number of sequences in a microbatch, or None if it is unknown.

    ``inputs``: the first stage's inputs of that microbatch. The number is the size of dimension 0
    of the first one, which must be a tensor with several dimensions.
    """
    first = inputs[0] if inputs else None
    return len(first) if isinstance(first, Tensor) and first.dim() > 1 and len(first) else None


def largest_activation(parts: Sequence[StagePart]) -> int:
    """Returns the bytes of the largest output that any stage in ``parts`` sends to the next one.

    Returns 0 if there is only one stage.
    """
    return max(part.sizes.get(ACTIVATION, 0) for part in parts)


def measurement(
    parts: Sequence[StagePart],
    links: Sequence[LinkSamples],
    host: Sequence[LinkSamples],
    **facts: Any,
) -> Measurement:
    """Returns the measured profile with its statistics.

    ``parts``: the measurements of stages in all processes. If a stage was measured in several
    processes, its times are the medians of all samples, and its bytes the maximum. ``links``: the
    samples of messages between ranks, among them those as large as the largest activation; empty
    for one rank. ``host``: the samples of copies to the host; empty if not measured. ``facts``:
    values for other fields of :class:`Profile`, by name.
    """
    each = [[p for p in parts if p.stage == s] for s in sorted({part.stage for part in parts})]
    delay = Figure.of(times_of(links, largest_activation(parts))) if links else None
    found = links_of(links, delay.median) if delay else None
    uniform = found is None or not found.pairs
    times = tuple(
        {k: Figure.of([ms for p in own for ms in p.times[k]]) for k in own[0].times} for own in each
    )
    profile = Profile(
        stages=tuple(map(_stage, each, times)),
        shared_by=1,
        t_comm=delay.median if delay is not None and uniform else None,
        links=found,
        host_link=link_of(host) if host else None,
        max_stages=len(each),
        **facts,
    )
    eager = {part.stage: part.eager for part in parts if part.eager is not None}
    return Measurement(profile, times, delay, True, eager=eager)


def _stage(parts: Sequence[StagePart], times: Mapping[OpKind, Figure]) -> StageProfile:
    sizes: dict[str, Any] = {
        key: float(max(part.sizes[key] for part in parts)) for key in parts[0].sizes
    }
    return StageProfile(
        times[OpKind.F].median,
        times[OpKind.B].median,
        times[OpKind.W].median,
        t_r=times[OpKind.R].median if OpKind.R in times else None,
        t_bw=fused_time(times),
        **sizes,
    )
