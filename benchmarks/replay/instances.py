"""The questions, by kind: seeded profiles and what the optimizer is asked about each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .profiles import (
    HEAVY,
    HELD,
    HOST_LINK,
    LINKS,
    NODES,
    OFFLOADED,
    RECOMPUTED,
    SIZES,
    T_B,
    T_F,
    T_W,
    Document,
    drawn,
    equal,
    layered,
    matrix,
    unequal,
    unlike,
    with_keys,
)

LINEAR, PLACED, FEW, REMAT = 20.0, 4.0, 0.5, 20.0
"""Millions of simulated ops of a solve: one stage a rank, several, several placements to solve,
recomputation or offload."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to ``pipeloom.optimize``, asked with each of the seeds.

    ``work``: millions of simulated ops. ``chosen``: whether the placement, the passing or the cut
    is chosen, so that there is no one problem whose bounds can be listed.
    """

    kind: str
    profile: Document
    microbatches: int
    options: dict[str, Any]
    work: float

    @property
    def name(self) -> str:
        """Its kind, number of ranks and options, which no other question has."""
        options = (f"{key}={_short(value)}" for key, value in self.options.items())
        shape = f"P={self.profile['ranks']} M={self.microbatches}"
        return " ".join([f"{self.kind}: {shape}", *options])

    @property
    def chosen(self) -> bool:
        cut = "layers" in self.profile and self.options.get("partition", "joint") == "joint"
        return cut or "auto" in self.options.values() or "for_" in self.options


@dataclass(frozen=True, slots=True)
class Family:
    """A family's schedule of a profile."""

    family: str
    profile: Document
    microbatches: int
    kind: str = "families"

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.family} P={self.profile['ranks']} M={self.microbatches}"


def _short(value: Any) -> str:
    return str(value).replace(" ", "")


def questions() -> Iterator[Question]:
    """All that the optimizer is asked."""
    for kinds in (_linear, _placed, _two_copies, _chosen, _weights, _remat, _timed, _unlike, _cut):
        yield from kinds()
    yield from _others()


def _ask(
    kind: str,
    profile: Document,
    microbatches: int,
    placement: Any = "linear",
    work: float | None = None,
    **options: Any,
) -> Question:
    usual = LINEAR if placement == "linear" else PLACED
    asked = {"placement": placement, **options}
    return Question(kind, profile, microbatches, asked, usual if work is None else work)


def _linear() -> Iterator[Question]:
    """One stage a rank."""
    for ranks, limit, count in (
        (2, 1.7, 6), (3, 2.4, 8), (4, 4.0, 9), (4, 6.3, 11), (5, 5.0, 12), (6, None, 13),
        (7, 9.5, 18), (8, 16.0, 24), (12, 12.0, 20),
    ):  # fmt: skip
        yield _ask("equal", equal(ranks, limit), count)
    for seed, (ranks, limit, count, memory, ends) in enumerate((
        (3, 3.5, 10, 0.0, 1.0), (5, 6.0, 13, 0.1, 1.0), (6, 7.5, 17, 0.0, 1.3),
        (8, 8.0, 25, 0.0, 1.0), (4, 4.4, 8, 0.1, 1.2), (4, 6.0, 15, 0.3, 1.0),
        (7, 7.0, 14, 0.1, 1.0), (10, 12.0, 21, 0.0, 1.0), (16, 20.0, 18, 0.0, 1.1),
    ), start=1):  # fmt: skip
        profile = unequal(ranks, limit, seed=seed, memory=memory, ends=ends)
        yield _ask("unequal", profile, count)
    for ranks, limit, count, own in (
        (4, 1.9, 14, None), (5, 3.0, 11, None), (6, 2.5, 12, 5), (8, 3.6, 16, 6), (3, 1.4, 9, 51),
        (4, 2.6, 7, 52), (5, 2.1, 10, 53), (6, 4.1, 18, 54), (7, 3.2, 9, 55),
    ):  # fmt: skip
        profile = equal(ranks, limit) if own is None else unequal(ranks, limit, seed=own)
        yield _ask("low memory", profile, count)
    for number in range(12):
        ranks, count = 2 + number % 5, 5 + number * 5 % 9
        yield _ask("drawn", drawn(ranks, number), count)


