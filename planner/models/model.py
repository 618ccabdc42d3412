"""The parts of a decoder-only transformer, in one set of words for all families of models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts (Fedus et al., 2021): of ``count`` experts each token takes ``chosen``.

    ``width``: of an expert's intermediate activations. ``shared_width``: of the experts that every
    token takes, together; 0: none. ``shared_gate``: those are weighted by a learned gate.
    ``router_bias``: numbers a layer's router has beside its matrix. ``biases``: experts have them.
    ``dense``: decoder layers, by index, that have an ordinary feed-forward part instead.
    """

    count: int
    chosen: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    router_bias: int = 0
    biases: bool = False
    dense: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): low-rank q, k and v.

    ``query_rank`` None: queries have one full matrix. ``rope_dim``: of the part of q and k that is
    rotated, one key for all heads; ``nope_dim``: of the other part.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer.

    ``hidden`` the width of its residual stream, ``heads`` of queries, ``kv_heads`` of keys and
    values, ``head_dim`` and ``value_dim`` the widths of one. ``width``: of the feed-forward part,
    ``gated`` where it has two matrices in (SwiGLU and its kin, Shazeer, 2020); ``relu``: of its
    activation function the result alone is held, not the input.

    ``norms``: on a layer's residual stream (2, Gemma 2 has 4), ``norm_parameters`` a width's count
    of each (RMSNorm 1, LayerNorm 2), ``final_norm`` whether one is before the head. ``parallel``:
    attention and feed-forward part read the same input (GPT-NeoX). ``qk_norm``: parameters of the
    norms of q and k, 0: none. ``sinks``: one number a head. ``dropout``: masks are kept.

    ``positions``: of learned embeddings, 0: rotary ones. ``embedding_width``: None: ``hidden``,
    else both are joined by a projection (OPT-350M). ``window``: positions that a token of a
    windowed layer looks at; ``windowed`` such layers, by index. ``mtp``: multi-token prediction
    modules. ``longest``: positions the model was made for, None: not known.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    width: int
    vocab: int
    gated: bool
    tied: bool
    relu: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    positions: int = 0
    embedding_width: int | None = None
    norms: int = 2
    norm_parameters: int = 1
    final_norm: bool = True
    parallel: bool = False
    qk_norm: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = False
    dropout: bool = False
    window: int | None = None
    windowed: frozenset[int] = frozenset()
    mtp: int = 0
    longest: int | None = None

    def is_moe(self, layer: int) -> bool:
        """Whether the decoder layer of this index has experts."""
        return self.experts is not None and layer not in self.experts.dense

    def window_of(self, layer: int) -> int | None:
        """Positions that a token looks at in this layer, None: all before it."""
        return self.window if layer in self.windowed else None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def attention_width(self) -> int:
        """The width of what attention gives, before its output projection."""
        return self.heads * self.value_dim
