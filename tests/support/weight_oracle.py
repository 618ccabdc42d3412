"""The least makespan of a tiny weight-passing instance, by exhaustive search.

It tries all owners, all paths of copies over the other ranks, all orders of transfers on the wires,
and all orders of a rank's ops within its memory limit. Weight gradients (D) use the time that
weights leave free, as nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations, product

from pipeloom.ir import Problem, StageProfile

Leg = tuple[int, int, int, int]  # stage, copy, from, to


def least_makespan(problem: Problem) -> float:
    """The least makespan of an instance in which every rank has microbatches."""
    ranks, stages, profile = range(problem.ranks), range(problem.stages), problem.profile
    sizes = [stage.weight_bytes or 0.0 for stage in profile.stages]
    if profile.links is None:
        delays = [profile.delays(None).tolist() for _ in sizes]
    else:
        delays = [profile.link_delays(size).tolist() for size in sizes]
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
    """All sets of paths from the owner that together visit each other rank once, as legs."""
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
    """All orders of the legs that keep the order of each copy's legs."""
    for order in permutations(range(len(legs))):
        place = {leg: at for at, leg in enumerate(order)}
        if all(
            place[i] < place[i + 1] for i in range(len(legs) - 1) if legs[i][:2] == legs[i + 1][:2]
        ):
            yield [legs[i] for i in order]


def _arrivals(
    problem: Problem, owner: Sequence[int], legs: Sequence[Leg], delays: list[list[list[float]]]
) -> dict[tuple[int, int], float]:
    """The time at which the weights of a stage arrive on a rank, by (stage, rank)."""
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
    """The earliest end of the rank's last op; infinite if no order fits in its memory."""
    number = problem.owner[0].tolist().count(rank)
    arrived = tuple(came[s, rank] for s in range(problem.stages))
    return _least_end(problem.profile.stages, problem.memory_limit[rank], number, arrived)


Place = tuple[int, int]  # progress of a microbatch: number of F's and B's done, number of W's done


@cache
def _least_end(
    stages: tuple[StageProfile, ...], limit: float, number: int, arrived: tuple[float, ...]
) -> float:
    """Dynamic programming over sets of finished ops, with the earliest time for each."""
    last = (2 * len(stages), len(stages))
    earliest: dict[tuple[Place, ...], float] = {((0, 0),) * number: 0.0}
    for _ in range(3 * len(stages) * number):
        further: dict[tuple[Place, ...], float] = {}
        for places, clock in earliest.items():
            for i, place in enumerate(places):
                for after, start, duration in _next(stages, place, clock, arrived):
                    moved = tuple(sorted((*places[:i], after, *places[i + 1 :])))
                    started = (*places[:i], (place[0] + 1, place[1]), *places[i + 1 :])
                    if place[0] < len(stages) and _held(stages, started) > limit * (1 + 1e-9):
                        continue
                    end = start + duration
                    further[moved] = min(end, further.get(moved, float("inf")))
        earliest = further
    return earliest.get((last,) * number, float("inf"))


def _next(
    stages: tuple[StageProfile, ...], place: Place, clock: float, arrived: tuple[float, ...]
) -> Iterator[tuple[Place, float, float]]:
    """The ops that a microbatch can run next: its place afterwards, their start and duration."""
    (done, written), number = place, len(stages)
    if done < number:
        yield (done + 1, written), max(clock, arrived[done]), stages[done].t_f
    elif done < 2 * number:
        yield (done + 1, written), clock, stages[2 * number - 1 - done].t_b
    if written < done - number:
        yield (done, written + 1), clock, stages[number - 1 - written].t_w


def _held(stages: tuple[StageProfile, ...], places: Sequence[Place]) -> float:
    """The activation memory of microbatches at ``places``."""
    total, number = 0.0, len(stages)
    for done, written in places:
        back = max(0, done - number)
        total += sum(stage.m_b for stage in stages[: min(done, number) - back])
        total += sum(stages[number - 1 - k].m_w for k in range(written, back))
    return total