def _placed() -> Iterator[Question]:
    """Several stages a rank."""
    for kind, placement, ranks, limit, count, seed in (
        ("v", "v", 3, 2.5, 7, None), ("v", "v", 4, 2.0, 12, None), ("v", "v", 5, 3.0, 11, 7),
        ("v", "v", 6, 4.0, 10, 8), ("v", "v", 4, 5.0, 8, None), ("v", "v", 3, 2.2, 13, 61),
        ("v", "v", 8, 8.0, 16, 62), ("v", "v", 2, 1.5, 6, 63),
        ("wave", "wave:2", 3, 3.0, 8, None), ("wave", "wave:3", 2, 4.0, 5, 9),
        ("wave", "wave:2", 5, 4.0, 7, 10), ("wave", "wave:2", 4, 6.0, 12, None),
        ("wave", "wave:2", 3, 2.4, 11, 64), ("wave", "wave:3", 3, 5.0, 6, 65),
        ("interleaved", "interleaved:2", 4, 5.0, 10, None),
        ("interleaved", "interleaved:3", 3, 3.0, 7, None),
        ("interleaved", "interleaved:2", 5, 5.5, 13, 11),
        ("interleaved", "interleaved:2", 8, 10.0, 16, None),
        ("interleaved", "interleaved:2", 3, 2.6, 9, 66),
        ("interleaved", "interleaved:4", 2, 2.5, 8, 67),
        ("interleaved", "interleaved:3", 4, 4.2, 12, 68),
        ("interleaved", "interleaved:2", 6, 4.0, 11, 69),
    ):  # fmt: skip
        each = int(placement.partition(":")[2] or 2) * (2 if kind == "wave" else 1)
        profile = equal(ranks, limit) if seed is None else unequal(
            ranks, limit, seed=seed, stages=each * ranks if seed > 60 else None
        )  # fmt: skip
        yield _ask(kind, profile, count, placement)
    for profile, count, owners in (
        (equal(3, 3.0), 8, [0, 1, 2, 2, 0, 1]),
        (unequal(2, 3.0, seed=12, stages=5), 9, [0, 1, 1, 0, 1]),
        (unequal(5, 3.5, seed=13), 6, [0, 1, 2, 3, 4, 3, 2, 4, 1, 0]),
        (unequal(4, 4.5, seed=70, stages=6), 10, [0, 1, 2, 3, 1, 0]),
    ):
        yield _ask("owners", profile, count, owners)
    for number, placement in enumerate(["v", "interleaved:2", "wave:1", "interleaved:3"] * 2):
        ranks = 2 + number % 4
        each = int(placement.partition(":")[2] or 2) * (2 if "wave" in placement else 1)
        profile = drawn(ranks, 20 + number, stages=each * ranks)
        yield _ask("drawn placed", profile, 4 + number, placement)


def _two_copies() -> Iterator[Question]:
    """Microbatches both ways, on two copies of the stages."""
    for ranks, limit, count, keys in (
        (4, 5.0, 8, {}), (6, 6.0, 10, {}), (2, 3.0, 6, {"t_comm": 8.0}), (4, 3.0, 12, {}),
        (4, 4.0, 6, {"t_comm": 5.0}), (8, 9.0, 12, {}),
    ):  # fmt: skip
        yield _ask("bidirectional", equal(ranks, limit, **keys), count, "bidirectional")
    for ranks, limit, count, seed in ((4, 5.0, 7, 16), (6, 8.0, 9, 71)):
        yield _ask("bidirectional", unequal(ranks, limit, seed=seed), count, "bidirectional")


def _chosen() -> Iterator[Question]:
    """The placement, the copies or what is passed is chosen."""
    for profile, count in (
        (equal(3, 2.2), 7), (unequal(4, 4.0, seed=14), 9), (unequal(5, 3.0, seed=15), 11),
        (equal(4, 6.0), 8),
    ):  # fmt: skip
        yield _ask("placement auto", profile, count, "auto", FEW)
    sized = with_keys(equal(4, links=LINKS), SIZES | HELD) | {"device_memory": 3e9}
    yield _ask("copies auto", sized, 8, "auto", FEW)
    for profile, count in (
        (equal(6, 6.0), 10), (unequal(4, 5.0, seed=16), 7), (equal(2, 3.0, t_comm=8.0), 6),
    ):  # fmt: skip
        yield _ask("copies auto", profile, count, "auto", FEW, copies=2)
    long = {"activation_bytes": 5e8, "weight_bytes": 1e7, "grad_bytes": 1e7}
    nodes = unequal(4, seed=17, links=NODES, device_memory=3e9)
    full = with_keys(unequal(4, seed=17, links=LINKS), HEAVY | HELD)
    for profile, count in (
        (with_keys(equal(3, links=LINKS), SIZES), 9),
        (with_keys(equal(6, links=LINKS), SIZES) | {"memory_limit": 6.0}, 13),
        (with_keys(nodes, SIZES | HELD | long), 12),
        (full | {"device_memory": 2e10}, 8),
    ):
        yield _ask("passing auto", profile, count, "linear", 2 * PLACED, passing="auto")


