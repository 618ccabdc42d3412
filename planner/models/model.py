"""The structure of a decoder-only transformer, with the same fields for all model families."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts (Fedus et al., 2021): each token uses ``chosen`` of ``count`` experts.

    ``width``: width of an expert's intermediate activations. ``shared_width``: total width of the
    experts that every token uses; 0 if there are none. ``shared_gate``: whether a learned gate
    weights the shared experts. ``router_bias``: number of parameters of a layer's router besides
    its matrix. ``biases``: whether experts have biases. ``dense``: indices of the decoder layers
    that have a dense feed-forward part instead of experts.
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

    ``query_rank``, ``kv_rank``: ranks of the compressed queries, and of the compressed keys and
    values; ``query_rank`` is None if queries have a single full matrix. ``rope_dim``: width of the
    rotated part of q and k, whose key is common to all heads; ``nope_dim``: width of the other
    part.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer.

    ``hidden``: width of the residual stream. ``heads`` and ``kv_heads``: numbers of heads of
    queries, and of keys and values. ``head_dim``: width of one head of queries and keys;
    ``value_dim``: of values. ``width``: width of the feed-forward part; ``gated``: whether that
    part has two input matrices (SwiGLU and similar, Shazeer, 2020); ``relu``: whether its
    activation function needs only its output for B. ``tied``: whether embedding and head share
    their matrix. ``norms``: number of norms on a layer's residual stream (2; Gemma 2 has 4);
    ``norm_parameters``: parameters per element of a norm (RMSNorm 1, LayerNorm 2); ``final_norm``:
    whether there is a norm before the head. ``parallel``: whether attention and feed-forward part
    read the same input (GPT-NeoX). ``qk_norm``: number of parameters of the norms of q and k; 0 if
    there are none. ``sinks``: whether attention has one sink parameter per head. ``dropout``:
    whether there is dropout, whose masks are held. ``positions``: number of learned position
    embeddings; 0 with rotary ones. ``embedding_width``: width of the embedding if projections
    connect it to ``hidden`` (OPT-350M), or None if it is ``hidden``. ``window``: number of
    positions that a token attends to in the layers whose indices are in ``windowed``. ``mtp``:
    number of multi-token prediction modules. ``longest``: maximum sequence length, or None if it is
    unknown.
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
        """Whether the decoder layer with index ``layer`` has experts."""
        return self.experts is not None and layer not in self.experts.dense

    def window_of(self, layer: int) -> int | None:
        """The number of positions that a token attends to in the decoder layer with index
        ``layer``.

        It is None if the token attends to all positions before it.
        """
        return self.window if layer in self.windowed else None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def attention_width(self) -> int:
        """The width of attention's output, before its output projection."""
        return self.heads * self.value_dim
