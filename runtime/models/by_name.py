"""Finds a model source by its name, the value of ``--model``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

from pipeloom.ir.errors import InputError, did_you_mean, in_brief

from ..pipeline.model_source import ModelSource
from .huggingface import HuggingFace

METHODS = ("stages", "tied", "loss", "batch", "optimizer")
HUGGING_FACE = "hf:"
NUMBERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("seq", "micro_batch", "seed"), int),
    "lr": float,
}


def load_source(name: str) -> ModelSource:
    """Returns the model source with this name: ``MODULE:ATTRIBUTE`` or ``hf:PATH``.

    If the attribute is not a model source but can be called, its result is returned. Modules are
    also searched in the current directory, as by ``python -m``. ``hf:PATH`` is the Hugging Face
    model in that folder; settings of :class:`HuggingFace` may follow:
    ``hf:PATH,seq=512,micro_batch=4``. Raises InputError if the name, the module, the attribute or
    the model is invalid.
    """
    if name.startswith(HUGGING_FACE):
        return _hugging_face(name)
    value = load_attribute(name, "examples.gpt:GPT, or hf:PATH")
    is_module = isinstance(value, nn.Module)
    is_source = not isinstance(value, type) and not _missing(value)
    if callable(value) and not is_module and not is_source:
        try:
            value = value()
        except (Exception, SystemExit) as error:
            line = f"{name}: calling it without arguments failed: {in_brief(error)}"
            raise InputError(line) from error
    if missing := _missing(value):
        own = " (docs/tutorials/own-model.md makes a source of a module)" * is_module
        raise InputError(
            f"{name}: {type(value).__name__} has no {', '.join(missing)}{own}; expected a model "
            "source or a callable that returns one"
        )
    return cast("ModelSource", value)


def load_attribute(name: str, example: str = "package.module:name") -> Any:
    """Returns the object with the ``name`` ``MODULE:ATTRIBUTE``, after importing the module.

    ``example``: a valid name, shown in the error message. Raises InputError if the name has another
    form, the module cannot be imported or the attribute does not exist.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise InputError(f"{name}: expected MODULE:ATTRIBUTE, e.g. {example}")
    value: Any = _module(name, module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            public = [known for known in dir(value) if not known.startswith("_")]
            hint = did_you_mean(part, public)
            raise InputError(f"{name}: {module_name} has no attribute {attribute}{hint}")
        value = getattr(value, part)
    return value


def _hugging_face(name: str) -> HuggingFace:
    """Returns the model source ``hf:PATH,key=value,...``, after checking the model's files.

    Raises InputError if the model cannot be cut into stages or a setting is invalid.
    """
    path, *settings = name.removeprefix(HUGGING_FACE).split(",")
    known = [field.name for field in fields(HuggingFace) if field.name != "path"]
    chosen: dict[str, Any] = {}
    for text in settings:
        key, _, value = text.partition("=")
        if key not in known or key in chosen or not value:
            keys = ", ".join(f"{key}=..." for key in known)
            raise InputError(f"{name}: expected {keys}, each once, got {text!r}")
        try:
            chosen[key] = NUMBERS.get(key, str)(value)
        except ValueError:
            raise InputError(f"{name}: {key}: expected a number, got {value!r}") from None
    source = HuggingFace(path, **chosen)
    source.check()
    return source


def _module(name: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"{name}: {error} (looked in {here} and the Python path)") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{name}: importing {module_name} failed: {in_brief(error)}") from error


def _missing(value: object) -> list[str]:
    return [method for method in METHODS if not callable(getattr(value, method, None))]
