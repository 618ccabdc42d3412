"""Reads and writes profiles, by stages or by layers. All faults of a file are reported together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import ValidationInfo

from ..documents import Document
from ..documents.fields import MOST_LAYERS, Flag, Name
from ..documents.json_reader import read_document
from ..documents.struct import Struct, written
from ..documents.validation import (
    DocumentFault,
    Expected,
    Whole,
    keys_in_doubt,
    raise_faults,
    said,
    validated,
    wrong,
)
from ..errors import show
from ..model.layered_profile import LayeredProfile
from ..model.layers import Layer, LayerKind
from ..model.profile import PROFILE, Profile, StageProfile


def load_profile(given: Document) -> Profile:
    """Return the profile in ``given``: the path of a file, or an object from :func:`dump_profile`.

    Raises InputError with every fault of the file.
    """
    return parse_profile(*read_document(given, "profile"))


def parse_profile(data: dict[str, Any], where: str) -> Profile:
    return validated(Profile, data, where)


def check_profile(given: Profile | LayeredProfile, where: str) -> None:
    """Raise InputError if a profile in memory has values that are invalid in files.

    ``where``: the name of the profile in messages.
    """
    profile = given.as_stages if isinstance(given, LayeredProfile) else given
    marks = {"format": PROFILE, "version": 1, "num_stages": profile.num_stages or None}
    validated(Profile, Struct.values(profile) | marks, where)


def dump_profile(profile: Profile) -> dict[str, Any]:
    """The profile as a JSON object, from which :func:`parse_profile` returns an equal profile."""
    head = {"format": PROFILE, "version": 1, "name": profile.name}
    found: dict[str, Any] = head | written(profile)
    return found


@dataclass(frozen=True, slots=True)
class LayerEntry(StageProfile):
    """An entry of ``layers`` in a file: one layer, or ``repeat`` consecutive layers of equal cost.

    In the names of repeated layers and their modules, ``{}`` stands for the number of the layer, 0
    to ``repeat`` - 1. ``modules`` defaults to the name. ``with_next``: whether the layer must be in
    the same stage as the next one.
    """

    REQUIRED = ("m_b", "m_w", "name")

    name: Name = ""
    kind: LayerKind = LayerKind.BLOCK
    modules: Annotated[tuple[Name, ...], Expected("a list of names")] | None = None
    repeat: Annotated[int, Whole(1, MOST_LAYERS)] = 1
    with_next: Flag = False

    def _after(self, info: ValidationInfo) -> StageProfile:
        if self.t_bw is not None:
            line = "expected it only for stages, as layers are cut by t_b and t_w"
            raise_faults([DocumentFault(("t_bw",), said(line))])
        for key, names in (("name", (self.name,)), ("modules", self.module_names)):
            if self.repeat > 1 and any("{}" not in name for name in names):
                number = wrong("{} in it, for the number of each repeated layer")
                raise_faults([DocumentFault((key,), number, names[0])])
        return StageProfile._after(self, info)

    @property
    def module_names(self) -> tuple[str, ...]:
        return (self.name,) if self.modules is None else self.modules

    def layers_of(self) -> Iterator[StageProfile]:
        """Yield the entry's layers, each as the profile of a stage that consists of it."""
        costs = [field.name for field in fields(StageProfile)]
        for n in range(self.repeat):
            number = str(n) if self.repeat > 1 else "{}"
            modules = tuple(name.replace("{}", number) for name in self.module_names)
            layer = Layer(self.name.replace("{}", number), self.kind, modules)
            each = [
                StageProfile(**{key: getattr(one, key) for key in costs} | {"layers": (layer,)})
                for one in self.each or (self,)
            ]
            yield StageProfile.of(each)


@dataclass(frozen=True, slots=True)
class LayersFile(Profile):
    """The file of a profile by layers. The file may also have stages, which are ignored here."""

    REQUIRED = ("layers",)
    ALSO = ("stages", "num_stages")

    layers: tuple[LayerEntry, ...] = ()

    @classmethod
    def _before(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return {k: v for k, v in data.items() if k != "num_stages"} | {"stages": []}

    def _after(self, info: ValidationInfo) -> Profile:
        number = sum(entry.repeat for entry in self.layers)
        if not number:
            raise_faults([DocumentFault(("layers",), wrong("at least one layer"), [])])
        if number > MOST_LAYERS:
            line = f"expected at most {MOST_LAYERS} layers, got {number}"
            raise_faults([DocumentFault(("layers",), said(line))])
        pieces = [piece for entry in self.layers for piece in entry.layers_of()]
        names = [piece.layers[0].name for piece in pieces]
        modules = [name for piece in pieces for name in piece.layers[0].modules]
        raise_faults(_twice("name", names))
        raise_faults(_twice("modules", modules))
        places = {name: place for place, name in enumerate(names)}
        return self._of(pieces, places, "names of layers", info)


def _twice(key: str, names: Sequence[str]) -> Iterator[DocumentFault]:
    """Yield a fault for each name that occurs more than once in ``names``, values of ``key``."""
    for name in sorted(n for n, count in Counter(names).items() if count > 1):
        yield DocumentFault(("layers", key), said(f"expected {show(name)} once, got it twice"))


def parse_layers(data: dict[str, Any], where: str) -> LayeredProfile:
    """Return the profile by layers that the JSON object ``data`` describes.

    ``where``: the name of the file. Raises InputError with every fault.
    """
    found = validated(LayersFile, data, where)
    together = [entry.with_next for entry in found.layers for _ in range(entry.repeat)]
    rest = {field.name: getattr(found, field.name) for field in fields(Profile)}
    cluster = Profile(**rest | {"stages": ()})
    return LayeredProfile(found.stages, (*together[:-1], False), cluster)


def dump_layers(profile: LayeredProfile) -> dict[str, Any]:
    """The profile as a JSON object with one entry per layer.

    :func:`parse_layers` returns an equal profile from it.
    """
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


def doubtful_keys(data: dict[str, Any], where: str) -> list[str]:
    """A line for each unknown key of a profile that looks misspelled, is known only in layers, or
    was known until 0.2.0 and is in every profile measured before.

    ``data``: a profile by stages or by layers. ``where``: the name of its file. Such keys are not
    used, but are not faults.
    """
    gone = "not used since 0.2.0: --slow RANK:X plans for slow ranks"
    old = [f"{where}: spread: {gone}"] if data.get("spread") is not None else []
    if "stages" not in data:
        return [*map(str, keys_in_doubt(LayersFile, data, where).values()), *old]
    validated(Profile, data, where)
    places = {f"{where}: stages[{s}]": stage for s, stage in enumerate(data["stages"])}
    lines = {
        key: f"{place}: {key}: not used: only layers have it"
        for place, part in reversed(({where: data} | places).items())
        for key in ("repeat", "kind", "with_next")
        if part.get(key) is not None
    }
    return [*map(str, keys_in_doubt(Profile, data, where).values()), *lines.values(), *old]
