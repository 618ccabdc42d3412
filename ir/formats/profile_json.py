"""Reads and writes profiles, by stages or by layers, as JSON; all faults are reported at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ..documents import Document
from ..model.layered_profile import LayeredProfile
from ..model.layers import Layer, LayerKind
from ..model.links import Groups, Link, Links, Sharing
from ..model.profile import DataParallel, Profile, StageProfile
from .json_reader import read_document
from .profile_document import (
    PROFILE,
    DataParallelDocument,
    LayeredProfileDocument,
    LinkDocument,
    LinksDocument,
    ProfileDocument,
)
from .stage_document import EACH, CostDocument, LayerDocument
from .validation import keys_in_doubt, validated


def load_profile(given: Document) -> Profile:
    """Read a profile: the path of a file, or an object as :func:`dump_profile` returns it.

    Raises InputError with every fault of the file.
    """
    return parse_profile(*read_document(given, "profile"))


def parse_profile(data: dict[str, Any], where: str) -> Profile:
    return profile_of(validated(ProfileDocument, data, where))


def parse_layers(data: dict[str, Any], where: str) -> LayeredProfile:
    document = validated(LayeredProfileDocument, data, where)
    entries = [(entry, layer) for entry in document.layers for layer in entry.each()]
    layers = tuple(stage_of(entry, (layer_of(layer),)) for entry, layer in entries)
    together = [bool(entry.with_next) for entry, _ in entries]
    cluster = cluster_of(document, document.layers, (), document.tied)
    layers = spread_over(layers, document.spread)
    return LayeredProfile(layers, (*together[:-1], False), cluster)


def doubtful_keys(data: dict[str, Any], where: str) -> list[str]:
    """A line for each key of a profile that looks misspelt or belongs to layers only."""
    if "stages" not in data:
        return [*keys_in_doubt(LayeredProfileDocument, data, where).values()]
    found = validated(ProfileDocument, data, where)
    places = {f"{where}: stages[{s}]": stage for s, stage in enumerate(found.stages)}
    lines = {
        key: f"{place}: {key}: not used: only layers have it"
        for place, part in reversed(({where: found} | places).items())
        for key in ("repeat", "kind", "with_next")
        if (part.model_extra or {}).get(key) is not None
    }
    return [*keys_in_doubt(ProfileDocument, data, where).values(), *lines.values()]


def profile_of(document: ProfileDocument) -> Profile:
    """The profile that a document describes."""
    stages = tuple(
        stage_of(entry, tuple(map(layer_of, entry.layers or ()))) for entry in document.stages
    )
    if len(stages) == 1:
        stages *= document.num_stages or document.ranks
    spread = spread_over(stages, document.spread)
    return cluster_of(document, document.stages, spread, document.tied)


def spread_over(
    stages: tuple[StageProfile, ...], spread: float | Sequence[float] | None
) -> tuple[StageProfile, ...]:
    """The stages with this relative standard deviation of op times, or one per stage."""
    if spread is None:
        return stages
    each = [float(spread)] * len(stages) if isinstance(spread, int | float) else spread
    return tuple(
        stage.changed(partial(replace, spread=own)) for stage, own in zip(stages, each, strict=True)
    )


def cluster_of(
    document: ProfileDocument | LayeredProfileDocument,
    entries: Sequence[CostDocument],
    stages: tuple[StageProfile, ...],
    tied: tuple[tuple[int, ...], ...],
) -> Profile:
    """A profile with these stages and ties, and otherwise as in the document.

    ``entries``: the document's stages or layers, which determine the number of microbatches if they
    have lists.
    """
    host, replicas = document.host_link, document.data_parallel
    return Profile(
        stages=stages,
        shared_by=1,
        ranks=document.ranks,
        t_comm=document.t_comm,
        links=None if document.links is None else _links(document.links),
        memory_limit=document.memory_limit,
        device_memory=document.device_memory,
        name=document.name or "",
        host_link=None if host is None else _link(host),
        data_parallel=None if replicas is None else _replicas(replicas),
        tied=tied,
        micro_batch=document.micro_batch,
        max_stages=document.max_stages,
        barrier=bool(document.barrier),
        microbatches=next((e.microbatches for e in entries if e.microbatches is not None), None),
    )


def stage_of(document: CostDocument, layers: tuple[Layer, ...]) -> StageProfile:
    costs = {key: getattr(document, key) for key in CostDocument.model_fields}
    lists = {key: value for key, value in costs.items() if key in EACH and isinstance(value, list)}
    columns = range(document.microbatches or 1)
    return StageProfile.of(
        [
            StageProfile(**costs | {key: value[j] for key, value in lists.items()}, layers=layers)
            for j in columns
        ]
    )


def layer_of(document: LayerDocument) -> Layer:
    kind = LayerKind(document.kind or "block")
    return Layer(document.name, kind, tuple(document.module_names))


def _link(document: LinkDocument, latency: float = 0.0) -> Link:
    """A link; ``latency`` is the default latency."""
    own = document.latency
    return Link(latency if own is None else own, document.gigabytes_per_second)


def _replicas(document: DataParallelDocument) -> DataParallel:
    share = 1.0 if document.exposed is None else document.exposed
    return DataParallel(document.size, _link(document), share)


def _links(document: LinksDocument) -> Links:
    common = _link(document)
    pairs = ((a, b, _link(link, common.latency)) for a, b, link in document.pairs or ())
    return Links(common, tuple(pairs), _sharing(document.shared))


def _sharing(shared: str | list[list[tuple[int, int]]] | None) -> Sharing | Groups:
    if isinstance(shared, list):
        return tuple(map(tuple, shared))
    return Sharing(shared or "pairs")


def dump_profile(profile: Profile) -> dict[str, Any]:
    """The profile as a JSON object; parsing it returns an equal profile."""
    document: dict[str, Any] = {"format": PROFILE, "version": 1, "name": profile.name}
    document["stages"] = _dump_stages(profile)
    if profile.num_stages == 1:  # otherwise a reader would repeat the stage on all ranks
        document["num_stages"] = 1
    document["ranks"] = profile.ranks
    counts = {"micro_batch": profile.micro_batch, "max_stages": profile.max_stages}
    document |= {key: count for key, count in counts.items() if count is not None}
    document |= {"barrier": True} if profile.barrier else {}
    if profile.t_comm is not None:
        rows = profile.t_comm
        document["t_comm"] = list(map(list, rows)) if isinstance(rows, tuple) else rows
    if profile.links is not None:
        document["links"] = asdict(profile.links.default) | {
            "pairs": [[a, b, asdict(link)] for a, b, link in profile.links.pairs]
        }
        if profile.links.shared is not Sharing.PAIRS:
            document["links"]["shared"] = _dump_shared(profile.links.shared)
    if profile.host_link is not None:
        document["host_link"] = asdict(profile.host_link)
    if profile.data_parallel is not None:
        over = profile.data_parallel
        hidden = {} if over.exposed == 1.0 else {"exposed": over.exposed}
        document["data_parallel"] = {"size": over.size, **asdict(over.link), **hidden}
    if profile.tied:
        document["tied"] = [list(group) for group in profile.tied]
    document |= _dump_spread(profile)
    for key in ("memory_limit", "device_memory"):
        limit = getattr(profile, key)
        if limit is not None:
            document[key] = finite(limit)
    return document


def dump_layers(profile: LayeredProfile) -> dict[str, Any]:
    """The profile as a JSON object, one entry per layer; parsing it returns an equal profile."""
    document = dump_profile(profile.as_stages)
    costs = document.pop("stages")
    document.pop("num_stages", None)
    entries = []
    for cost, together in zip(costs, profile.tied, strict=True):
        (name,) = cost.pop("layers")
        entries.append(name | cost | ({"with_next": True} if together else {}))
    if profile.cluster.tied:
        names = [entry["name"] for entry in entries]
        document["tied"] = [[names[layer] for layer in group] for group in profile.cluster.tied]
    head = {key: document.pop(key) for key in ("format", "version", "name")}
    return head | {"layers": entries} | document


def _dump_shared(shared: Sharing | Groups) -> Any:
    if isinstance(shared, Sharing):
        return shared.value
    return [[list(pair) for pair in group] for group in shared]


def _dump_spread(profile: Profile) -> dict[str, Any]:
    spreads = [stage.spread for stage in profile.stages]
    each = [spread or 0.0 for spread in spreads]
    if all(spread is None for spread in spreads):
        return {}
    return {"spread": each[0] if len(set(each)) == 1 else each}


def dump_layer(layer: Layer) -> dict[str, Any]:
    modules = {} if layer.modules == (layer.name,) else {"modules": list(layer.modules)}
    return {"name": layer.name, "kind": layer.kind.value, **modules}


def _dump_stage(stage: StageProfile) -> dict[str, Any]:
    values = {key: _dump_figure(stage, key) for key in CostDocument.model_fields}
    known = {key: value for key, value in values.items() if value is not None}
    return known | ({"layers": list(map(dump_layer, stage.layers))} if stage.layers else {})


def _dump_stages(profile: Profile) -> list[dict[str, Any]]:
    stages = [_dump_stage(stage) for stage in profile.stages]
    if profile.microbatches is not None and not profile.unlike and stages:  # the file needs M
        stages[0]["t_f"] = [stages[0]["t_f"]] * profile.microbatches
    return stages


def _dump_figure(stage: StageProfile, key: str) -> Any:
    """One number, or one per microbatch if they differ."""
    each = [getattr(one, key) for one in stage.each]
    return each if len(set(each)) > 1 else getattr(stage.at(0), key)


def finite(limits: tuple[float, ...]) -> list[float | None]:
    """Memory limits for JSON: null instead of infinity."""
    return [None if limit == math.inf else limit for limit in limits]
