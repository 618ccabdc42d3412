"""The predicted time and memory of a scheme in a row of WeiPipe's tables.

The simulator predicts the time; the memory is that of the compiled program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from pipeloom import Objective, Profile, Schedule, StageProfile, build_family, simulate
from pipeloom.compiler import footprint
from pipeloom.ir import Link, Links, in_sending_order, traffic

from .assumed import GIB, Assumptions
from .cells import NODE, Row
from .transformer import Transformer, in_nodes

FAMILY = {
    "1F1B": "1f1b",
    "ZB1": "zb-h1",
    "ZB2": "zb-h2",
    "FSDP": "fsdp:0",
    "WeiPipe": "weipipe-interleave",
}
ZERO_BUBBLE = {"ZB1", "ZB2"}
PASS_ACTIVATIONS = {"1F1B", *ZERO_BUBBLE}
MEMORY_ROUNDS = 2  # M / P; more microbatches do not increase the memory of these families


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speed and memory of a scheme.

    ``throughput``: tokens/s per GPU. ``memory``: the highest peak of any rank, in GiB. ``fits``:
    whether this peak is within the GPU's memory.
    """

    throughput: float
    memory: float
    fits: bool


def predict(row: Row, scheme: str, given: Assumptions) -> Prediction:
    layers, sequences = row.layers if row.gpus > NODE else given.layers_on_8, row.microbatch
    if scheme in ZERO_BUBBLE:
        sequences = given.zero_bubble_layer_tokens // layers // row.sequence
        sequences = min(row.microbatch, max(1, sequences))
    if not row.over_pcie:
        given = replace(given, node_wire=None)
    recompute = scheme in given.recompute
    model = Transformer(layers, row.hidden, row.sequence, sequences, recompute, given)
    profile, rounds = _profile(row, scheme, model), given.rounds * (row.microbatch // sequences)
    family, stages = FAMILY[scheme], profile.num_stages
    time = _time(scheme, _shape(family, row.gpus, stages, rounds * row.gpus), profile, given)
    few = _shape(family, row.gpus, stages, MEMORY_ROUNDS * row.gpus)
    memory = (_memory(few, _untimed(profile)) + model.recomputed_bytes) / GIB
    tokens = rounds * sequences * row.sequence
    return Prediction(tokens / time * 1e3, memory, memory <= given.capacity)


def _profile(row: Row, scheme: str, model: Transformer) -> Profile:
    """The profile of a row's model for a scheme.

    FSDP gathers weights layer by layer, by ring collectives that are as fast as their slowest link.
    """
    given = model.given
    inside = given.pcie if row.over_pcie else given.nvlink
    links = in_nodes(row.gpus, min(NODE, row.gpus), Link(0.0, inside), Link(0.0, given.ethernet))
    profile = model.on(row.gpus, links)
    if scheme != "FSDP":
        return profile
    slowest = min(inside, given.ethernet) if row.gpus > NODE else inside
    by_layer = profile.split(model.layers // row.gpus)
    return replace(by_layer, links=Links(Link(0.0, slowest)))


@cache
def _shape(family: str, ranks: int, stages: int, count: int) -> Schedule:
    """A schedule of the family for an arbitrary profile, with ``count`` microbatches. Its order of
    ops and its transfers are used for every profile, as they do not depend on the profile's
    numbers."""
    unit = StageProfile(1.0, 1.0, 1.0, activation_bytes=1.0, weight_bytes=1.0)
    return build_family(family, Profile((unit,) * stages, ranks), count)


def _on(shape: Schedule, profile: Profile) -> Schedule:
    return replace(shape, problem=replace(shape.problem, profile=profile), timing=None)


def _time(scheme: str, shape: Schedule, profile: Profile, given: Assumptions) -> float:
    """The time of an iteration in ms: the period for zero-bubble schemes, otherwise the makespan.

    Without overlap, a message with activations blocks both of its ranks. With overlap, no op waits
    for a message, but the iteration takes at least the time of the busiest wire.
    """
    wires = _wire_time(scheme, shape, profile, given)
    if scheme in given.overlap:
        profile = replace(profile, links=None)
    elif scheme in PASS_ACTIVATIONS:
        profile = _blocking(profile)
    objective = Objective.PERIOD if scheme in ZERO_BUBBLE else Objective.MAKESPAN
    return max(wires, simulate(in_sending_order(_on(shape, profile))).cost(objective))


def _blocking(profile: Profile) -> Profile:
    """Add the time of each message with activations or their gradients to the ops that send and
    receive it."""
    stages, last = profile.stages, profile.num_stages - 1
    delays = profile.link_delays(stages[0].activation_bytes or 0.0)
    hops = [0.0, *(float(delays[s, s + 1]) for s in range(last)), 0.0]
    longer = tuple(
        replace(stage, t_f=stage.t_f + hops[s] + hops[s + 1], t_b=stage.t_b + hops[s] + hops[s + 1])
        for s, stage in enumerate(stages)
    )
    return replace(profile, stages=longer, links=None)


def _wire_time(scheme: str, shape: Schedule, profile: Profile, given: Assumptions) -> float:
    """The time in ms that the busiest wire needs to carry all its bytes of an iteration."""
    assert profile.links is not None
    stage = profile.stages[0]
    size = stage.activation_bytes if scheme in PASS_ACTIVATIONS else stage.weight_bytes
    sent = traffic(shape) * (size or 0.0)  # the shape's messages have size 1
    if scheme == "FSDP":  # each link of the ring carries what each rank receives
        return profile.links.default.delay(float(sent.sum(axis=0).max()))
    slowest = float((sent * profile.link_delays(1.0)).max())
    if given.node_wire is None:
        return slowest
    nodes = np.arange(profile.ranks) // NODE
    inside = sent[(nodes == 0)[:, None] & (nodes == 0)]
    return max(slowest, Link(0.0, given.node_wire).delay(float(inside.sum())))


def _untimed(profile: Profile) -> Profile:
    """The profile without delays, and with T_F : T_B : T_W = 1 : 2 : 1."""
    stages = (replace(stage, t_f=1.0, t_b=2.0, t_w=1.0) for stage in profile.stages)
    return replace(profile, stages=tuple(stages), links=None)


@cache
def _memory(shape: Schedule, profile: Profile) -> float:
    """The highest peak memory of any rank, in bytes."""
    return max(footprint(_on(shape, profile)).total)
