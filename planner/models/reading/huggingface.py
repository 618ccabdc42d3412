"""Models in the words of Hugging Face's ``config.json``, and of data that leans on them.

Where a file names its ``model_type``, keys that it leaves out have the defaults of that type in
transformers 5; without one it is Llama's kind of model, and its sizes have to be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeloom.ir.errors import InputError, did_you_mean

from ...packaged import packaged
from ..model import Experts, LatentAttention, Model
from ..words import MOST_LAYERS, Words

_TYPES = packaged(__package__, "types.json")
DEFAULTS: dict[str, dict[str, Any]] = {kind: type_["defaults"] for kind, type_ in _TYPES.items()}
"""What transformers takes for the keys of each type that a file does not have, in so far as they
count here; biases that a type always has among them."""
_ALWAYS = """
vocab_size hidden_size num_hidden_layers num_attention_heads max_position_embeddings
tie_word_embeddings model_type model_name name
"""
READ = {kind: frozenset([*_ALWAYS.split(), *type_["read"]]) for kind, type_ in _TYPES.items()}
"""The keys that transformers reads for each type (kimi_k2: its own code), in so far as they count
here. It ignores what other types have."""
_PLAIN = {"gelu-4h", "relu-4h"}
"""Feed-forward parts of two matrices, in models like GPT-3: LayerNorm, biases, dropout."""
_LAYER_NORM = {"gpt2", "gpt_neox", "opt", *_PLAIN}
_FOUR_NORMS = {"gemma2", "gemma3_text"}
_QK_NORM = {"qwen3", "qwen3_moe", "gemma3_text"}
_LATER_WINDOWS = {"qwen2", "qwen3"}
_SOME_WINDOWS = {*_LATER_WINDOWS, "qwen2_moe", "qwen3_moe"}
_NO_EXPERTS = {"qwen2_moe", "qwen3_moe"}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = "num_experts_per_tok"
_HEADS = ("num_attention_heads", "n_head", "head_num")
_DROPOUTS = ("resid_pdrop", "hidden_dropout", "dropout", "attn_pdrop")
_SIZES = """
attention_bias decoder_sparse_step do_layer_norm_before enable_bias ffn_dim first_k_dense_replace
head_dim head_size hidden_size intermediate_size kv_head_num kv_lora_rank
layer_norm_elementwise_affine layer_num layer_types
max_position_embeddings max_window_layers mlp mlp_bias mlp_only_layers model_name model_type
moe_intermediate_size moe_layer_freq n_ctx n_embd n_inner n_layer n_positions n_shared_experts
name num_experts_per_tok num_hidden_layers num_key_value_heads num_mtp_layers
num_nextn_predict_layers positions q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim
qkv_bias shared_expert_intermediate_size sliding_window sliding_window_pattern tie_word_embeddings
use_parallel_residual use_sliding_window use_swiglu v_head_dim vocab_size word_embed_proj_dim
"""
KNOWN = frozenset({*_SIZES.split(), *_EXPERTS, *_HEADS, *_DROPOUTS})
"""Keys that count."""
_OTHERS = """
activation_function add_cross_attention architectures attention_dropout attn_logit_softcapping
auto_map aux_loss_alpha bad_words_ids chunk_size_feed_forward classifier_dropout dtype embd_pdrop
ep_size experts_per_token final_logit_softcapping gradient_checkpointing hidden_act
hidden_activation id2label init_std initial_context_length is_decoder is_encoder_decoder label2id
layer_norm_eps layer_norm_epsilon layerdrop mscale n_group
norm_topk_prob original_max_position_embeddings partial_rotary_factor prefix pretraining_tp
problem_type pruned_heads quantization_config query_pre_attn_scalar reorder_and_upcast_attn
return_dict rms_norm_eps rotary_emb_base rotary_pct routed_scaling_factor router_aux_loss_coef
router_jitter_noise scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func seq_aux
swiglu_alpha swiglu_limit task_specific_params tokenizer_class topk_group topk_method torch_dtype
torchscript transformers_version use_bfloat16 use_bidirectional_attention use_cache
use_return_dict
"""
_PASSED = frozenset(_OTHERS.split())
_PASSED_PREFIXES = ("_", "rope_", "summary_", "output_", "initializer_", "eos_", "bos_", "pad_")


def model_of(given: Mapping[str, Any], name: str) -> Model:
    """The model that ``given`` describes. Raises InputError, a line for each fault."""
    kind = given.get("model_type", given.get("mlp"))
    kind = "swiglu" if kind in (None, "dense") else kind
    if kind not in (known := (*DEFAULTS, "swiglu", *sorted(_PLAIN))):
        hint = did_you_mean(str(kind), known)
        raise InputError(f"model_type: expected one of {', '.join(known)}, got {kind!r:.60}{hint}")
    ignored = KNOWN - READ.get(kind, KNOWN)
    read = {key: value for key, value in given.items() if key not in ignored}
    words = Words(read, DEFAULTS.get(kind, {}))
    passed = (key for key in given if key.startswith(_PASSED_PREFIXES))
    model = _model(words, kind, name)
    words.refuse_unknown({*KNOWN, *_PASSED, *passed})
    words.raise_faults()
    return model


def _model(words: Words, kind: str, name: str) -> Model:
    hidden = words.whole("hidden_size", "n_embd")
    layers = words.whole("num_hidden_layers", "n_layer", "layer_num", most=MOST_LAYERS)
    heads = words.whole(*_HEADS)
    latent = _latent(words)
    dim = _head_dim(words, hidden, heads, latent)
    longest = words.whole("max_position_embeddings", "n_positions", "n_ctx", default=0, least=0)
    longest = words.whole("positions", default=longest, least=0)
    plain, window = kind in _PLAIN, _window(words, kind)
    biased = words.flag("attention_bias", "enable_bias", default=plain)
    return Model(
        name=str(words.value("name", "model_name") or name),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(words, heads, latent),
        head_dim=dim,
        value_dim=words.whole("v_head_dim", default=dim) if latent else dim,
        width=_width(words, kind, hidden),
        vocab=words.whole("vocab_size"),
        gated=kind not in _LAYER_NORM and words.flag("use_swiglu", default=True),
        tied=words.flag("tie_word_embeddings", default=plain),
        relu=kind in ("opt", "relu-4h"),
        experts=_experts(words, kind, layers),
        latent=latent,
        positions=_positions(words, kind, longest),
        embedding_width=_embedding_width(words, hidden),
        norms=4 if kind in _FOUR_NORMS else 2,
        norm_parameters=_norm_parameters(words, kind),
        final_norm=words.flag("do_layer_norm_before", default=True),
        parallel=words.flag("use_parallel_residual"),
        qk_norm=2 * dim if kind in _QK_NORM else 0,
        qkv_bias=kind == "qwen2" or words.flag("qkv_bias", default=biased),
        output_bias=biased,
        mlp_bias=words.flag("mlp_bias", "enable_bias", default=plain),
        sinks=kind == "gpt_oss",
        dropout=plain or any(words.rate(key) > 0 for key in _DROPOUTS),
        window=window,
        windowed=frozenset() if window is None else _windowed(words, kind, layers),
        mtp=words.whole("num_nextn_predict_layers", "num_mtp_layers", default=0, least=0, most=100),
        longest=longest or None,
    )


def _norm_parameters(words: Words, kind: str) -> int:
    if not words.flag("layer_norm_elementwise_affine", default=True):
        return 0
    return 2 if kind in _LAYER_NORM else 1


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


def _width(words: Words, kind: str, hidden: int) -> int:
    """Four times the hidden width where two matrices are the rule, and no other is given."""
    four = 4 * hidden if kind in _LAYER_NORM else None
    return words.whole("intermediate_size", "n_inner", "ffn_dim", default=four)


def _positions(words: Words, kind: str, longest: int) -> int:
    """Learned ones; OPT has two more rows than positions."""
    if kind == "opt":
        return longest + 2
    return longest if kind == "gpt2" or words.has("positions") else 0


def _embedding_width(words: Words, hidden: int) -> int | None:
    width = words.whole("word_embed_proj_dim", default=hidden)
    return None if width == hidden else width


def _latent(words: Words) -> LatentAttention | None:
    if not words.has("kv_lora_rank"):
        return None
    rank = words.whole("q_lora_rank") if words.has("q_lora_rank") else None
    nope, rope = words.whole("qk_nope_head_dim"), words.whole("qk_rope_head_dim")
    return LatentAttention(rank, words.whole("kv_lora_rank"), nope, rope)


def _experts(words: Words, kind: str, layers: int) -> Experts | None:
    if not words.has(*_EXPERTS):
        if kind not in DEFAULTS and words.has(_CHOSEN):
            words.wrong((_CHOSEN,), f"none without {_EXPERTS[0]}", None)
        return None
    count = words.whole(*_EXPERTS, least=0 if kind in _NO_EXPERTS else 1)
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
    """Layers without experts: the first few, all but each so-manieth, and those named."""
    first = words.whole("first_k_dense_replace", default=0, least=0)
    every, step = (
        words.whole("moe_layer_freq", default=1),
        words.whole("decoder_sparse_step", default=1),
    )
    named = words.indices("mlp_only_layers")
    return frozenset(
        i for i in range(layers) if i < first or i % every or (i + 1) % step or i in named
    )


def _window(words: Words, kind: str) -> int | None:
    if kind in _SOME_WINDOWS and not words.flag("use_sliding_window"):
        return None
    return words.whole("sliding_window") if words.has("sliding_window") else None


def _windowed(words: Words, kind: str, layers: int) -> frozenset[int]:
    """By ``layer_types``, else by each type's rule."""
    kinds = words.value("layer_types")
    if isinstance(kinds, list):
        return frozenset(i for i, each in enumerate(kinds) if each == "sliding_attention")
    if kind in ("gemma2", "gpt_oss"):
        return frozenset(range(0, layers, 2))
    if kind == "qwen2_moe":
        return frozenset(range(0, min(layers, words.whole("max_window_layers", least=0)), 2))
    first = words.whole("max_window_layers", default=0, least=0) if kind in _LATER_WINDOWS else 0
    pattern = (
        words.whole("sliding_window_pattern", default=6) if kind == "gemma3_text" else layers + 1
    )
    return frozenset(i for i in range(first, layers) if (i + 1) % pattern)
