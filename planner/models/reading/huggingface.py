"""Reads models with the keys of Hugging Face's ``config.json``, or of data derived from it.

If a file has a ``model_type``, missing keys have the defaults of that type in transformers 5.
Without a ``model_type``, the model is assumed to be similar to Llama, and its sizes are required.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeloom.ir.errors import InputError, did_you_mean

from ...packaged import packaged
from ..model import Experts, LatentAttention, Model
from ..words import MOST_LAYERS, Words

TYPES: dict[str, dict[str, Any]] = packaged(__package__, "types.json")
"""Model types by name. ``defaults``: values that transformers uses for missing keys, as far as they
matter here, including biases that a type always has. ``read``: the keys that transformers reads
(for kimi_k2, the keys that its own code reads); all other keys are ignored. ``traits``: properties
that no key expresses. The last three entries are kinds of feed-forward part, for models without a
type."""
_KEYS = packaged(__package__, "keys.json")
KNOWN = frozenset(_KEYS["counted"])
"""The keys that affect the arithmetic."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = "num_experts_per_tok"
_HEADS = ("num_attention_heads", "n_head", "head_num")
_DROPOUTS = ("resid_pdrop", "hidden_dropout", "dropout", "attn_pdrop")


def model_of(given: Mapping[str, Any], name: str) -> Model:
    """The model that the mapping ``given`` describes. Raises InputError with one line per fault.

    ``name``: the model's name if ``given`` has none.
    """
    kind = given.get("model_type", given.get("mlp"))
    kind = "swiglu" if kind in (None, "dense") else kind
    if not isinstance(kind, str) or kind not in TYPES:
        hint = did_you_mean(str(kind), TYPES)
        raise InputError(f"model_type: expected one of {', '.join(TYPES)}, got {kind!r:.60}{hint}")
    ignored = KNOWN.difference(_KEYS["read by all types"], TYPES[kind].get("read", KNOWN))
    counted = {key: value for key, value in given.items() if key not in ignored}
    words = Words(counted, TYPES[kind]["defaults"])
    model = _model(words, kind, name)
    beginnings = tuple(_KEYS["ignored beginnings"])
    passed = (key for key in given if key.startswith(beginnings))
    words.refuse_unknown({*KNOWN, *_KEYS["ignored"], *passed})
    words.raise_faults()
    return model


def _model(words: Words, kind: str, name: str) -> Model:
    traits = frozenset(TYPES[kind].get("traits", ()))
    hidden = words.whole("hidden_size", "n_embd")
    layers = words.whole("num_hidden_layers", "n_layer", "layer_num", most=MOST_LAYERS)
    heads = words.whole(*_HEADS)
    latent = _latent(words)
    dim = _head_dim(words, hidden, heads, latent)
    longest = words.whole("max_position_embeddings", "n_positions", "n_ctx", default=0, least=0)
    longest = words.whole("positions", default=longest, least=0)
    learned = "learned positions" in traits or words.has("positions")
    rows = longest + 2 if kind == "opt" else longest
    biased = words.flag("attention_bias", "enable_bias")
    two_matrices, window = "LayerNorm" in traits, _window(words)
    width = words.whole(
        "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden if two_matrices else None
    )
    embedded = words.whole("word_embed_proj_dim", default=hidden)
    return Model(
        name=str(words.value("name", "model_name") or name),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(words, heads, latent),
        head_dim=dim,
        value_dim=words.whole("v_head_dim", default=dim) if latent else dim,
        width=width,
        vocab=words.whole("vocab_size"),
        gated=not two_matrices and words.flag("use_swiglu", default=True),
        tied=words.flag("tie_word_embeddings"),
        relu="relu" in traits,
        experts=_experts(words, kind, layers),
        latent=latent,
        positions=rows if learned else 0,
        embedding_width=None if embedded == hidden else embedded,
        norms=4 if "four norms" in traits else 2,
        norm_parameters=_norm_parameters(words, two_matrices),
        final_norm=words.flag("do_layer_norm_before", default=True),
        parallel=words.flag("use_parallel_residual"),
        qk_norm=2 * dim if "norms of q and k" in traits else 0,
        qkv_bias=words.flag("qkv_bias", default=biased),
        output_bias=biased,
        mlp_bias=words.flag("mlp_bias", "enable_bias"),
        sinks=kind == "gpt_oss",
        dropout=any(words.number(key, 0.0, 2.0**80, "a number >= 0") for key in _DROPOUTS),
        window=window,
        windowed=frozenset() if window is None else _windowed(words, traits, layers),
        mtp=words.whole("num_nextn_predict_layers", "num_mtp_layers", default=0, least=0, most=100),
        longest=longest or None,
    )


