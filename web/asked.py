"""Reads requests: JSON objects whose every value is checked before anything is computed.

Wherever the library also accepts the name of a file, only objects and known names are accepted
here: nothing on the server's disk can be named in a request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from pipeloom.ir.documents.json_reader import parse_json
from pipeloom.ir.errors import Fault, InputError
from pipeloom.ir.formats import dump_profile, write_text
from pipeloom.planner.clusters.cluster import CLUSTERS
from pipeloom.planner.clusters.gpus import GPUS
from pipeloom.planner.inputs.placement_spec import AUTO
from pipeloom.planner.inputs.problem_setup import ProfileSource, Terms
from pipeloom.planner.inputs.words import memory_limit_of
from pipeloom.planner.models.reading import PRESETS
from pipeloom.planner.requests.plans import PredictRequest
from pipeloom.planner.requests.search import OptimizeRequest
from pipeloom.planner.solving.progress import unheard

from .solves import MOST_SECONDS

MOST_RANKS, MOST_MICROBATCHES, MOST_PLACEMENTS, MOST_LIMITS = 64, 1024, 8, 24
PLACEMENTS = ("linear", "interleaved:2", "interleaved:3", "interleaved:4", "v", "wave:2",
              "bidirectional")  # fmt: skip
"""The placements that the page offers."""
ABSENT: dict[str, Any] = {"placements": [AUTO], "time_limit": 4.0, "memory_limits": []}
"""Values of keys of a request for a solve that are absent, unless None."""
RUN = ("gpus", "tp", "pp", "vp", "dp", "cp", "ep", "micro_batch", "microbatches", "seq",
       "precision", "recompute", "sharding")  # fmt: skip
"""The keys of a preset's run that a request may have, besides ``model`` and ``cluster``."""


