"""The least makespan of a tiny instance where weights travel, over everything that could decide it.

For tests alone, without memory limits. All owners, all ways in which copies could pass the other
ranks, all orders of the transfers on the wires. On a rank the ops are then one machine's with release
times and precedence, where taking what was released first, of what may run, is optimal (Lawler, 1973). D's
travel on what weights leave free: nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from pipeloom.ir.problem import Problem
from pipeloom.ir.schedule import TravelKind
from pipeloom.ir.travel import delay_matrix

Leg = tuple[int, int, int, int]  # stage, copy, from, to


def least_makespan(problem: Problem) -> float:
    """Of an instance in which every rank has microbatches."""
    ranks, stages = range(problem.ranks), range(problem.stages)
    delays = [delay_matrix(problem.profile, TravelKind.WEIGHT, s).tolist() for s in stages]
    best = float("inf")
    for owner in product(ranks, repeat=problem.stages):
        ways = [list(_routes(owner[s], [r for r in ranks if r != owner[s]])) for s in stages]
        for routes in product(*ways):
            legs = [
                (s, c, *leg) for s in stages for c, path in enumerate(routes[s]) for leg in path
            ]
            for listed in _listings(legs):
                came = _arrivals(problem, owner, listed, delays)
                best = min(best, max(_end(problem, rank, came) for rank in ranks))
    return best


def _routes(owner: int, others: list[int]) -> Iterator[list[list[tuple[int, int]]]]:
    """Every set of paths from the owner that passes each of the others once, as legs."""
    if not others:
        yield []
        return
    for order in permutations(others):
        for cuts in product([False, True], repeat=len(order) - 1):
            paths: list[list[tuple[int, int]]] = []
            for rank, start in zip(order, (True, *cuts), strict=True):
                if start:
                    paths.append([(owner, rank)])
                else:
                    paths[-1].append((paths[-1][-1][1], rank))
            if [p[0][1] for p in paths] == sorted(p[0][1] for p in paths):  # sets of paths
                yield paths


def _listings(legs: list[Leg]) -> Iterator[Sequence[Leg]]:
    """Every order of the legs in which each copy's come one after the other."""
    for order in permutations(range(len(legs))):
        place = {leg: at for at, leg in enumerate(order)}
        if all(
            place[i] < place[i + 1] for i in range(len(legs) - 1) if legs[i][:2] == legs[i + 1][:2]
        ):
            yield [legs[i] for i in order]


def _arrivals(
    problem: Problem, owner: Sequence[int], legs: Sequence[Leg], delays: list[list[list[float]]]
) -> dict[tuple[int, int], float]:
    """By stage and rank: when the weights are there."""
    links = problem.profile.links
    came = dict.fromkeys(enumerate(owner), 0.0)
    free: dict[str, float] = {}
    for stage, _, source, target in legs:
        wires = () if links is None else links.wires(source, target, problem.ranks)
        start = max([came[stage, source], *(free.get(wire, 0.0) for wire in wires)])
        end = start + delays[stage][source][target]
        came[stage, target] = end
        free.update(dict.fromkeys(wires, end))
    return came


def _end(problem: Problem, rank: int, came: dict[tuple[int, int], float]) -> float:
    """When the rank's last op ends at the earliest."""
    number = problem.placement.owners.count(rank)
    stages = problem.profile.stages
    ready, ops = 0.0, []
    for s, stage in enumerate(stages):
        ready = max(ready, came[s, rank])
        ops.append((ready, stage.t_f))
        ready += stage.t_f
    for stage in reversed(stages):
        ops += [(ready, stage.t_b), (ready + stage.t_b, stage.t_w)]
        ready += stage.t_b
    clock = 0.0
    for release, duration in sorted(ops * number, key=lambda op: op[0]):
        clock = max(clock, release) + duration
    return clock