def _norm_parameters(words: Words, layer_norm: bool) -> int:
    if not words.flag("layer_norm_elementwise_affine", default=True):
        return 0
    return 2 if layer_norm else 1


def _head_dim(words: Words, hidden: int, heads: int, latent: LatentAttention | None) -> int:
    if latent is not None:
        return latent.nope_dim + latent.rope_dim
    if hidden % heads and not words.has("head_dim", "head_size"):
        return words.conflict(_HEADS, f"a divisor of hidden_size = {hidden}", 1)
    return words.whole("head_dim", "head_size", default=hidden // heads)


def _kv_heads(words: Words, heads: int, latent: LatentAttention | None) -> int:
    keys = ("num_key_value_heads", "kv_head_num")
    found = heads if latent else words.whole(*keys, default=heads)
    if heads % found:
        return words.conflict(keys, f"a divisor of the {heads} heads", heads)
    return found


def _latent(words: Words) -> LatentAttention | None:
    if not words.has("kv_lora_rank"):
        return None
    rank = words.whole("q_lora_rank") if words.has("q_lora_rank") else None
    nope, rope = words.whole("qk_nope_head_dim"), words.whole("qk_rope_head_dim")
    return LatentAttention(rank, words.whole("kv_lora_rank"), nope, rope)


def _experts(words: Words, kind: str, layers: int) -> Experts | None:
    if not words.has(*_EXPERTS):
        if "read" not in TYPES[kind] and words.has(_CHOSEN):
            words.wrong((_CHOSEN,), f"none without {_EXPERTS[0]}", None)
        return None
    count = words.whole(*_EXPERTS, least=0)
    if count == 0:
        return None
    chosen = words.whole(_CHOSEN)
    if chosen > count:
        words.conflict((_CHOSEN,), f"at most the {count} experts", 1)
    width = words.whole("moe_intermediate_size", default=words.whole("intermediate_size"))
    shared = words.whole("n_shared_experts", default=0, least=0) * width
    shared = words.whole("shared_expert_intermediate_size", default=shared, least=0)
    return Experts(
        count,
        chosen,
        width,
        shared,
        shared_gate=words.has("shared_expert_intermediate_size"),
        router_bias=count if kind == "gpt_oss" else 0,
        biases=kind == "gpt_oss",
        dense=_dense(words, layers),
    )


def _dense(words: Words, layers: int) -> frozenset[int]:
    """The indices of layers without experts.

    A layer is one of them if it is among the first ``first_k_dense_replace`` layers, if only every
    n-th layer has experts and it is another one, or if ``mlp_only_layers`` lists it.
    """
    first = words.whole("first_k_dense_replace", default=0, least=0)
    every, step = (
        words.whole("moe_layer_freq", default=1),
        words.whole("decoder_sparse_step", default=1),
    )
    named = words.value("mlp_only_layers") or []
    if not isinstance(named, list):
        named = words.wrong(("mlp_only_layers",), "a list of layers", [])
    return frozenset(
        i for i in range(layers) if i < first or i % every or (i + 1) % step or i in named
    )


def _window(words: Words) -> int | None:
    used = words.has("sliding_window") and words.flag("use_sliding_window", default=True)
    return words.whole("sliding_window") if used else None


def _windowed(words: Words, traits: frozenset[str], layers: int) -> frozenset[int]:
    """The indices of windowed layers.

    They follow from ``layer_types``, or else from the model type's rule: every n-th layer of a
    range attends to all positions, and the others in that range have a window.
    """
    kinds = words.value("layer_types")
    if isinstance(kinds, list):
        return frozenset(i for i, each in enumerate(kinds) if each == "sliding_attention")
    edge = words.whole("max_window_layers", default=0, least=0)
    within = range(min(edge, layers)) if "windows first" in traits else range(edge, layers)
    pattern = words.whole("sliding_window_pattern", default=layers + 1)
    return frozenset(i for i in within if (i + 1) % pattern)