@dataclass(frozen=True)
class SolveRequest:
    """A request for a solve.

    ``given``: the document of the profile; ``source``: the profile itself; ``terms``: number of
    microbatches, memory limit and objective. ``memory_limit``: the limit as it was given.
    ``placements``: those for which a schedule is searched. ``time_limit``: seconds for all of them
    together. ``start``: the name of an earlier solve whose schedules the search starts from.
    ``memory_limits``: those of a sweep.
    """

    given: dict[str, Any]
    source: ProfileSource
    terms: Terms
    memory_limit: float | str | None
    placements: tuple[str, ...]
    time_limit: float
    start: str | None
    memory_limits: tuple[float | str, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SolveRequest:
        """Check a request. Raises InputError with the faults of all its values."""
        faults = _unknown(document, CHECKS)
        found: dict[str, Any] = {}
        for key, check in CHECKS.items():
            try:
                found[key] = check(document.get(key, ABSENT.get(key)))
            except InputError as error:
                faults += error.faults
        _refuse(faults)
        source, limit = found.pop("profile"), found["memory_limit"]
        asked = OptimizeRequest(
            source, found.pop("microbatches"), memory_limit=limit, objective=found.pop("objective")
        )
        given = dict(document["profile"])
        return cls(given=given, source=source, terms=Terms.of(asked, source), **found)

    @property
    def facts(self) -> dict[str, Any]:
        """Values for the command that gives a schedule; ``seconds``: the limit of its search."""
        each = self.time_limit / max(1, len(self.memory_limits or self.placements))
        return self.options | {"seconds": round(each, 3), "by_limit": bool(self.memory_limits)}

    @property
    def options(self) -> dict[str, Any]:
        """Number of microbatches, memory limit and objective, as arguments of the planner."""
        return {
            "microbatches": self.terms.microbatches,
            "memory_limit": self.memory_limit,
            "objective": self.terms.objective.value,
        }


def read(body: bytes) -> dict[str, Any]:
    """Parse the body of a request. Raises InputError if it is not a JSON object."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(Fault("expected JSON in UTF-8", key="body")) from None
    document = parse_json(text, "body")
    _require(isinstance(document, dict), "body", "a JSON object", document)
    return dict(document)


def profile_of(given: Any) -> ProfileSource:
    """Return a checked profile from its JSON object. Raises InputError with all its faults."""
    _require(isinstance(given, dict), "profile", "an object (a profile's JSON)", given)
    source = ProfileSource(given, unheard)
    source.check()
    ranks = source.cluster.ranks
    _require(ranks <= MOST_RANKS, "ranks", f"at most {MOST_RANKS} on this page", ranks)
    return source


def profile_from_preset(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile that ``predict`` makes for a preset model on a preset cluster or GPU.

    Raises InputError for other names, and for configurations that are not possible.
    """
    from pipeloom.planner.predict import predict

    _refuse(_unknown(document, ("model", "cluster", *RUN)))
    model = _known("model", document.get("model"), PRESETS)
    where = _known("cluster", document.get("cluster"), (*CLUSTERS, *GPUS))
    run = {key: document[key] for key in RUN if document.get(key) is not None}
    _count("pp", run.get("pp", 1), MOST_RANKS)
    found = predict(**vars(PredictRequest(model, where, **run)))
    return {"profile": dump_profile(found.profile), "words": str(found)}


def profile_from_traces(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile that ``profile_from`` makes from traces.

    The key ``traces`` has the text of each file, ``memory`` M_B and possibly M_W.
    """
    from pipeloom.planner.measured.profile import profile_from

    _refuse(_unknown(document, ("traces", "memory")))
    traces = _several("traces", document.get("traces"), MOST_RANKS)
    memory = _several("memory", document.get("memory", [1.0]), 2)
    texts = bool(traces) and all(isinstance(text, str) for text in traces)
    _require(texts, "traces", "the text of at least one trace", traces)
    sizes = bool(memory) and all(type(x) in (int, float) and 0 <= x < 1e18 for x in memory)
    _require(sizes, "memory", "one or two numbers from 0 on", memory)
    with TemporaryDirectory(prefix="pipeloom-") as folder:
        files = [f"{folder}/{number}.json" for number in range(len(traces))]
        for file, text in zip(files, traces, strict=True):
            write_text(text, file)
        try:
            found = profile_from(files=files, memory=memory, progress=unheard)
        except InputError as error:
            lines = (line.replace(f"{folder}/", "trace ") for line in error.errors)
            raise InputError(*(Fault(line, key="traces") for line in lines)) from None
    return {"profile": found.document(), "words": ""}


def _refuse(faults: Sequence[Fault]) -> None:
    """Raise InputError if there are faults."""
    if faults:
        raise InputError(*faults)


def _unknown(document: Mapping[str, Any], known: Collection[str]) -> list[Fault]:
    """Return a fault for each key that is not one of ``known``."""
    words = f"unknown; expected one of {', '.join(known)}"
    return [Fault(words, key=key) for key in document if key not in known]


def _require(holds: bool, key: str, expected: str, value: object) -> None:
    if not holds:
        raise InputError(Fault.about(key, expected, value))


def _known(key: str, value: object, names: Collection[str]) -> str:
    _require(isinstance(value, str) and value in names, key, "the name of a preset", value)
    return str(value)


def _count(key: str, value: Any, most: int) -> int | None:
    holds = value is None or (type(value) is int and 1 <= value <= most)
    _require(holds, key, f"a whole number from 1 to {most}", value)
    return None if value is None else int(value)


def _limit(key: str, value: Any) -> float | str | None:
    holds = value is None or type(value) in (int, float) or isinstance(value, str)
    _require(holds and len(str(value)) <= 40, key, "a number, a size such as 20GB, or none", value)
    memory_limit_of(value, name=key)
    return value  # type: ignore[no-any-return]


def _limits(value: Any) -> tuple[float | str, ...]:
    found = _several("memory_limits", value, MOST_LIMITS)
    return tuple(_limit("memory_limits", each) or 0.0 for each in found)


def _seconds(value: Any) -> float:
    holds = isinstance(value, int | float) and 0.05 <= value <= MOST_SECONDS
    _require(holds, "time_limit", f"seconds from 0.05 to {MOST_SECONDS:g}", value)
    return float(value)


def _several(key: str, value: Any, most: int) -> Sequence[Any]:
    holds = isinstance(value, list) and len(value) <= most
    _require(holds, key, f"a list of at most {most}", value)
    return list(value)


def _placements(value: Any) -> tuple[str, ...]:
    """Check names of placements. Lists of ranks and files are not accepted."""
    for name in _several("placements", value, MOST_PLACEMENTS):
        holds = isinstance(name, str) and name in (*PLACEMENTS, AUTO)
        _require(holds, "placements", f"any of {', '.join(PLACEMENTS)}", name)
    return tuple(value)


CHECKS: dict[str, Callable[[Any], Any]] = {
    "profile": profile_of,
    "microbatches": lambda value: _count("microbatches", value, MOST_MICROBATCHES),
    "memory_limit": lambda value: _limit("memory_limit", value),
    "objective": lambda value: value,
    "placements": _placements,
    "time_limit": _seconds,
    "start": lambda value: value and str(value),
    "memory_limits": _limits,
}
"""The keys of a request for a solve, each with the function that checks its value."""
