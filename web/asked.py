"""Reads requests: JSON objects whose every value is checked before anything is computed.

Wherever the library also accepts the name of a file, only objects and known names are accepted
here: nothing on the server's disk can be named in a request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

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
from pipeloom.planner.solving.progress import Event

from .solves import MOST_SECONDS, Solve

if TYPE_CHECKING:
    from pipeloom.planner.prediction.step import PredictedStep

MOST_RANKS, MOST_MICROBATCHES, MOST_PLACEMENTS, MOST_LIMITS = 64, 1024, 8, 24
MOST = {"ranks": MOST_RANKS, "num_stages": 512, "stages": 512, "layers": 512}
"""Maximum values, or lengths of lists, of keys of a profile."""
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
    ``memory_limits``: those of a sweep. ``events``: notes on the profile.
    """

    given: dict[str, Any]
    source: ProfileSource
    terms: Terms
    memory_limit: float | str | None
    placements: tuple[str, ...]
    time_limit: float
    start: str | None
    memory_limits: tuple[float | str, ...]
    events: Sequence[Event]

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
        source, events = found.pop("profile")
        wanted = {key: found.pop(key) for key in ("microbatches", "objective")}
        asked = OptimizeRequest(source, **wanted, memory_limit=found["memory_limit"])
        terms = Terms.of(asked, source)
        return cls(document["profile"], source, terms, events=events, **found)

    def has_problem_of(self, earlier: Solve) -> bool:
        """Whether ``earlier`` is a solve of the same problem."""
        return earlier.given == self.given and self.options.items() <= earlier.facts.items()

    @property
    def facts(self) -> dict[str, Any]:
        """Values for the command that gives a schedule; ``seconds``: the limit of its search."""
        each = self.time_limit / max(1, len(self.memory_limits or self.placements))
        return self.options | {"seconds": round(each, 3), "by_limit": bool(self.memory_limits)}

    @property
    def options(self) -> dict[str, Any]:
        """Number of microbatches, memory limit and objective, as arguments of the planner."""
        count, objective = self.terms.microbatches, self.terms.objective.value
        return {"microbatches": count, "memory_limit": self.memory_limit, "objective": objective}


def read(body: bytes) -> dict[str, Any]:
    """Parse the body of a request. Raises InputError if it is not a JSON object."""
    try:
        document = parse_json(body.decode("utf-8"), "body")
        json.dumps(document, ensure_ascii=False).encode()  # fails for lone surrogates
    except (UnicodeError, RecursionError):
        raise InputError(Fault("expected JSON in UTF-8", key="body")) from None
    _require(isinstance(document, dict), "body", "a JSON object", document)
    return dict(document)


def profile_of(given: Any) -> tuple[ProfileSource, list[Event]]:
    """Return a checked profile from its JSON object, and notes on it. Raises InputError with all
    its faults."""
    _require(isinstance(given, dict), "profile", "an object (a profile's JSON)", given)
    _check_sizes(given)
    events: list[Event] = []
    source = ProfileSource(given, events.append)
    _at_most("ranks", source.cluster.ranks, MOST_RANKS)
    return source, events


def _check_sizes(given: Mapping[str, Any]) -> None:
    """Refuse a profile that is too large for this page, before anything is made of it."""
    for key, most in MOST.items():
        size = given.get(key)
        _at_most(key, len(size) if isinstance(size, list) else size, most)
    listed = [x for key in ("stages", "layers") if isinstance(x := given.get(key), list)]
    parts = [part for each in listed for part in each if isinstance(part, dict)]
    lists = [x for part in parts for x in part.values() if isinstance(x, list)]
    _at_most("microbatches", max(map(len, lists), default=0), MOST_MICROBATCHES)


def _at_most(key: str, size: object, most: int) -> None:
    """Refuse a number above ``most``. Other values are left to the reader of profiles."""
    small = not isinstance(size, int | float) or size <= most
    _require(small, key, f"at most {most} on this page", size)


def profile_made(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile of a preset model, or from traces if the request has any, with notes."""
    made = profile_from_traces if "traces" in document else profile_from_preset
    return made(document)


def profile_from_preset(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile by layers of a preset model on a preset cluster or GPU, as predicted.

    Raises InputError for other names, and for configurations that are not possible.
    """
    from pipeloom.planner.predict import predict

    _refuse(_unknown(document, ("model", "cluster", *RUN)))
    model = _known("model", document.get("model"), PRESETS)
    where = _known("cluster", document.get("cluster"), (*CLUSTERS, *GPUS))
    run = {key: document[key] for key in RUN if document.get(key) is not None}
    _count("pp", run.get("pp", 1), MOST_RANKS)
    _count("microbatches", run.get("microbatches"), MOST_MICROBATCHES)
    found = predict(**vars(PredictRequest(model, where, **run)))
    whole = dump_profile(found.profile)
    profile = {key: value for key, value in whole.items() if key not in {"stages", "num_stages"}}
    profile["layers"] = list(_layers(found.step))
    if found.step.setup.model.tied:
        profile["tied"] = [["tok_embeddings", "output"]]
    return {"profile": profile, "notes": []}


def _layers(step: PredictedStep) -> Iterator[dict[str, Any]]:
    """Yield the layers of a preset model as entries of a profile, by torchtitan's names: what is
    solved can then be exported."""
    from pipeloom.planner.models.work import states_of
    from pipeloom.planner.prediction.rates import OPS

    names = {"embedding": "tok_embeddings", "head": "output"}
    for number, work in enumerate(step.setup.work.layers):
        t_f, t_r, t_b, t_w = (step.layer(work).of(op) for op in OPS)
        states, kind = states_of(work.parameters, step.setup.run), str(work.kind)
        yield {
            "name": names.get(kind, f"layers.{number - 1}"),
            "kind": kind if kind in {*names, "mtp"} else "block",
            "modules": ["norm", "output"] if kind == "head" else None,
            "t_f": t_f,
            "t_b": t_r + t_b,
            "t_w": t_w,
            "m_b": max(work.m_b, work.m_w),
            "m_w": work.m_w,
            "activation_bytes": work.message_bytes,
            "weight_bytes": states.weights,
            "grad_bytes": states.gradients,
            "optimizer_bytes": states.optimizer,
        }


def profile_from_traces(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile that ``profile_from`` makes from traces.

    The key ``traces`` has the text of each file. ``notes``: what was left out or assumed.
    """
    from pipeloom.planner.measured.profile import profile_from

    _refuse(_unknown(document, ("traces",)))
    traces = _several("traces", document.get("traces"), MOST_RANKS)
    events: list[Event] = []
    texts = bool(traces) and all(isinstance(text, str) for text in traces)
    _require(texts, "traces", "the text of at least one trace", traces)
    with TemporaryDirectory(prefix="pipeloom-") as folder:
        files = [f"{folder}/{number}.json" for number in range(len(traces))]
        for file, text in zip(files, traces, strict=True):
            write_text(text, file)
        try:
            found = profile_from(files=files, progress=events.append)
        except InputError as error:
            lines = (line.replace(f"{folder}/", "trace ") for line in error.errors)
            raise InputError(*(Fault(line, key="traces") for line in lines)) from None
        notes = [str(event).replace(f"{folder}/", "trace ") for event in events]
    return {"profile": found.document(), "notes": notes}


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


def _limits(value: Any) -> tuple[float | str | None, ...]:
    found = _several("memory_limits", value, MOST_LIMITS)
    return tuple(_limit("memory_limits", each) for each in found)


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
