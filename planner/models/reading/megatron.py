"""Models in the words of Megatron-LM's arguments, with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model import Experts, LatentAttention, Model
from ..words import MOST_LAYERS, Words

SIGNS = ("num_layers", "ffn_hidden_size", "untie_embeddings_and_output_weights", "num_moe_experts")
"""Keys by which these words are told from Hugging Face's."""
_KEYS = """
num_layers hidden_size ffn_hidden_size num_attention_heads group_query_attention  num_query_groups
kv_channels vocab_size padded_vocab_size max_position_embeddings seq_length  swiglu squared_relu
normalization untie_embeddings_and_output_weights position_embedding_type  add_bias_linear
disable_bias_linear add_qkv_bias qk_layernorm hidden_dropout  attention_dropout num_experts
num_moe_experts moe_router_topk moe_ffn_hidden_size  moe_shared_expert_intermediate_size
moe_shared_expert_gate moe_layer_freq  multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim
qk_pos_emb_head_dim v_head_dim  mtp_num_layers name
"""
KNOWN = frozenset(_KEYS.split())
_COUNT = ("num_experts", "num_moe_experts")


def model_of(given: Mapping[str, Any], name: str) -> Model:
    """The model that ``given`` describes; flags with hyphens are the same keys.

    Raises InputError, a line for each fault.
    """
    words = Words({key.lstrip("-").replace("-", "_"): value for key, value in given.items()}, {})
    model = _model(words, name)
    words.refuse_unknown(KNOWN)
    words.raise_faults()
    return model


def _model(words: Words, name: str) -> Model:
    hidden, layers = words.whole("hidden_size"), words.whole("num_layers", most=MOST_LAYERS)
    heads = words.whole("num_attention_heads")
    gated, latent = words.flag("swiglu"), _latent(words)
    dim = words.whole("kv_channels", default=max(1, hidden // heads))
    dim = latent.nope_dim + latent.rope_dim if latent else dim
    biased = words.flag("add_bias_linear", default=not words.flag("disable_bias_linear"))
    norm = words.one_of("normalization", ("LayerNorm", "RMSNorm"), "LayerNorm")
    learned = words.one_of(
        "position_embedding_type", ("learned_absolute", "rope", "none"), "learned_absolute"
    )
    longest = words.whole("max_position_embeddings", "seq_length", default=0, least=0)
    width = words.whole("ffn_hidden_size", default=_default_width(hidden, gated))
    return Model(
        name=str(words.value("name") or name),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(words, heads),
        head_dim=dim,
        value_dim=words.whole("v_head_dim", default=128) if latent else dim,
        width=width,
        vocab=words.whole("padded_vocab_size", "vocab_size"),
        gated=gated,
        tied=not words.flag("untie_embeddings_and_output_weights"),
        relu=words.flag("squared_relu"),
        experts=_experts(words, width, layers),
        latent=latent,
        positions=longest if learned == "learned_absolute" else 0,
        norm_parameters=1 if norm == "RMSNorm" else 2,
        qk_norm=2 * dim * (1 if norm == "RMSNorm" else 2) if words.flag("qk_layernorm") else 0,
        qkv_bias=biased or words.flag("add_qkv_bias"),
        output_bias=biased,
        mlp_bias=biased,
        dropout=_dropout(words, "hidden_dropout") or _dropout(words, "attention_dropout"),
        mtp=words.whole("mtp_num_layers", default=0, least=0, most=100),
        longest=longest or None,
    )


def _default_width(hidden: int, gated: bool) -> int:
    """Megatron's default: 4 h, or two thirds of that in steps of 64 where gated."""
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _dropout(words: Words, key: str) -> bool:
    return words.rate(key) > 0 if words.has(key) else True


def _kv_heads(words: Words, heads: int) -> int:
    if not words.flag("group_query_attention", default=words.has("num_query_groups")):
        return heads
    found = words.whole("num_query_groups", default=1)
    if heads % found:
        return words.conflict(("num_query_groups",), f"a divisor of the {heads} heads", heads)
    return found


def _latent(words: Words) -> LatentAttention | None:
    if not words.flag("multi_latent_attention"):
        return None
    rank = words.whole("q_lora_rank") if words.has("q_lora_rank") else None
    return LatentAttention(
        rank,
        words.whole("kv_lora_rank", default=32),
        words.whole("qk_head_dim", default=128),
        words.whole("qk_pos_emb_head_dim", default=64),
    )


def _experts(words: Words, width: int, layers: int) -> Experts | None:
    if not words.has(*_COUNT):
        return None
    count, chosen = words.whole(*_COUNT), words.whole("moe_router_topk", default=2)
    if chosen > count:
        words.conflict(("moe_router_topk",), f"at most the {count} experts", 1)
    return Experts(
        count,
        chosen,
        words.whole("moe_ffn_hidden_size", default=width),
        words.whole("moe_shared_expert_intermediate_size", default=0, least=0),
        shared_gate=words.flag("moe_shared_expert_gate"),
        dense=_dense(words, layers),
    )


def _dense(words: Words, layers: int) -> frozenset[int]:
    """``moe_layer_freq``: one layer in so many has experts, or a list of 0 and 1, a layer each."""
    given = words.value("moe_layer_freq")
    if isinstance(given, list):
        if len(given) != layers or not {*given} <= {0, 1}:
            words.wrong(("moe_layer_freq",), f"a list of {layers} times 0 or 1", None)
        return frozenset(i for i, each in enumerate(given) if not each)
    every = words.whole("moe_layer_freq", default=1)
    return frozenset(i for i in range(layers) if i % every)