def _weights() -> Iterator[Question]:
    """Weights are passed."""
    sized = {ranks: with_keys(equal(ranks, links=LINKS), SIZES) for ranks in (3, 4, 5, 6, 8)}
    heavy = SIZES | {"weight_bytes": 1.5e9, "grad_bytes": 1.5e9}
    slow = with_keys(unequal(4, seed=17, links=LINKS), heavy)
    full = with_keys(slow, HELD) | {"device_memory": 1.7e10}
    for profile, count in (
        (sized[3], 10), (sized[5] | {"memory_limit": 12.0}, 15), (slow, 9), (full, 12),
        (with_keys(sized[6], heavy), 13), (sized[4] | {"memory_limit": 4.5}, 8),
        (with_keys(unequal(5, seed=72, links=NODES), SIZES), 11), (sized[8], 16),
    ):  # fmt: skip
        yield _ask("weights", profile, count, "linear", PLACED, passing="weights")
    yield _ask("weights", sized[4], 6, passing="weights", objective="makespan")


def _remat() -> Iterator[Question]:
    """Recomputation, offload, and a B and W that are cheaper as one op."""
    for ranks, limit, count, options in (
        (4, 2.0, 9, {}), (3, 1.5, 7, {"recompute": "all"}), (4, 6.0, 8, {}), (4, 12.0, 10, {}),
    ):  # fmt: skip
        profile = with_keys(equal(ranks), RECOMPUTED)
        yield _ask("recompute", profile, count, work=REMAT, memory_limit=limit, **options)
    different = with_keys(unequal(5, 2.2, seed=18), RECOMPUTED)
    alike = with_keys(equal(4, 3.0), RECOMPUTED)
    for profile, count, placement in (
        (different, 8, "linear"), (different, 8, "v"), (alike, 7, "v"),
        (with_keys(unequal(3, 2.0, seed=73, stages=6), RECOMPUTED), 6, "interleaved:2"),
        (with_keys(unequal(4, 6.0, seed=74), RECOMPUTED), 9, "linear"),
    ):  # fmt: skip
        yield _ask("recompute", profile, count, placement, REMAT)
    for ranks, limit, count in ((4, 2.0, 9), (3, 1.4, 8), (5, 3.0, 10)):
        profile = with_keys(equal(ranks, limit, host_link=HOST_LINK), OFFLOADED)
        yield _ask("offload", profile, count, work=REMAT)
    both = with_keys(unequal(5, 2.0, seed=19, host_link=HOST_LINK), OFFLOADED | RECOMPUTED)
    yield _ask("offload", both, 7, work=REMAT)
    yield _ask("offload", both, 7, work=REMAT, recompute="none")
    yield _ask("offload", both, 7, work=REMAT, offload="none")
    fused = {"t_bw": round(0.85 * (T_B + T_W), 3)}
    for profile, count, placement in (
        (equal(4, 4.0), 9, "linear"), (equal(5, 8.0), 8, "linear"),
        (unequal(3, 2.5, seed=20, times=0.05), 7, "v"),
        (unequal(4, 5.0, seed=75, times=0.05), 11, "linear"), (equal(3, 3.0), 8, "interleaved:2"),
    ):  # fmt: skip
        yield _ask("fused", with_keys(profile, fused), count, placement, REMAT)


def _timed() -> Iterator[Question]:
    """The makespan, slow messages, overlap and averaging."""
    for profile, count, placement in (
        (equal(4, 4.0), 11, "linear"), (unequal(5, 6.0, seed=21), 9, "linear"),
        (equal(3, 2.2), 8, "v"), (unequal(6, 5.0, seed=76), 13, "linear"),
        (equal(4, 5.0), 9, "interleaved:2"), (drawn(4, 40), 10, "linear"),
        (equal(4, 5.0), 8, "bidirectional"), (equal(8, 8.0), 18, "linear"),
    ):  # fmt: skip
        yield _ask("makespan", profile, count, placement, objective="makespan")
    for profile, count, placement in (
        (equal(4, 7.0, t_comm=15.0), 10, "linear"), (equal(5, 9.0, t_comm=60.0), 9, "linear"),
        (unequal(6, 9.0, seed=22, t_comm=matrix(6, 20.0, 1)), 11, "linear"),
        (equal(3, 4.0, t_comm=20.0), 8, "v"), (equal(4, 6.0, t_comm=10.0), 8, "interleaved:2"),
        (unequal(4, 8.0, seed=77, t_comm=matrix(4, 40.0, 2)), 12, "linear"),
    ):  # fmt: skip
        yield _ask("slow messages", profile, count, placement)
    overlap = {"t_fb": round(0.85 * (T_F + T_B + T_W), 3)}
    for profile, count, placement in (
        (equal(4, 5.0), 9, "linear"), (equal(3, 3.0), 8, "v"),
        (unequal(5, 6.0, seed=23, times=0.03), 11, "interleaved:2"),
        (unequal(4, 8.0, seed=78, times=0.03), 10, "linear"),
    ):  # fmt: skip
        yield _ask("overlap", with_keys(profile, overlap), count, placement)
    replicas = {"data_parallel": {"size": 4, **LINKS}}
    for ranks, count, placement in (
        (4, 8, "linear"), (4, 9, "v"), (3, 7, "interleaved:2"), (6, 11, "linear"),
    ):  # fmt: skip
        profile = with_keys(equal(ranks, 5.0) | replicas, SIZES)
        yield _ask("averaging", profile, count, placement)


