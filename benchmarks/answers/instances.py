"""The instances, by kind: seeded profiles and the command that each is asked by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    equal,
    layered,
    matrix,
    unequal,
    with_keys,
)

WORK = 20.0
"""Millions of simulated ops of each solve, unless an instance says otherwise."""
FEW = 5.0
"""The same where there are several placements to solve."""
OWNERS = "OWNERS.json"
"""In options: the file that holds an instance's ``owners``."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A command and what it is asked; ``owners``: the rank of each stage, for ``--placement``."""

    kind: str
    profile: Document
    options: tuple[str, ...]
    command: tuple[str, ...] = ("optimize",)
    owners: tuple[int, ...] = ()
    program: bool = False

    @property
    def name(self) -> str:
        """Its kind, number of ranks and options, which no other instance has."""
        words = (*self.command[1:], f"P={self.profile['ranks']}", *self.options)
        return f"{self.kind}: {' '.join(words)}"


def searched(
    kind: str,
    profile: Document,
    microbatches: int,
    *options: str,
    work: float = WORK,
    seed: int = 0,
    owners: tuple[int, ...] = (),
    command: str = "optimize",
) -> Instance:
    """An instance for the optimizer, its work limited and its seed given."""
    limits = ("--work-limit", f"{work:g}", "--seed", str(seed))
    words = ("-m", str(microbatches), *options, *limits)
    return Instance(kind, profile, words, (command,), owners)


def instances() -> Iterator[Instance]:
    """The instances that the optimizer is asked."""
    for kinds in (_linear, _placed, _passing, _remat, _timed, _cut, _others):
        yield from kinds()


def _linear() -> Iterator[Instance]:
    """One stage a rank."""
    yield searched("equal", equal(4, 4.0), 9)
    yield searched("equal", equal(5, 5.0), 12, seed=1)
    yield searched("equal", equal(6), 13)
    yield searched("equal", equal(8, 16.0), 24)
    yield searched("unequal", unequal(3, 3.5, seed=1), 10)
    yield searched("unequal", unequal(5, 6.0, seed=2, memory=0.1), 13, seed=3)
    yield searched("unequal", unequal(6, 7.5, seed=3, ends=1.3), 17)
    yield searched("unequal", unequal(8, 8.0, seed=4), 25)
    yield searched("low memory", equal(4, 1.9), 14)
    yield searched("low memory", equal(5, 3.0), 11)
    yield searched("low memory", unequal(6, 2.5, seed=5), 12)
    yield searched("low memory", unequal(8, 3.6, seed=6, memory=0.1), 16)


def _placed() -> Iterator[Instance]:
    """Several stages a rank, and two copies of them."""
    yield searched("v", equal(3, 2.5), 7, "--placement", "v")
    yield searched("v", equal(4, 2.0), 12, "--placement", "v")
    yield searched("v", unequal(5, 3.0, seed=7), 11, "--placement", "v")
    yield searched("v", unequal(6, 4.0, seed=8, stages=12), 10, "--placement", "v")
    yield searched("wave", equal(3, 3.0), 8, "--placement", "wave:2")
    yield searched("wave", unequal(2, seed=9), 5, "--placement", "wave:3")
    yield searched("wave", unequal(5, 4.0, seed=10), 7, "--placement", "wave:2")
    yield searched("interleaved", equal(4, 5.0), 10, "--placement", "interleaved:2")
    yield searched("interleaved", equal(3, 3.0), 7, "--placement", "interleaved:3")
    yield searched("interleaved", unequal(5, 5.5, seed=11), 13, "--placement", "interleaved:2")
    for profile, microbatches, owners in (
        (equal(3, 3.0), 8, (0, 1, 2, 2, 0, 1)),
        (unequal(2, 3.0, seed=12, stages=5), 9, (0, 1, 1, 0, 1)),
        (unequal(5, 3.5, seed=13), 6, (0, 1, 2, 3, 4, 3, 2, 4, 1, 0)),
    ):
        yield searched("owners", profile, microbatches, "--placement", OWNERS, owners=owners)
    auto = ("--placement", "auto")
    yield searched("placement auto", equal(3, 2.2), 7, *auto, work=FEW)
    yield searched("placement auto", unequal(4, 4.0, seed=14), 9, *auto, work=FEW)
    yield searched("placement auto", unequal(5, 3.0, seed=15), 11, *auto, work=FEW)
    two, roomy = (*auto, "--copies", "2"), {"device_memory": 3e9}
    sized = with_keys(equal(4, links=LINKS), SIZES | HELD) | roomy
    yield searched("two copies", sized, 8, *auto, work=FEW)
    yield searched("two copies", equal(6, 6.0), 10, *two, work=FEW)
    yield searched("two copies", unequal(4, 5.0, seed=16), 7, *two, work=FEW)
    yield searched("two copies", equal(2, 3.0, t_comm=8.0), 6, *two, work=FEW)


