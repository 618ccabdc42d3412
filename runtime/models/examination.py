"""Finds out what a Hugging Face model consists of, and whether it may be cut between its layers.

It is run on a few tokens with stand-ins for its decoder layers and drawn parameters, which take no
room: as a whole, and cut into its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from pipeloom.ir.errors import InputError

from .layer_calls import CutError, StandIns, capture
from .skeleton import Frame, Skeleton, logits, windowed_product

CPU = torch.device("cpu")
ROWS, TOKENS = 2, 4
BRIEF = 300  # characters
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
FORMS = range(4)  # of what a layer returns: a tensor, or a tuple of so many


def read_skeleton(path: Path, name: str, kernels: Mapping[str, str]) -> Skeleton:
    """The skeleton of a ``config.json``'s model; ``name``: the model's name in faults; ``kernels``:
    implementations, as ``from_config`` takes them.

    Raises InputError where the model cannot be cut.
    """
    try:
        config = _config(path, name)
        model = _on_meta(config, kernels)
        return _examined(model, _layer_list(model))
    except CutError as error:
        raise InputError(
            f"{name}: {error}; a model source cuts other models (docs/tutorials/own-model.md)"
        ) from error


def _transformers() -> Any:
    """The library. Raises InputError where it is not installed."""
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        raise InputError(
            f"hf: needs {error.name}: pip install 'pipeloom[models]' "
            "(in a checkout: pip install '.[models]')"
        ) from None


class _PlaceholderProducts(TorchFunctionMode):
    """A mode in which a product with a placeholder makes no matrix of it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is linear and len(args) > 1 and args[1].stride() == (1, 1):
            bias = (kwargs or {}).get("bias", *args[2:])
            out = windowed_product(*args[:2])
            return out if bias is None else out + bias
        return func(*args, **kwargs or {})


def _config(path: Path, name: str) -> Any:
    """The configuration. Raises InputError for a wrong one, CutError where code comes with it that
    the library does not have."""
    library = _transformers()
    try:
        written, _ = library.PretrainedConfig.get_config_dict(path, local_files_only=True)
        _check_code(written)
        config = library.AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except CutError:
        raise
    except Exception as error:
        raise InputError(f"{name}: {path.name}: {_brief(error)}") from error
    decoder = config.get_text_config()
    for key in SIZES:
        size = getattr(decoder, key, None)
        if isinstance(size, int) and size < 1:
            own = decoder.attribute_map.get(key, key)
            raise InputError(f"{name}: {path.name}: {own}: expected at least 1, got {size}")
    return config


def _check_code(written: Any) -> None:
    """Raises CutError for a configuration of a model that is code beside it, which is not run."""
    known = import_module("transformers.models.auto.modeling_auto")
    if "auto_map" in written:
        kind = written.get("model_type")
        if kind not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise CutError(
                "auto_map: expected the model_type of a causal language model of transformers, got "
                f"{kind!r}: code that comes with a model is not run"
            )


def _on_meta(config: Any, kernels: Mapping[str, str]) -> Any:
    """The causal language model of a configuration. Raises CutError for what cannot train."""
    kind, decoder = config.model_type, config.get_text_config()
    if config.is_encoder_decoder:
        raise CutError(f"{kind}: expected a decoder alone, found an encoder and a decoder")
    if getattr(config, "quantization_config", None) is not None:
        raise CutError(f"{kind}: expected weights to train, found quantization_config")
    if getattr(decoder, "output_router_logits", False):
        raise CutError(
            f"{kind}: expected output_router_logits false, got true: the routers' auxiliary loss, "
            "which is one of all layers together, would be lost"
        )
    if getattr(decoder, "layerdrop", 0):
        raise CutError(f"{kind}: expected layerdrop 0, got {decoder.layerdrop}")
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            make = _transformers().AutoModelForCausalLM.from_config
            model = make(config, trust_remote_code=False, **kernels).train()
    except Exception as error:
        raise CutError(f"{kind}: expected a causal language model: {_brief(error)}") from error
    model.loss_type = model.loss_type or "ForCausalLM"  # what it falls back to, with a warning
    return model


