"""Types of models in Hugging Face's words, and what transformers 5 takes for keys left out."""

from __future__ import annotations

from typing import Any

_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_QWEN = _LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
_QWEN_MOE = _QWEN | {"hidden_size": 2048, "num_hidden_layers": 24, "decoder_sparse_step": 1}
_GEMMA = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
_GEMMA_2 = _GEMMA | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
}
_MISTRAL = _LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
_DEEPSEEK_V3 = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "max_position_embeddings": 4096,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL | {"sliding_window": 4096},
    "qwen2": _QWEN | {"max_window_layers": 28},
    "qwen3": _QWEN | {"head_dim": 128, "max_window_layers": 28},
    "gemma": _GEMMA,
    "gemma2": _GEMMA_2,
    "gemma3_text": _GEMMA_2 | {"vocab_size": 262208, "max_position_embeddings": 131072},
    "gpt2": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "resid_pdrop": 0.1,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "gpt_neox": {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "max_position_embeddings": 2048,
        "use_parallel_residual": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "opt": {
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "dropout": 0.1,
        "tie_word_embeddings": True,
        "enable_bias": True,
    },
    "mixtral": _MISTRAL | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": _QWEN_MOE
    | {
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "max_window_layers": 28,
        "qkv_bias": True,
    },
    "qwen3_moe": _QWEN_MOE
    | {
        "num_key_value_heads": 4,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    "deepseek_v2": _LLAMA
    | {
        "vocab_size": 102400,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_intermediate_size": 1407,
        "first_k_dense_replace": 0,
    },
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "gpt_oss": {
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
        "max_position_embeddings": 131072,
    },
}
"""What transformers takes for the keys of each type that a file does not have, in so far as they
count here; biases that a type always has among them."""

_LATENT = "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
_PLAIN_EXPERTS = "num_local_experts num_experts num_experts_per_tok"
_QWEN_EXPERTS = (
    "num_experts num_experts_per_tok moe_intermediate_size mlp_only_layers decoder_sparse_step"
)
_DEEPSEEK = (
    "n_routed_experts num_experts_per_tok n_shared_experts moe_intermediate_size attention_bias "
    f"first_k_dense_replace num_nextn_predict_layers num_mtp_layers intermediate_size {_LATENT}"
)
_GROUPED = "num_key_value_heads head_dim intermediate_size"
_WINDOWS = "sliding_window layer_types"
_LATER = "use_sliding_window max_window_layers"
_READ = {
    "llama": f"{_GROUPED} attention_bias mlp_bias",
    "mistral": f"{_GROUPED} sliding_window",
    "qwen2": f"{_GROUPED} {_WINDOWS} {_LATER}",
    "qwen3": f"{_GROUPED} {_WINDOWS} {_LATER} attention_bias",
    "gemma": f"{_GROUPED} attention_bias",
    "gemma2": f"{_GROUPED} {_WINDOWS} attention_bias",
    "gemma3_text": f"{_GROUPED} {_WINDOWS} sliding_window_pattern attention_bias",
    "gpt2": "n_embd n_layer n_head n_positions n_inner resid_pdrop attn_pdrop",
    "gpt_neox": "intermediate_size use_parallel_residual attention_bias hidden_dropout",
    "opt": "ffn_dim word_embed_proj_dim do_layer_norm_before enable_bias dropout "
    "layer_norm_elementwise_affine",
    "mixtral": f"{_GROUPED} {_PLAIN_EXPERTS} sliding_window",
    "qwen2_moe": f"{_GROUPED} {_QWEN_EXPERTS} {_WINDOWS} {_LATER} qkv_bias "
    "shared_expert_intermediate_size",
    "qwen3_moe": f"{_GROUPED} {_QWEN_EXPERTS} num_local_experts attention_bias sliding_window "
    "use_sliding_window",
    "deepseek_v2": f"{_DEEPSEEK} num_experts mlp_bias",
    "deepseek_v3": f"{_DEEPSEEK} num_local_experts",
    "kimi_k2": f"{_DEEPSEEK} moe_layer_freq",
    "gpt_oss": f"{_GROUPED} {_PLAIN_EXPERTS} {_WINDOWS} attention_bias",
}
_ALWAYS = """
vocab_size hidden_size num_hidden_layers num_attention_heads max_position_embeddings
tie_word_embeddings model_type model_name name nominal_parameters
"""
READ = {kind: frozenset(f"{_ALWAYS} {keys}".split()) for kind, keys in _READ.items()}
"""The keys that transformers reads for each type (kimi_k2: its own code), in so far as they count
here. It ignores what other types have."""