def _passing() -> Iterator[Instance]:
    """Weights are passed, or whatever is fastest."""
    weights, auto = ("--passing", "weights"), ("--passing", "auto")
    sized = {ranks: with_keys(equal(ranks, links=LINKS), SIZES) for ranks in (3, 4, 5, 6)}
    heavy = SIZES | {"weight_bytes": 1.5e9, "grad_bytes": 1.5e9}
    slow = with_keys(unequal(4, seed=17, links=LINKS), heavy)
    full = with_keys(slow, HELD) | {"device_memory": 1.7e10}
    yield searched("weights", sized[3], 10, *weights)
    yield searched("weights", sized[5] | {"memory_limit": 12.0}, 15, *weights)
    yield searched("weights", slow, 9, *weights)
    yield searched("weights", full, 12, *weights)
    yield searched("weights", with_keys(sized[6], heavy), 13, *weights)
    two = unequal(4, seed=17, links=NODES, device_memory=3e9)
    long = {"activation_bytes": 5e8, "weight_bytes": 1e7, "grad_bytes": 1e7}
    yield searched("passing auto", sized[3], 9, *auto, work=10)
    yield searched("passing auto", sized[6] | {"memory_limit": 6.0}, 13, *auto, work=10)
    yield searched("passing auto", with_keys(two, SIZES | HELD | HEAVY), 9, *auto, work=10)
    yield searched("passing auto", with_keys(two, SIZES | HELD | long), 12, *auto, work=10)
    few = {"activation_bytes": 1e8, "weight_bytes": 2e8}
    yield searched("passing auto", with_keys(two, SIZES | HELD | few), 11, *auto, work=10)
    yield searched("passing auto", full | {"device_memory": 2e10}, 8, *auto, work=10)


def _remat() -> Iterator[Instance]:
    """Activations that may be recomputed or offloaded, and B's and W's that are cheaper as one
    op."""
    again = {ranks: with_keys(equal(ranks), RECOMPUTED) for ranks in (3, 4)}
    yield searched("recompute", again[4], 9, "--memory-limit", "2", work=40)
    yield searched("recompute", again[3], 7, "--recompute", "all", "--memory-limit", "1.5", work=40)
    drawn = with_keys(unequal(5, 2.2, seed=18), RECOMPUTED)
    yield searched("recompute", drawn, 8, work=40)
    yield searched("recompute", drawn, 8, "--placement", "v", work=40)
    away = {ranks: with_keys(equal(ranks, host_link=HOST_LINK), OFFLOADED) for ranks in (3, 4)}
    yield searched("offload", away[4], 9, "--memory-limit", "2", work=40)
    yield searched("offload", away[3], 8, "--memory-limit", "1.4", work=40)
    both = with_keys(unequal(5, 2.0, seed=19, host_link=HOST_LINK), OFFLOADED | RECOMPUTED)
    yield searched("offload", both, 7, work=40)
    yield searched("offload", both, 7, "--recompute", "none", work=40)
    fused = {"t_bw": round(0.85 * (T_B + T_W), 3)}
    yield searched("fused", with_keys(equal(4, 4.0), fused), 9, work=40)
    yield searched("fused", with_keys(equal(5, 8.0), fused), 8, work=40)
    drawn = with_keys(unequal(3, 2.5, seed=20, times=0.05), fused)
    yield searched("fused", drawn, 7, "--placement", "v", work=40)


