"""Requests for schedules: ``optimize``, ``compare``, ``sweep``, ``build``, ``pack``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pipeloom.ir.errors import InputError

from ..inputs.placement_spec import PlacementLike, PlacementSpec
from ..inputs.words import size_in, sizes_in, slow_in
from .fields import Request, option, place
from .kinds import AMOUNT, COUNT, MICROBATCHES, SECONDS, WHOLE, Kind, choice, stages, typed, whole

if TYPE_CHECKING:
    from pipeloom.ir.model.problem import Objective
    from pipeloom.ir.model.schedule import Schedule

    from ..inputs.documents import Document, FilePath, Planned
    from ..inputs.fixed_cut import CutLike
    from ..inputs.problem_setup import ProfileLike, ProfileSource, Slow
    from ..solving.progress import Listener
    from ..solving.search import Search

PASSINGS = ("activations", "weights")
WORKERS = typed(whole(1, 1024))


@dataclass(frozen=True, kw_only=True)
class Limited(Request):
    """A request with limits of a search, a listener to its progress, and a function that stops it.

    ``progress``: called with each event of the search; ``str(event)`` is a line of text.
    ``should_stop``: called repeatedly; once it returns true, the search returns the best result so
    far.
    """

    apart: ClassVar[Sequence[tuple[str, str]]] = (("time_limit", "work_limit"),)

    time_limit: float | None = option("S", SECONDS)
    """seconds for the search over all placements, 20 by default; stops earlier once the schedule is
    proven optimal"""
    work_limit: float | None = option("N", AMOUNT)
    """instead of --time-limit: work for each search and placement, in millions of simulated ops
    (about 100 take a second); the same seed gives the same schedule"""
    seed: int = option("N", WHOLE, default=0)
    """seed of random choices, 0 by default"""
    progress: Listener | None = None
    should_stop: Callable[[], bool] | None = None

    def search(self, seconds: float, **more: Any) -> Search:
        """The optimizer with this request's limits and listener.

        ``seconds``: the time limit if the request does not give one. ``more``: further options of
        :class:`pipeloom.solver.core.options.SolveOptions`.
        """
        from pipeloom.solver.core.options import SolveOptions
        from pipeloom.solver.core.stopping import NEVER

        from ..solving.progress import unheard
        from ..solving.search import Search

        limits: dict[str, Any] = {"time_limit": self.time_limit or seconds, "seed": self.seed}
        limits |= {"work_limit": self.work_limit, "should_stop": self.should_stop or NEVER}
        return Search(SolveOptions(**limits, **more), self.progress or unheard)


@dataclass(frozen=True, kw_only=True)
class Costed(Request):
    """A request with an objective: the cost of an iteration that is minimized."""

    objective: str | Objective | None = option(kind=choice("period", "makespan"))
    """cost of an iteration: without a barrier between optimizer steps (period) or with one
    (makespan); by default, the profile's barrier decides"""


@dataclass(frozen=True, kw_only=True)
class MemoryLimited(Costed):
    """A request with a memory limit."""

    memory_limit: float | str | None = option("X", Kind(size_in))
    """limit on the activation memory of every rank, in the profile's unit (such as 20G or 16GiB if
    the unit is bytes), or none; by default, the profile's memory_limit, which can be a list with
    one limit for each rank"""


@dataclass(frozen=True)
class Profiled(Request):
    """A request with a profile and a number of microbatches."""

    profile: ProfileLike | ProfileSource = field(metadata=place("PROFILE"))
    """profile file, - for standard input"""
    microbatches: int | None = option("M", MICROBATCHES, names=("-m", "--microbatches"))
    """microbatches of an iteration; by default, the length of the profile's lists, if it has any"""


@dataclass(frozen=True, kw_only=True)
class SearchRequest(Limited, Costed, Profiled):
    """The arguments common to all functions that search for schedules."""

    passing: str = option(kind=choice(*PASSINGS), default=PASSINGS[0])
    """what ranks send: activations (the default; each stage stays on its rank) or weights (each
    microbatch stays on its rank)"""
    placement: PlacementLike | None = option("P", Kind(PlacementSpec.of))
    """ranks of the stages: auto (the default) chooses the best of linear (stage s on rank s),
    interleaved:K (stage s on rank s mod P, K stages per rank), v (down the ranks and back up),
    wave:K (K such passes), and, if two copies of the weights are known to fit, bidirectional (stage
    s on ranks s and P-1-s); or a JSON file that lists the rank of each stage. A profile with one
    stage per rank is cut into at most max_stages stages"""
    solver: str = option(kind=typed(choice("auto", "cp-sat", "milp", "heuristic")), default="auto")
    """auto (the default) runs search, bounds and CP-SAT in parallel; heuristic runs only the
    search; milp solves an integer program with CBC"""
    partition: str | None = option(kind=choice("joint", "balanced", "even"))
    """how to cut a profile's layers into stages: joint (the default) optimizes the cut together
    with the schedule, balanced makes the longest stage as short as possible, even gives each stage
    the same number of blocks"""
    min_layers: int | None = option("N", COUNT)
    """minimum number of layers in a stage"""
    max_layers: int | None = option("N", COUNT)
    """maximum number of layers in a stage"""
    cache: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        least, most = self.min_layers or 1, self.max_layers
        if most is not None and most < least:
            raise InputError(f"max_layers: expected at least --min-layers ({least}), got {most}")

    @property
    def cuts(self) -> dict[str, Any]:
        """The arguments that determine how the optimizer cuts layers into stages, by name."""
        keys = ("partition", "min_layers", "max_layers")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True, kw_only=True)
