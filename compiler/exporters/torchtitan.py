"""The names of the modules of each stage, as torchtitan's ``module_fqns_per_model_part``.

::

    [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]     one list per stage

JSON, TOML and Python write a list of lists of strings in the same way. The list does not contain
the ranks of the stages, as they follow from the schedule that torchtitan runs. A loss that no
module computes is left out. Rotary embeddings are in every part, as all layers use them.

For a Hugging Face model similar to Llama, the names are those of torchtitan's wrapper in version
0.3 (https://github.com/pytorch/torchtitan,
``torchtitan/experiments/transformers_modeling_backend/model.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain

from pipeloom.ir.model.layers import Layer
from pipeloom.ir.model.schedule import Schedule

from .stage_layers import named_parts

WRAPPED = {
    "model.embed_tokens": "tok_embeddings",
    "model.rotary_emb": "rotary_emb",
    "model.norm": "norm",
    "model.final_layernorm": "norm",
    "lm_head": "lm_head",
}
"""The names in torchtitan's wrapper of Hugging Face models, by the model's own names, for modules
other than the layers."""
LAYERS, ROTARY = "model.layers.", "rotary_emb"


def write(schedule: Schedule) -> str:
    """The list of each stage's module names, as text with one line per stage.

    Raises InputError if the layers of the stages are unknown.
    """
    parts = _with_rotary([_modules(part) for part in named_parts(schedule, "torchtitan")])
    if is_wrapped(schedule):
        parts = [[WRAPPED.get(m, m.removeprefix("model.")) for m in part] for part in parts]
    return "[\n" + ",\n".join(f"  {json.dumps(part)}" for part in parts) + "\n]\n"


def is_wrapped(schedule: Schedule) -> bool:
    """Whether all modules of the stages exist in torchtitan's wrapper of Hugging Face models.

    False also if the rotary embeddings are not among these modules.
    """
    modules = _all_modules(schedule)
    known = all(name in WRAPPED or name.startswith(LAYERS) for name in modules)
    return known and f"model.{ROTARY}" in modules


def nested(schedule: Schedule) -> str | None:
    """The name of the first module that torchtitan cannot find in the model, or None.

    torchtitan finds only direct children of the model, and entries of lists that are such children.
    It does not find modules that are nested more deeply.
    """
    deep = (name for name in _all_modules(schedule) if name.count(".") > name[-1:].isdigit())
    return next(deep, None)


def _all_modules(schedule: Schedule) -> list[str]:
    return _modules(chain.from_iterable(s.layers for s in schedule.problem.profile.stages))


def _modules(layers: Iterable[Layer]) -> list[str]:
    return [module for layer in layers for module in layer.modules]


def _with_rotary(parts: list[list[str]]) -> list[list[str]]:
    """The module names of each stage, with the model's rotary embeddings added to every stage."""
    rotary = [m for m in chain.from_iterable(parts) if m.rpartition(".")[2].startswith(ROTARY)]
    return [[*part, *(m for m in rotary if m not in part)] for part in parts]


def write_toml(schedule: Schedule) -> str:
    """The text of :func:`write` as part of a TOML file of torchtitan, to be pasted into it.

    The part sets the number of ranks and the list of module names.
    """
    parts = write(schedule).rstrip()
    return (
        f"[parallelism]\npipeline_parallel_degree = {schedule.problem.ranks}\n"
        f"module_fqns_per_model_part = {parts}\n"
    )