def _timed() -> Iterator[Instance]:
    """The makespan, slow messages, overlap and averaging."""
    makespan = ("--objective", "makespan")
    yield searched("makespan", equal(4, 4.0), 11, *makespan)
    yield searched("makespan", unequal(5, 6.0, seed=21), 9, *makespan)
    yield searched("makespan", equal(3, 2.2), 8, *makespan, "--placement", "v")
    yield searched("makespan", with_keys(equal(4, links=LINKS), SIZES), 6, *makespan,
                   "--passing", "weights")  # fmt: skip
    yield searched("slow messages", equal(4, 7.0, t_comm=15.0), 10)
    yield searched("slow messages", equal(5, 9.0, t_comm=60.0), 9)
    yield searched("slow messages", unequal(6, 9.0, seed=22, t_comm=matrix(6, 20.0, 1)), 11)
    yield searched("slow messages", equal(3, 4.0, t_comm=20.0), 8, "--placement", "v")
    overlap = {"t_fb": round(0.85 * (T_F + T_B + T_W), 3)}
    yield searched("overlap", with_keys(equal(4, 5.0), overlap), 9)
    yield searched("overlap", with_keys(equal(3, 3.0), overlap), 8, "--placement", "v")
    drawn = with_keys(unequal(5, 6.0, seed=23, times=0.03), overlap)
    yield searched("overlap", drawn, 11, "--placement", "interleaved:2")
    replicas = {"data_parallel": {"size": 4, **LINKS}}
    averaged = {ranks: with_keys(equal(ranks, 5.0) | replicas, SIZES) for ranks in (3, 4)}
    yield searched("averaging", averaged[4], 8)
    yield searched("averaging", averaged[4], 9, "--placement", "v")
    yield searched("averaging", averaged[3], 7, "--placement", "interleaved:2")
    yield searched("averaging", averaged[3], 8, "--placement", "auto", work=FEW)


def _cut() -> Iterator[Instance]:
    """Profiles by layers."""
    yield searched("layers", layered(3, 20.0, blocks=13, seed=24), 8)
    yield searched("layers", layered(4, 14.0, blocks=16, seed=25), 9, "--max-layers", "7")
    yield searched("layers", layered(3, 12.0, blocks=12, seed=26), 7, "--placement", "v")
    yield searched("layers", layered(5, 24.0, blocks=19, seed=27), 11, "--partition", "balanced")
    yield searched("layers", layered(4, blocks=16, seed=28), 10, "--partition", "even")
    yield searched(
        "layers", layered(3, 14.0, blocks=11, seed=29), 8, "--placement", "auto", work=FEW
    )


def _others() -> Iterator[Instance]:
    """Single solvers, all families beside the optimizer, and limits that nothing keeps."""
    yield searched("solver", equal(3, 3.0), 4, "--solver", "cp-sat")
    yield searched("solver", unequal(3, 2.5, seed=30), 3, "--solver", "milp", work=100)
    yield searched("solver", unequal(6, 5.0, seed=31), 14, "--solver", "heuristic")
    yield searched("compare", equal(4, 8.0), 8, command="compare")
    yield searched("compare", unequal(3, 5.0, seed=32), 7, command="compare")
    sized = with_keys(equal(6, links=LINKS), SIZES)
    yield searched("compare", sized, 13, "--passing", "weights", command="compare")
    yield searched("infeasible", equal(4, 0.9), 8)
    yield searched("infeasible", unequal(5, 0.4, seed=33), 9, "--placement", "v")
    yield searched("infeasible", with_keys(equal(3, 0.5), RECOMPUTED | {"m_r": 0.6}), 6)


FAMILIES = "families"
FAMILY_SIZES = ((4, 8), (3, 7), (6, 13))
PARAMETRIZED = ("interleaved-1f1b:3", "looped-bfs:3", "zb-v:3", "wave:2", "fsdp:0")
PROGRAMS = (
    *("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "chimera", "dualpipev"),
    *("weipipe-interleave", "wzb2", "fsdp"),
)
"""Families whose schedules are compiled as well, the first size of each."""


def built(families: Iterable[str]) -> Iterator[Instance]:
    """Each family for each size, its stages unequal but for the first size."""
    for number, (ranks, microbatches) in enumerate(FAMILY_SIZES):
        spread = 0.2 if number else 0.0
        profile = with_keys(unequal(ranks, seed=40 + number, times=spread, links=LINKS), SIZES)
        for family in (*families, *PARAMETRIZED):
            program = number == 0 and family in PROGRAMS
            options = ("-m", str(microbatches))
            yield Instance(FAMILIES, profile, options, ("build", family), program=program)