def _layer_list(model: Any) -> str:
    """The name of the list of decoder layers."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    fits = [name for name in outer if len(model.get_submodule(name)) == count]
    if len(fits) != 1:
        found = ", ".join(f"{name} ({len(model.get_submodule(name))})" for name in outer)
        raise CutError(
            f"{type(model).__name__}: expected one list of {count} decoder layers, found "
            f"{found or 'none'}"
        )
    return str(fits[0])


@torch.no_grad()
def _examined(model: Any, layers: str) -> Skeleton:
    """Finds what its layers return and what is around them. Raises CutError where the model
    does not fit."""
    try:
        with _PlaceholderProducts():
            found = _cut(_formed(model, layers))
            found.calls.plan((1, TOKENS), torch.float32, CPU)
            return found
    except Exception as error:
        raise CutError(f"{type(model).__name__}: {_brief(error)}") from error


def _formed(model: Any, layers: str) -> Frame:
    """The first form of the layers' outputs with which the model runs as far as the last one."""
    first: Exception | None = None
    for form in FORMS:
        frame = Frame(model, layers, form)
        try:
            capture(*frame.placeholder(0, torch.float32, CPU), torch.zeros(1, TOKENS).long())
        except Exception as error:
            first = first or error
        else:
            return frame
    assert first is not None
    raise first


def _cut(frame: Frame) -> Skeleton:
    """Runs the model as a whole, and cut into its parts. Raises CutError where these differ."""
    whole, stand_ins = frame.placeholder(0, torch.float32, CPU)
    before, after, output = _watch(frame, whole, stand_ins)
    config, random = whole.config.get_text_config(), torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, TOKENS, config.hidden_size, generator=random)
    tokens = torch.arange(ROWS * TOKENS).view(ROWS, TOKENS) % config.vocab_size
    stand_ins.result = hidden
    found = whole(input_ids=tokens, labels=tokens, use_cache=False)
    stand_ins.check()
    skeleton = Skeleton(
        frame.model,
        frame.layers,
        frame.form,
        before=tuple(before),
        closing=tuple(unit for unit in after if unit.rpartition(".")[0] == frame.body),
        after=tuple(after),
        output=output[0],
    )
    _check_complete(skeleton)
    cut = logits(whole, skeleton.headed(whole), hidden)
    if not torch.equal(cut, found.logits):
        raise CutError(f"from its layers to its logits there is more than {', '.join(after)}")
    if not torch.isclose(skeleton.loss(cut, tokens), found.loss):
        raise CutError("its loss is another than the next token's cross entropy")
    return skeleton


def _watch(
    frame: Frame, whole: Any, stand_ins: StandIns
) -> tuple[dict[str, None], dict[str, None], list[type]]:
    """The units that run before and after the layers, in order, and what the body returns: each
    filled when the model runs."""
    before: dict[str, None] = {}
    after: dict[str, None] = {}
    output: list[type] = []

    def note(unit: str) -> Callable[..., None]:
        return lambda *_: (after if stand_ins.calls else before).update({unit: None})

    for unit in frame.units:
        for part in whole.get_submodule(unit).modules():
            part.register_forward_pre_hook(note(unit))
    body = whole.get_submodule(frame.body)
    body.register_forward_hook(lambda _module, _args, out: output.append(type(out)))
    return before, after, output


def _check_complete(skeleton: Skeleton) -> None:
    """Raises CutError where a unit runs twice, or has weights and does not run."""
    both = [unit for unit in skeleton.before if unit in skeleton.after]
    if both:
        raise CutError(f"{both[0]} runs before its layers and after them")
    there = (*skeleton.before, *skeleton.after, *skeleton.blocks)
    model = skeleton.model
    for name, _ in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        if not any(name.startswith(f"{unit}.") for unit in there):
            raise CutError(f"{name} is in no module that tokens alone pass through")


def _brief(error: Exception) -> str:
    """An error in a line."""
    kind = "" if isinstance(error, CutError) else f"{type(error).__name__}: "
    return shorten(f"{kind}{error}", BRIEF, placeholder=" ...")
