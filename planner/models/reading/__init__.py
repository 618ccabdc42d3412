"""From a preset's name, a file or a mapping to a :class:`..model.Model`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pipeloom.ir.errors import InputError, did_you_mean

from ...inputs.documents import naming, read_document
from ...packaged import packaged
from ..model import Model
from . import huggingface, megatron

PRESETS: dict[str, dict[str, Any]] = packaged(__package__, "presets.json")
"""Well-known models by name, in the words of their published configurations."""
PRESETS |= {
    name: PRESETS[words["same_as"]] for name, words in PRESETS.items() if "same_as" in words
}

ModelLike: TypeAlias = Model | Mapping[str, Any] | str | os.PathLike[str]
"""A preset's name, a ``config.json`` or the folder of one, its mapping, or Megatron's words."""


def read_model(given: ModelLike, called: str = "MODEL") -> Model:
    """The model that is ``called`` so in errors.

    Raises InputError, with a line for each fault, where it cannot be told.
    """
    if isinstance(given, Model):
        return given
    if isinstance(given, str) and (name := preset_of(given)) is not None:
        return _model(PRESETS[name], name, name)
    path = _file(given, called)
    document, where = read_document(path, "model")
    document = {str(key): value for key, value in document.items()}
    if str(document.get("format")).startswith("pipeloom."):
        raise InputError(f"{where}: expected a model's config.json, got a {document['format']}")
    name = str(given.get("model_type", "model")) if isinstance(given, Mapping) else where
    return _model(document, name, where)


def preset_of(name: str) -> str | None:
    """The preset that is meant, case, hyphens and spaces aside; None where there is none."""
    bare = {_bare(known): known for known in PRESETS}
    return bare.get(_bare(name))


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _file(
    given: Mapping[str, Any] | str | os.PathLike[str], called: str
) -> Mapping[str, Any] | str:
    if isinstance(given, Mapping):
        return given
    path = Path(os.fspath(given).removeprefix("hf:"))  # as profile and run name a folder
    if path.is_dir():
        path /= "config.json"
    elif given != "-" and not path.exists() and path.suffix != ".json":
        hint = did_you_mean(str(given), PRESETS)
        if re.fullmatch(r"[\w.-]+/[\w.-]+", str(given)):
            fetch = f"hf download {given} config.json --local-dir {path.name}"
            hint += f" (the Hub is not asked: `{fetch}`, then give {path.name}/config.json)"
        expected = "a config.json, its folder, or a preset's name such as llama-2-70b"
        raise InputError(f"{called}: expected {expected}, got {os.fspath(given)!r}{hint}")
    return str(path) if given != "-" else "-"


def _model(words: Mapping[str, Any], name: str, where: str) -> Model:
    with naming(where):
        if _is_megatron(words):
            return megatron.model_of(words, name)
        return huggingface.model_of(words, name)


def _is_megatron(words: Mapping[str, Any]) -> bool:
    bare = {str(key).lstrip("-").replace("-", "_") for key in words}
    return "model_type" not in words and not bare.isdisjoint(megatron.SIGNS)
