"""Weights of a part of a Hugging Face model: loads them from files, or initializes them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from pipeloom.ir.errors import InputError

from .skeleton import initialise

ONE, MANY = "model.safetensors", "model.safetensors.index.json"
OTHERS = ("*.safetensors", "pytorch_model*.bin", "*.gguf", "*.pth")


def files_of(folder: Path, name: str) -> list[Path]:
    """Returns the paths of the safetensors files with weights in ``folder``.

    Returns an empty list if the folder contains no weights. ``name``: the model's name in error
    messages. Raises InputError if there are only weights in other formats, and if a weight file is
    missing or unreadable.
    """
    index = folder / MANY
    if index.is_file():
        try:
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            files = [folder / shard for shard in sorted(set(map(str, shards)))]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{name}: {MANY}: expected a weight_map: {error!r}") from error
    else:
        files = [folder / ONE] if (folder / ONE).is_file() else []
        others = [path.name for pattern in OTHERS for path in sorted(folder.glob(pattern))]
        if others and not files:
            raise InputError(f"{name}: expected weights in {ONE} or {MANY}, found {others[0]}")
    for path in files:
        try:
            with import_module("safetensors").safe_open(path, framework="pt"):
                pass
        except Exception as error:
            raise InputError(f"{name}: {path.name}: expected a file of weights: {error}") from error
    return files


def load(part: Any, files: list[Path], name: str) -> None:
    """Loads the weights of ``part`` from ``files``, converted to its dtype.

    ``part``: a model of ``transformers`` that contains only some of its modules. ``name``: the
    model's name in error messages. Raises InputError if the files lack a weight of ``part`` or
    contain it in another shape.
    """
    loading = import_module("transformers.core_model_loading")
    utils = import_module("transformers.modeling_utils")
    mapping = import_module("transformers.conversion_mapping").get_model_conversion_mapping(part)
    safe_open = import_module("safetensors").safe_open
    with ExitStack() as opened:
        # no progress bars
        opened.enter_context(patch.object(loading, "tqdm", lambda found, **_: found, create=True))
        slices: dict[str, Any] = {}
        for path in files:
            file = opened.enter_context(safe_open(path, framework="pt"))
            slices |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        config = utils.LoadStateDictConfig(weight_mapping=mapping)
        info, _ = loading.convert_and_load_state_dict_in_model(part, slices, config)
    own = {*part.state_dict()}
    ties = part.all_tied_weights_keys.items()
    part.all_tied_weights_keys = {one: other for one, other in ties if {one, other} <= own}
    part.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
    if info.mismatched_keys:
        key, there, expected = sorted(info.mismatched_keys)[0]
        raise InputError(f"{name}: {key}: expected shape {list(expected)}, got {list(there)}")
    if info.missing_keys:
        raise InputError(f"{name}: expected {sorted(info.missing_keys)[0]} in its weights")


def draw(part: Any, seed: int) -> None:
    """Initializes the weights of ``part`` that are still on ``meta``, by the model's own method.

    They are created on the CPU from random numbers, which depend only on ``seed``.
    """
    made: dict[int, nn.Parameter] = {}  # by id, so that tied parameters stay tied
    for module in part.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                empty = torch.empty_like(parameter, device="cpu")
                made.setdefault(id(parameter), nn.Parameter(empty, parameter.requires_grad))
                module._parameters[key] = made[id(parameter)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialise(part, "cpu")
