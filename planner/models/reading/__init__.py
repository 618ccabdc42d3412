"""From a preset's name, a file or a mapping to a :class:`..model.Model`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from pipeloom.ir.errors import InputError

from ...inputs.documents import naming, read_document
from ..model import Model
from .huggingface import model_of
from .presets import PRESETS

ModelLike: TypeAlias = Model | Mapping[str, Any] | str | os.PathLike[str]
"""A preset's name, a ``config.json`` or the folder of one, or its mapping."""


def read_model(given: ModelLike, called: str = "MODEL") -> Model:
    """The model that is ``called`` so in errors.

    Raises InputError, with a line for each fault, where it cannot be told.
    """
    if isinstance(given, Model):
        return given
    if isinstance(given, str) and (name := preset_of(given)) is not None:
        return model_of(PRESETS[name], name)
    path = _file(given, called)
    document, where = read_document(path, "model")
    document = {str(key): value for key, value in document.items()}
    name = str(given.get("model_type", "model")) if isinstance(given, Mapping) else where
    with naming(where):
        return model_of(document, name)


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
    path = Path(given)
    if path.is_dir():
        path /= "config.json"
    elif given != "-" and not path.exists() and path.suffix != ".json":
        near = get_close_matches(_bare(str(given)), map(_bare, PRESETS), 1, 0.6)
        hint = f"; did you mean {preset_of(near[0])}?" if near else ""
        expected = "a config.json, its folder, or a preset's name such as llama-2-70b"
        raise InputError(f"{called}: expected {expected}, got {os.fspath(given)!r}{hint}")
    return str(path) if given != "-" else "-"
