"""Models by name: where the runtime looks for what ``--model`` says."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

from pipeloom.ir.errors import InputError, did_you_mean, in_brief

from ..pipeline.model_source import ModelSource
from .huggingface import HuggingFace

METHODS = ("stages", "tied", "loss", "batch", "optimizer")
HUGGING_FACE = "hf:"
SETTINGS: dict[str, Callable[[str], Any]] = {
    "seq": int, "micro_batch": int, "data": str, "eval_data": str, "seed": int, "lr": float,
    "attention": str, "experts": str, "recompute": str,
}  # fmt: skip


def load_source(name: str) -> ModelSource:
    """The source that ``module:attribute`` names, or that the callable named there returns; of
    ``hf:PATH`` the Hugging Face model in that folder.

    Modules are looked for in the current directory too, as ``python -m`` does. Settings of
    :class:`HuggingFace` may follow the path: ``hf:PATH,seq=512,micro_batch=4``.
    Raises InputError where the name, the module, the attribute or the model is wrong.
    """
    if name.startswith(HUGGING_FACE):
        return hugging_face(name)
    value = load_attribute(name, "examples.gpt:GPT, or hf:PATH")
    if _is_source(value):
        return cast("ModelSource", value)
    if not callable(value) or isinstance(value, nn.Module):
        raise InputError(f"{name}: {_lacks(value)}; expected a model source or a callable")
    return _made_by(value, name)


def load_attribute(name: str, example: str = "package.module:name") -> Any:
    """The object that ``module:attribute`` names; ``example``: a right name, for the error.

    Raises InputError where the name, the module or the attribute is wrong.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise InputError(f"{name}: expected MODULE:ATTRIBUTE, e.g. {example}")
    return _attribute(_module(name, module_name), name, attribute)


def hugging_face(name: str) -> HuggingFace:
    """The model that ``hf:PATH,key=value,...`` names, which is read. Raises InputError where it
    cannot be cut, or a setting is wrong."""
    path, *settings = name.removeprefix(HUGGING_FACE).split(",")
    if not path:
        raise InputError(f"{name}: expected hf:PATH, a folder with a config.json, or such a file")
    chosen: dict[str, Any] = {}
    for text in settings:
        key, _, value = text.partition("=")
        if key not in SETTINGS or key in chosen or not value:
            raise InputError(
                f"{name}: expected {', '.join(f'{key}=...' for key in SETTINGS)}, each once, got "
                f"{text!r}"
            )
        try:
            chosen[key] = SETTINGS[key](value)
        except ValueError:
            raise InputError(f"{name}: {key}: expected a number, got {value!r}") from None
    source = HuggingFace(path, **chosen)
    source.check()
    return source


def _module(name: str, module_name: str) -> ModuleType:
    if module_name.endswith(".py"):
        path = Path(module_name).with_suffix("")
        meant = path.name if path.is_absolute() else ".".join(path.parts)
        raise InputError(f"{name}: expected the module, {meant}, not its file")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"{name}: {error} (looked in {here} and the Python path)") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{name}: importing {module_name} failed: {in_brief(error)}") from error


def _attribute(module: ModuleType, name: str, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            public = [known for known in dir(value) if not known.startswith("_")]
            raise InputError(
                f"{name}: {module.__name__} has no attribute {path}{did_you_mean(part, public)}"
            ) from None
    return value


def _made_by(make: Callable[[], Any], name: str) -> ModelSource:
    try:
        value = make()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{name}: calling it without arguments failed: {in_brief(error)}"
        ) from error
    if not _is_source(value):
        raise InputError(f"{name}: what it returns is no model source: {_lacks(value)}")
    return cast("ModelSource", value)


def _is_source(value: object) -> bool:
    return not isinstance(value, type) and not _missing(value)


def _missing(value: object) -> list[str]:
    return [method for method in METHODS if not callable(getattr(value, method, None))]


def _lacks(value: object) -> str:
    own = " (docs/tutorials/own-model.md makes a source of a module)"
    lacks = f"{type(value).__name__} has no {', '.join(_missing(value))}"
    return lacks + own * isinstance(value, nn.Module)
