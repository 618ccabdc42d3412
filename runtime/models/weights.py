"""Weights of a part of a Hugging Face model: read from its files, or drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from .skeleton import initialise

ONE, MANY = "model.safetensors", "model.safetensors.index.json"
OTHERS = ("*.safetensors", "pytorch_model*.bin", "*.gguf", "*.pth")


def files_of(folder: Path, name: str) -> list[Path]:
    """The folder's files of weights; none where it has no weights at all.

    Raises InputError where there are others than expected, or some are missing.
    """
    if (folder / MANY).is_file():
        files = [folder / shard for shard in _shards(folder / MANY, name)]
    elif (folder / ONE).is_file():
        files = [folder / ONE]
    else:
        found = [path.name for pattern in OTHERS for path in sorted(folder.glob(pattern))]
        if found:
            raise InputError(f"{name}: expected weights in {ONE} or {MANY}, found {found[0]}")
        return []
    for path in files:
        try:
            with import_module("safetensors").safe_open(path, framework="pt"):
                pass
        except Exception as error:
            raise InputError(f"{name}: {path.name}: expected a file of weights: {error}") from error
    return files


def _shards(index: Path, name: str) -> list[str]:
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted(set(map(str, shards)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: {index.name}: expected a weight_map: {error!r}") from error


def load(part: Any, files: list[Path], name: str) -> None:
    """Reads what ``part`` has of its model, and no more, in its own dtype.

    Raises InputError where weights are missing, or have other shapes.
    """
    loading = import_module("transformers.core_model_loading")
    utils = import_module("transformers.modeling_utils")
    mapping = import_module("transformers.conversion_mapping").get_model_conversion_mapping(part)
    with ExitStack() as opened, _no_bars():
        safe_open = import_module("safetensors").safe_open
        slices: dict[str, Any] = {}
        for path in files:
            file = opened.enter_context(safe_open(path, framework="pt"))
            slices |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        config = utils.LoadStateDictConfig(weight_mapping=mapping)
        info, _ = loading.convert_and_load_state_dict_in_model(part, slices, config)
    _tie(part, info.missing_keys)
    if info.mismatched_keys:
        key, there, expected = sorted(info.mismatched_keys)[0]
        raise InputError(f"{name}: {key}: expected shape {list(expected)}, got {list(there)}")
    if info.missing_keys:
        raise InputError(f"{name}: expected {sorted(info.missing_keys)[0]} in its weights")


def _tie(part: Any, missing: set[str]) -> None:
    """Gives tied parameters the one of them that was read."""
    for other, first in part.all_tied_weights_keys.items():
        for name, source in ((other, first), (first, other)):
            if name in missing and source not in missing:
                try:
                    parameter = part.get_parameter(source)
                except AttributeError:
                    continue  # of another part
                _put(part, name, parameter)
                missing.discard(name)


def draw(part: Any, seed: int) -> None:
    """Initialises what was not loaded, as the model itself does it."""
    made: dict[int, nn.Parameter] = {}  # by the parameter's id: tied ones stay one
    for module in part.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                empty = torch.empty_like(parameter, device="cpu")
                made.setdefault(id(parameter), nn.Parameter(empty, parameter.requires_grad))
                module._parameters[key] = made[id(parameter)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialise(part, "cpu")


def _put(part: nn.Module, name: str, parameter: Tensor) -> None:
    path, _, last = name.rpartition(".")
    setattr(part.get_submodule(path), last, parameter)


@contextmanager
def _no_bars() -> Iterator[None]:
    """A context without a progress bar for each layer."""
    logging = import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