class OptimizeRequest(MemoryLimited, SearchRequest):
    """The arguments of :func:`pipeloom.optimize`."""

    passing: str = option(kind=choice(*PASSINGS, "auto"), default=PASSINGS[0])
    """what ranks send: activations (the default; each stage stays on its rank) or weights (each
    microbatch stays on its rank); auto: the fastest of activations, weights and fully sharded data
    parallelism"""
    recompute: str = option(kind=choice("auto", "all", "none"), default="auto")
    """which activations to recompute before their backward: those for which it pays (auto, the
    default), all, or none; only stages with t_r and m_r in the profile can be recomputed"""
    offload: str = option(kind=choice("auto", "none"), default="auto")
    """which activations to offload to the host: those for which it pays (auto, the default), or
    none; requires host_link and stages with m_o in the profile"""
    for_: str | None = option(kind=choice("megatron", "torchtitan"))
    """find the best schedule that this system can run: for megatron, 1F1B and interleaved 1F1B on
    any layout; for torchtitan, torch's own schedules and any order in a CSV, with interleaved
    stages or stages in a V"""
    copies: int | None = option(kind=choice(1, 2))
    """largest number of copies of a stage's weights that a chosen placement may need; by default, 2
    if the profile has device_memory and all sizes that count towards it, else 1"""
    start: Schedule | Planned | Document | None = option("SCHEDULE")
    """schedule from which the search starts, for example that of the previous batch; it must have
    the same stages, ranks and number of microbatches"""
    cache: str | None = option("DIR")
    """folder in which answers are stored; they are verified again before they are reused; by
    default, the environment variable PIPELOOM_CACHE if it is set"""
    slow: Slow | str = option("RANK:X,...", Kind(slow_in), action="merge")
    """ranks that take X times as long as in the profile, such as 3:1.2 for rank 3"""


@dataclass(frozen=True, kw_only=True)
class CompareRequest(MemoryLimited, SearchRequest):
    """The arguments of :func:`pipeloom.compare`."""

    no_optimizer: bool = option(default=False)
    """compare only the families, without a search"""


@dataclass(frozen=True)
class SweepRequest(SearchRequest):
    """The arguments of :func:`pipeloom.sweep`."""

    apart = (*Limited.apart, ("workers", "scheduler"))

    memory_limits: Mapping[str, float | str] | Iterable[float | str] = option(
        "A,B,...", Kind(sizes_in), default=(), action="merge", required=True
    )
    """limits on the activation memory of every rank, in the profile's unit (such as 20G or 16GiB if
    the unit is bytes); none means no limit"""
    _: KW_ONLY
    time_limit: float | None = option("S", SECONDS)
    """seconds for each memory limit, over all placements, 20 by default; stops earlier once the
    schedule is proven optimal"""
    cache: str | None = option("DIR")
    """folder in which answers are stored, and from which a stopped sweep continues; by default, the
    folder cache in the output folder"""
    workers: int | None = option("N", WORKERS)
    """processes that solve memory limits in parallel and share the cores; by default one for every
    two cores; 1 uses only this process"""
    scheduler: str | None = option("ADDRESS")
    """use the workers of this Dask scheduler instead, such as tcp://host:8786"""
    output: FilePath | None = option("DIR", names=("-o", "--output"), required=True)
    """folder for the results; created if it does not exist"""


@dataclass(frozen=True)
class BuildRequest(MemoryLimited):
    """The arguments of :func:`pipeloom.build`."""

    family: str = field(metadata=place("FAMILY"))
    """name of the family, such as gpipe, 1f1b, interleaved-1f1b:2, zb-h1, zb-h2"""
    profile: ProfileLike | ProfileSource = field(metadata=place("PROFILE"))
    """profile file, - for standard input"""
    microbatches: int | None = option("M", MICROBATCHES, names=("-m", "--microbatches"))
    """microbatches of an iteration; by default, the length of the profile's lists, if it has any"""
    _: KW_ONLY
    replicate: Sequence[int] = option("S,S", Kind(stages), default=(), action="merge")
    """with weight passing, stages whose weights every rank keeps (such as embedding and head)"""
    partition: CutLike | None = option("HOW")
    """how to cut a profile's layers into stages: balanced (the default) makes the longest stage as
    short as possible, even gives each stage the same number of blocks; or a schedule file, whose
    cut is used"""
    progress: Listener | None = None


@dataclass(frozen=True)
class PackRequest(Limited, MemoryLimited):
    """The arguments of :func:`pipeloom.pack`."""

    lengths: Document
    profile: ProfileLike
    microbatches: int
    _: KW_ONLY
    max_tokens: int | None = option("N", COUNT)
    data_parallel: int | None = option("N", COUNT)
    placement: PlacementLike | None = None
    start: Schedule | Planned | Document | None = None
