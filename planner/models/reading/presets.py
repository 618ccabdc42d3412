"""Well-known models by name, in the words of their published configurations."""

from __future__ import annotations

from typing import Any


def _sizes(hidden: int, layers: int, heads: int, kv_heads: int, width: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
    }


def _llama(*sizes: int, vocab: int = 128256, positions: int = 8192) -> dict[str, Any]:
    words = {"model_type": "llama", "vocab_size": vocab, "max_position_embeddings": positions}
    return _sizes(*sizes) | words


def _llama_2(*sizes: int) -> dict[str, Any]:
    return _llama(*sizes, vocab=32000, positions=4096)


def _qwen(kind: str, *sizes: int, **more: Any) -> dict[str, Any]:
    return _llama(*sizes, vocab=151936, positions=32768) | {"model_type": kind} | more


def _qwen3(*sizes: int, **more: Any) -> dict[str, Any]:
    return _qwen("qwen3", *sizes, head_dim=128) | more


def _mixtral(*sizes: int) -> dict[str, Any]:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    return _llama_2(*sizes) | {"model_type": "mixtral", "max_position_embeddings": 32768} | experts


def _gemma(kind: str, *sizes: int, **more: Any) -> dict[str, Any]:
    return {"model_type": kind} | _sizes(*sizes) | more


def _gpt(hidden: int, layers: int, heads: int, positions: int = 2048) -> dict[str, Any]:
    """GPT-3's kind (Brown et al., 2020) as Megatron runs it, its vocabulary padded."""
    return {
        "mlp": "gelu-4h",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": 51200,
        "positions": positions,
    }


def _opt(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": 4 * hidden,
        "word_embed_proj_dim": hidden,
    } | more


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads}


def _deepseek_v2(  # noqa: PLR0917
    hidden: int, layers: int, heads: int, width: int, expert_width: int, experts: int
) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": width,
        "moe_intermediate_size": expert_width,
        "vocab_size": 102400,
        "n_routed_experts": experts,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 163840,
    }


_LLAMA_2 = {
    "llama-2-7b": _llama_2(4096, 32, 32, 32, 11008) | {"nominal_parameters": 7e9},
    "llama-2-13b": _llama_2(5120, 40, 40, 40, 13824) | {"nominal_parameters": 13e9},
    "llama-2-70b": _llama_2(8192, 80, 64, 8, 28672) | {"nominal_parameters": 70e9},
}
_LLAMA_3 = {
    "llama-3-8b": _llama(4096, 32, 32, 8, 14336) | {"nominal_parameters": 8e9},
    "llama-3-70b": _llama(8192, 80, 64, 8, 28672) | {"nominal_parameters": 70e9},
    "llama-3-405b": _llama(16384, 126, 128, 8, 53248) | {"nominal_parameters": 405e9},
    "llama-3.2-1b": _llama(2048, 16, 32, 8, 8192) | {"head_dim": 64, "tie_word_embeddings": True},
    "llama-3.2-3b": _llama(3072, 28, 24, 8, 8192) | {"tie_word_embeddings": True},
}
_MISTRAL = {
    "mistral-7b": _llama_2(4096, 32, 32, 8, 14336)
    | {"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": 4096},
    "mixtral-8x7b": _mixtral(4096, 32, 32, 8, 14336),
    "mixtral-8x22b": _mixtral(6144, 56, 48, 8, 16384),
}
_QWENS = {
    "qwen2.5-0.5b": _qwen("qwen2", 896, 24, 14, 2, 4864, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen("qwen2", 3584, 28, 28, 4, 18944, vocab_size=152064),
    "qwen2.5-14b": _qwen("qwen2", 5120, 48, 40, 8, 13824, vocab_size=152064),
    "qwen2.5-32b": _qwen("qwen2", 5120, 64, 40, 8, 27648, vocab_size=152064),
    "qwen2.5-72b": _qwen("qwen2", 8192, 80, 64, 8, 29568, vocab_size=152064),
    "qwen3-0.6b": _qwen3(1024, 28, 16, 8, 3072, tie_word_embeddings=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 8, 6144, tie_word_embeddings=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 8, 9728, tie_word_embeddings=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 8, 12288),
    "qwen3-14b": _qwen3(5120, 40, 40, 8, 17408),
    "qwen3-32b": _qwen3(5120, 64, 64, 8, 25600),
    "qwen1.5-moe-a2.7b": _qwen("qwen2_moe", 2048, 24, 16, 16, 5632),
    "qwen3-30b-a3b": _qwen3(2048, 48, 32, 4, 6144, model_type="qwen3_moe"),
    "qwen3-235b-a22b": _qwen3(
        4096, 94, 64, 4, 12288, model_type="qwen3_moe", moe_intermediate_size=1536
    ),
}
_GEMMAS = {
    "gemma-2b": _gemma("gemma", 2048, 18, 8, 1, 16384),
    "gemma-7b": _gemma("gemma", 3072, 28, 16, 16, 24576),
    "gemma-2-2b": _gemma("gemma2", 2304, 26, 8, 4, 9216),
    "gemma-2-9b": _gemma("gemma2", 3584, 42, 16, 8, 14336),
    "gemma-2-27b": _gemma("gemma2", 4608, 46, 32, 16, 36864, head_dim=128),
    "gemma-3-1b": _gemma("gemma3_text", 1152, 26, 4, 1, 6912, vocab_size=262144)
    | {"sliding_window": 512},
}
_DEEPSEEK = {
    "deepseek-v2-lite": _deepseek_v2(2048, 27, 16, 10944, 1408, 64) | {"q_lora_rank": None},
    "deepseek-v2": _deepseek_v2(5120, 60, 128, 12288, 1536, 160),
    "deepseek-v3": {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1},
    "kimi-k2": {
        "model_type": "kimi_k2",
        "num_attention_heads": 64,
        "n_routed_experts": 384,
        "vocab_size": 163840,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 131072,
    },
}
_GPTS = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "gpt-neox-20b": {"model_type": "gpt_neox"},
    "gpt-22b": _gpt(6144, 48, 64),
    "gpt-175b": _gpt(12288, 96, 96),
    "gpt-530b": _gpt(20480, 105, 128),
    "gpt-1t": _gpt(25600, 128, 160),
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": {"model_type": "gpt_oss"},
    **{
        f"gpt-h{hidden}-l{layers}": _gpt(hidden, layers, 16, 1024)
        for hidden in (1024, 2048)
        for layers in (12, 16, 20, 24)
    },
}
_OPTS = {
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
}
_SAME = {
    "llama-3.1-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3-70b",
    "llama-3.1-405b": "llama-3-405b",
    "llama-3.3-70b": "llama-3-70b",
    "simumax-llama3-70b": "llama-3-70b",
    "deepseek-r1": "deepseek-v3",
    "gpt-3": "gpt-175b",
}
_OWN = _LLAMA_2 | _LLAMA_3 | _MISTRAL | _QWENS | _GEMMAS | _DEEPSEEK | _GPTS | _OPTS
PRESETS: dict[str, dict[str, Any]] = _OWN | {name: _OWN[same] for name, same in _SAME.items()}
"""Each preset's words."""
