"""One configuration: its links measured, its schemes predicted and trained side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeloom import Evaluation, Profile, compile_schedule, dump_profile, dump_program
from pipeloom.ir import Links, Sharing
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.planner.passing.choose import choose, searching
from pipeloom.runtime.probes.link_probe import LinkSamples, link_of

from .configurations import Configuration
from .measuring import Measured, measured
from .network import namespaces
from .prediction import fully_sharded, wires
from .sharded import TrainSharded
from .training import Probe, Train
from .workers import run_tasks

PROBE_BYTES, PROBES = 400_000, 9
SECONDS = 20.0  # that the optimizer has for all schemes together
STEPS, WARMUP = 6, 2  # steps of each scheme, and how many of them do not count
TIMEOUT = 600.0  # seconds, for all schemes
TIE = 0.01  # step times as near as that are one


def run(configuration: Configuration) -> dict[str, Any]:
    """The record of one configuration."""
    with namespaces(configuration.ring) as names:
        [samples] = run_tasks(names, [Probe(PROBE_BYTES, PROBES)], TIMEOUT)
        profile = configuration.profile(ring_links([s for row in samples for s in row]))
        choice = choose(profile, configuration.microbatches, search=searching(SECONDS))
        candidates = choice.usable
        tasks = _tasks(configuration, candidates)
        answers = run_tasks(names, tasks, TIMEOUT)
    runs = [measured(answer, WARMUP) for answer in answers]
    return _result(configuration, profile, candidates, runs)


def ring_links(samples: Sequence[LinkSamples]) -> Links:
    """Each link between neighbours as it was measured; they share a ring."""
    pairs = [(*sample.ranks, link_of([sample])) for sample in samples]
    fastest = max((link for _, _, link in pairs), key=lambda link: link.gigabytes_per_second)
    return Links(fastest, tuple(pairs), Sharing.RING)


def _tasks(
    configuration: Configuration, candidates: Sequence[Evaluation]
) -> list[Train | TrainSharded]:
    """The candidates in turn, then torch's own."""
    t_f, t_b, t_w = configuration.times
    model, ranks = configuration.model, configuration.ring.ranks
    programs = [dump_program(compile_schedule(c.schedule)) for c in candidates]
    forward, backward = (t_f,) * ranks, (t_b + t_w,) * ranks
    return [
        *(Train(program, model, STEPS) for program in programs),
        TrainSharded(model, forward, backward, configuration.microbatches, STEPS),
    ]


def _result(
    configuration: Configuration,
    profile: Profile,
    candidates: Sequence[Evaluation],
    runs: Sequence[Measured],
) -> dict[str, Any]:
    times = [step_between_ops(c.schedule) for c in candidates]
    rows = [
        {
            "scheme": c.scheme,
            "schedule": c.name,
            **_row(time, run),
            "planned_wires": wires(c.schedule),
        }
        for c, time, run in zip(candidates, times, runs, strict=False)
    ]
    torch = _row(fully_sharded(profile, configuration.microbatches), runs[-1])
    model = configuration.model
    return {
        "model": {
            key: getattr(model, key)
            for key in ("layers", "width", "heads", "context", "microbatch")
        },
        "microbatches": configuration.microbatches,
        "times_ms": configuration.times,
        "ring": asdict(configuration.ring),
        "activation_bytes": configuration.activation_bytes,
        "stage_bytes": [s.weight_bytes for s in profile.stages],
        "links": dump_profile(profile)["links"],
        "schemes": [*rows, {"scheme": "fully_shard", "schedule": "torch", **torch}],
        "auto": candidates[0].scheme,
        "winners": winners(rows),
    }


def winners(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fastest scheme, and those that no measurement tells from it."""
    least = min(row["measured_ms"] for row in rows)
    return [row["scheme"] for row in rows if row["measured_ms"] <= least * (1 + TIE)]


def _row(time: float, run: Measured) -> dict[str, Any]:
    return {
        "predicted_ms": time,
        "measured_ms": run.step_ms,
        "error": time / run.step_ms - 1,
        "least_ms": run.least_ms,
        "most_ms": run.most_ms,
        "losses": run.losses,
        "wires": run.wires,
    }
