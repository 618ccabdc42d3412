"""The Hugging Face architectures that are cut between their layers, and reading of a configuration.

A model is cut in the same way whatever its architecture (:class:`~.skeleton.Skeleton`), but only
where a test has compared its loss and gradients with those of the whole model.
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
"""Values of ``model_type`` whose ``base_model_pp_plan`` names what runs after the layers."""
CLOSING = {
    **dict.fromkeys(("nemotron", "olmoe", "stablelm"), ("norm",)),
    **dict.fromkeys(("bloom", "falcon", "gpt2", "gptj"), ("ln_f",)),
    **dict.fromkeys(("mamba", "mpt"), ("norm_f",)),
    "biogpt": ("layer_norm",),
    "opt": ("final_layer_norm", "project_out"),
}
"""The others, and the modules beside the layers that run after them."""
UNTRAINABLE = {
    "quantization_config": "weights are trained",
    "output_router_logits": "the routers' auxiliary loss is one of all layers together",
    "layerdrop": "each layer runs in each step",
}
"""Options with which layers do not train one by one, with why."""
TUPLES = ("bloom", "falcon", "gptj", "mpt")  # whose layers return their output in a tuple


def read_skeleton(path: Path, name: str, kernels: Mapping[str, str]) -> Skeleton:
    """The skeleton of a ``config.json``'s model; ``name``: the model's name in errors; ``kernels``:
    implementations, as ``from_config`` takes them.

    Raises InputError where the model cannot be cut.
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
    """The library. Raises InputError where it is not installed."""
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        raise InputError(
            f"hf: needs {error.name}: pip install 'pipeloom[models]' "
            "(in a checkout: pip install '.[models]')"
        ) from None


def _config(library: Any, path: Path, where: str) -> Any:
    """The configuration. Raises InputError for one that is wrong, or of a model that is not cut."""
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
    """An error in a line."""
    return shorten(f"{type(error).__name__}: {error}", BRIEF, placeholder=" ...")
