"""The supported Hugging Face architectures, and reading of their configurations.

All models are cut in the same way (:class:`~.skeleton.Skeleton`). The lists below contain the
architectures for which a test compares loss and gradients of the cut model with the whole model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from pipeloom.ir.errors import InputError

from .skeleton import Skeleton

BRIEF = 300  # characters
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
PLANNED = (
    *("cohere", "cohere2", "deepseek_v3", "exaone4", "gemma", "gemma2", "gemma3_text", "glm4"),
    *("gpt_neox", "gpt_oss", "granite", "llama", "mistral", "mixtral", "olmo", "olmo2", "phi"),
    *("phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "starcoder2"),
)
"""Values of ``model_type`` of models whose ``base_model_pp_plan`` lists what follows the layers."""
CLOSING = {
    **dict.fromkeys(("nemotron", "olmoe", "stablelm"), ("norm",)),
    **dict.fromkeys(("bloom", "falcon", "gpt2", "gptj"), ("ln_f",)),
    **dict.fromkeys(("mamba", "mpt"), ("norm_f",)),
    "biogpt": ("layer_norm",),
    "opt": ("final_layer_norm", "project_out"),
}
"""Other values of ``model_type``, with the names of the modules that run after the layers."""
UNTRAINABLE = {
    "quantization_config": "weights are trained",
    "output_router_logits": "the routers' auxiliary loss is one of all layers together",
    "layerdrop": "each layer runs in each step",
}
"""Options of a configuration that must not be set, with the reason."""
TUPLES = ("bloom", "falcon", "gptj", "mpt")  # architectures whose layers return a tuple


def read_skeleton(path: Path, name: str, kernels: Mapping[str, str]) -> Skeleton:
    """Returns the model that the ``config.json`` at ``path`` describes, without weights.

    ``name``: the model's name in error messages. ``kernels``: keyword arguments of
    ``AutoModelForCausalLM.from_config`` that select implementations, such as that of attention.
    Raises InputError if the configuration is invalid or the model cannot be cut into stages.
    """
    library = _transformers()
    where = f"{name}: {path.name}"
    config = _config(library, path, where)
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            make = library.AutoModelForCausalLM.from_config
            model = make(config, trust_remote_code=False, **kernels).train()
    except Exception as error:
        raise InputError(f"{where}: expected a causal language model: {_brief(error)}") from error
    closing = CLOSING.get(config.model_type)
    if closing is None:
        plan = [*config.base_model_pp_plan]  # in the order in which they run
        closing = tuple(plan[plan.index("layers") + 1 :])
    return Skeleton.of(model, closing, tuples=config.model_type in TUPLES)


def _transformers() -> Any:
    """Returns the module ``transformers``. Raises InputError if it is not installed."""
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        raise InputError(
            f"hf: needs {error.name}: pip install 'pipeloom[models]' "
            "(in a checkout: pip install '.[models]')"
        ) from None


def _config(library: Any, path: Path, where: str) -> Any:
    """Returns the configuration at ``path``, an object of ``transformers``.

    ``where``: the beginning of error messages. Raises InputError if the configuration is invalid or
    its model is not supported.
    """
    try:
        written, _ = library.PretrainedConfig.get_config_dict(path, local_files_only=True)
        kind = written.get("model_type")
        if kind not in (*PLANNED, *CLOSING):
            raise InputError(
                f"{where}: model_type: expected {', '.join(sorted((*PLANNED, *CLOSING)))}, got "
                f"{kind!r}: a model source cuts other models (docs/tutorials/own-model.md)"
            )
        config = library.AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{where}: {_brief(error)}") from error
    for key in SIZES:
        size = getattr(config, key, None)
        if isinstance(size, int) and size < 1:
            own = config.attribute_map.get(key, key)
            raise InputError(f"{where}: {own}: expected at least 1, got {size}")
    for key, why in UNTRAINABLE.items():
        if getattr(config, key, None):
            raise InputError(f"{where}: {key}: expected none, as {why}")
    return config


def _brief(error: Exception) -> str:
    """Returns the error's class and message in one line of at most ``BRIEF`` characters."""
    return shorten(f"{type(error).__name__}: {error}", BRIEF, placeholder=" ...")