def _unlike() -> Iterator[Question]:
    """Microbatches that take different times and memory."""
    for ranks, limit, count, placement, seed in (
        (3, 4.0, 8, "linear", 81), (4, 5.0, 10, "linear", 82), (4, 8.0, 7, "linear", 83),
        (5, 6.0, 9, "linear", 84), (3, 5.0, 6, "v", 85), (4, 6.0, 8, "interleaved:2", 86),
    ):  # fmt: skip
        stages = ranks * (1 if placement == "linear" else 2)
        profile = unlike(ranks, limit, stages=stages, microbatches=count, seed=seed)
        yield _ask("unlike", profile, count, placement)


def _cut() -> Iterator[Question]:
    """Profiles by layers."""
    for ranks, limit, blocks, seed, count, placement, options in (
        (3, 20.0, 13, 24, 8, "linear", {}), (4, 14.0, 16, 25, 9, "linear", {"max_layers": 7}),
        (3, 12.0, 12, 26, 7, "v", {}), (5, 24.0, 19, 27, 11, "linear", {"partition": "balanced"}),
        (4, None, 16, 28, 10, "linear", {"partition": "even"}),
        (6, 18.0, 22, 29, 12, "linear", {"partition": "balanced"}),
        (4, 16.0, 14, 31, 8, "interleaved:2", {"partition": "balanced"}),
    ):  # fmt: skip
        profile = layered(ranks, limit, blocks=blocks, seed=seed)
        yield _ask("layers", profile, count, placement, PLACED, **options)
    profile = layered(3, 14.0, blocks=11, seed=29)
    yield _ask("layers", profile, 8, "auto", FEW)
    for system in ("megatron", "torchtitan"):
        yield _ask("system", layered(4, 30.0, blocks=14, seed=30), 8, "linear", PLACED, for_=system)
        yield _ask("system", unequal(4, 12.0, seed=32, stages=8), 8, "auto", FEW, for_=system)


def _others() -> Iterator[Question]:
    """Slow ranks, limits by rank and by device, single solvers, and limits that nothing keeps."""
    for slow, profile, placement in (
        ({1: 1.3}, equal(4, 5.0), "linear"), ({0: 1.2, 3: 1.1}, unequal(4, 6.0, seed=33), "linear"),
        ({2: 1.25}, equal(3, 3.0), "v"),
    ):  # fmt: skip
        yield _ask("slow", profile, 9, placement, slow=slow)
    by_rank = equal(4) | {"memory_limit": [2.0, 3.5, 4.0, 3.0]}
    yield _ask("limits", by_rank, 10)
    yield _ask("limits", by_rank, 8, "v")
    held = with_keys(unequal(5, seed=34, links=LINKS), SIZES | HELD) | {"device_memory": 2e9}
    yield _ask("limits", held, 9)
    yield _ask("limits", held, 7, "interleaved:1")
    yield _ask("solver", equal(3, 3.0), 4, solver="cp-sat")
    yield _ask("solver", unequal(3, 2.5, seed=30), 3, work=100, solver="milp")
    yield _ask("solver", unequal(6, 5.0, seed=31), 14, solver="heuristic")
    yield _ask("infeasible", equal(4, 0.9), 8)
    yield _ask("infeasible", unequal(5, 0.4, seed=33), 9, "v")
    yield _ask("infeasible", with_keys(equal(3, 0.5), RECOMPUTED | {"m_r": 0.6}), 6)


FAMILY_SIZES = ((4, 8), (3, 7), (6, 13))
PARAMETRIZED = ("interleaved-1f1b:3", "looped-bfs:3", "zb-v:3", "wave:2", "fsdp:0")


def built(families: Iterable[str]) -> Iterator[Family]:
    """Each family for each size, its stages unequal but for the first size."""
    for number, (ranks, microbatches) in enumerate(FAMILY_SIZES):
        spread = 0.2 if number else 0.0
        profile = with_keys(unequal(ranks, seed=40 + number, times=spread, links=LINKS), SIZES)
        for family in (*families, *PARAMETRIZED):
            yield Family(family, profile, microbatches)
