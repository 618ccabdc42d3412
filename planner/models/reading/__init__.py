""":func:`read_model`: from a preset's name, a file or a mapping to a :class:`..model.Model`."""

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
from ..words import find_name
from .huggingface import model_of

PRESETS: dict[str, dict[str, Any]] = packaged(__package__, "presets.json")
"""Well-known models by name, each with the keys of its published configuration."""
PRESETS |= {
    name: PRESETS[words["same_as"]] for name, words in PRESETS.items() if "same_as" in words
}

ModelLike: TypeAlias = Model | Mapping[str, Any] | str | os.PathLike[str]
"""A model, a preset's name, a ``config.json`` or the folder of one, or its content as a mapping."""


def read_model(given: ModelLike, called: str = "MODEL") -> Model:
    """Return the model ``given``, which may be a preset's name, a file or a mapping
    (:data:`ModelLike`).

    ``called``: the argument's name in error messages. Raises InputError with one line per fault.
    """
    if isinstance(given, Model):
        return given
    if isinstance(given, str) and (name := find_name(given, PRESETS)) is not None:
        return model_of(PRESETS[name], name)
    path = _file(given, called)
    document, where = read_document(path, "model")
    document = {str(key): value for key, value in document.items()}
    if str(document.get("format")).startswith("pipeloom."):
        raise InputError(f"{where}: expected a model's config.json, got a {document['format']}")
    name = str(given.get("model_type", "model")) if isinstance(given, Mapping) else where
    with naming(where):
        return model_of(document, name)


def _file(
    given: Mapping[str, Any] | str | os.PathLike[str], called: str
) -> Mapping[str, Any] | str:
    if isinstance(given, Mapping):
        return given
    path = Path(os.fspath(given).removeprefix("hf:"))  # as for profile and run
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
