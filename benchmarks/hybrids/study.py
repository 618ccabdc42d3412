"""The clusters, the model, and what ``--passing auto`` chooses for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from pipeloom.ir.model.links import Link, Links
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration
from pipeloom.planner.clusters.islands import islands
from pipeloom.planner.models.uniform import Transformer
from pipeloom.planner.passing.choose import choose
from pipeloom.planner.passing.reasons import as_json
from pipeloom.solver.optimize import optimize

from ..markdown import markdown

RANKS, MICROBATCHES = 8, 32
LAYERS, HIDDEN, TERAFLOPS, DEVICE_MEMORY = 32, 2048, 150.0, 40e9
SEQUENCES = (1024, 4096, 8192, 16384, 32768, 65536)
WORK = 1.0  # millions of simulated ops for each choice: repeatable
FAST = Link(0.005, 200.0)


def rails(between: Link) -> Profile:
    """Two rows of four: each rank has a fast link to its like in the other row, slow ones in its
    own."""
    cluster = islands(RANKS, RANKS, between, between)
    pairs = tuple(
        (a, b, FAST) for a, b in combinations(range(RANKS), 2) if (b - a) % (RANKS // 2) == 0
    )
    return replace(cluster, links=Links(between, pairs))


CLUSTERS: dict[str, Profile] = {
    "2 nodes of 4, 2 GB/s": islands(RANKS, 4, FAST, Link(0.02, 2.0)),
    "4 nodes of 2, 2 GB/s": islands(RANKS, 2, FAST, Link(0.02, 2.0)),
    "4 nodes of 2, 25 GB/s": islands(RANKS, 2, FAST, Link(0.02, 25.0)),
    "4 rails of 2, 2 GB/s": rails(Link(0.02, 2.0)),
}


def cells() -> Iterator[dict[str, Any]]:
    """The choice on each cluster at each length, with all candidates."""
    for name, cluster in CLUSTERS.items():
        for sequence in SEQUENCES:
            yield {"cluster": name, "sequence": sequence, **cell(cluster, sequence)}


def cell(cluster: Profile, sequence: int) -> dict[str, Any]:
    model = Transformer(LAYERS, HIDDEN, sequence, 1, TERAFLOPS, recompute=True)
    profile = replace(model.on(cluster), device_memory=(DEVICE_MEMORY,) * RANKS)
    choice = choose(profile, MICROBATCHES, search=search)
    answer = as_json(choice)
    return {"best": answer["scheme"], **answer}


def search(problem: Problem, scheme: str, share: float) -> Schedule:
    """The optimizer, repeatable."""
    return optimize(problem, solver="heuristic", work_limit=WORK * share, by_step=True)


def winners(found: Sequence[dict[str, Any]]) -> set[str]:
    """The kinds of scheme that are chosen somewhere."""
    return {str(cell["best"]).partition(":")[0] for cell in found}


SCHEMES = ("activations", "weights-inside", "activations-inside", "weights", "fsdp")


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    """One line a cell: the best step, and by how much each kind is slower."""
    rows = [[cell["cluster"], str(cell["sequence"]), *_steps(cell["schemes"])] for cell in found]
    return markdown(["cluster", "tokens", "best step", *SCHEMES], rows, left=1)


def _steps(schemes: Sequence[dict[str, Any]]) -> list[str]:
    """The fastest first: of each kind the best size of islands; what does not fit is left out."""
    usable = [scheme for scheme in schemes if scheme["fits"]]
    least = usable[0]["step"]
    return [duration(least), *(_against(kind, usable, least) for kind in SCHEMES)]


def _against(kind: str, usable: Sequence[dict[str, Any]], least: float) -> str:
    own = [scheme for scheme in usable if scheme["scheme"].partition(":")[0] == kind]
    if not own:
        return "does not fit"
    size = own[0]["scheme"].partition(":")[2]
    words = "**best**" if own[0] is usable[0] else f"+{own[0]['step'] / least - 1:.1%}"
    return f"{words} (Q = {size})" if size else words
