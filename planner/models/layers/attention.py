"""The attention half of a decoder layer, from its norm to the residual addition."""

from __future__ import annotations

from pipeloom.ir.model.ops import OpKind

from ..model import LatentAttention, Model
from ..run import AttentionKernel, Recompute
from ..work import Attention, Elementwise, Gemm, Group
from .sheet import SEND, B, F, Sheet, W


def write_attention(sheet: Sheet, model: Model, window: int | None) -> None:
    """Add to ``sheet`` all kernels from the layer's input to the residual addition (included).

    ``window``: the number of positions that a token attends to, or None for all before it.
    """
    write_norm(sheet, model, "attention norm", kept=True)
    if model.latent is None:
        _write_qkv(sheet, model)
    else:
        _write_latent(sheet, model, model.latent)
    again = sheet.again
    sheet.again = sheet.run.recompute is not Recompute.NONE
    if sheet.run.attention is AttentionKernel.FLASH:
        _write_flash(sheet, model, window)
    else:
        _write_unfused(sheet, model)
    sheet.again = again
    if model.sinks:
        sheet.parameters(model.heads, sheet.run.tp)
    _write_output(sheet, model)


def write_norm(
    sheet: Sheet, model: Model, name: str, *, kept: bool = False, holds: bool = True
) -> None:
    """Add a norm of the residual stream, with its input and output as held tensors.

    F reads and writes one number per element; B reads two and writes one. The output is held until
    W, because a matrix product reads it. ``kept``: the input stays in memory even if the layer is
    recomputed. ``holds``: false if another norm already holds the same input.
    """
    size = sheet.spread * model.hidden * sheet.element
    sheet.passes(name, 2 * size, 3 * size)
    if holds:
        sheet.hold(f"{name} input", size, kept=kept)
    sheet.hold(f"{name} output", size, W)
    sheet.parameters(model.norm_parameters * model.hidden)


def write_addition(sheet: Sheet, model: Model, name: str) -> None:
    """Add the addition of a branch (attention or feed-forward part) to the residual stream.

    With dropout, the branch is masked first, and the mask is held with one byte per element. In
    models with four norms per layer, the branch is normed before the addition.
    """
    count = sheet.spread * model.hidden
    size = count * sheet.element
    if model.norms == 4:
        sheet.passes(f"{name} norm", 2 * size, 3 * size)
        sheet.hold(f"{name} norm input", size)
        sheet.parameters(model.norm_parameters * model.hidden)
    if model.dropout:
        sheet.passes(name, 3 * size + count, 2 * size + count)
        sheet.hold(f"{name} dropout mask", count)
    else:
        sheet.passes(name, 3 * size, 0.0)  # B of an addition moves nothing


def local_kv_heads(sheet: Sheet, model: Model) -> float:
    """The number of heads of keys and values on a rank.

    Tensor parallel ranks divide these heads; if there are fewer heads than ranks, each rank has
    one.
    """
    return max(model.kv_heads / sheet.run.tp, 1.0)


def _write_qkv(sheet: Sheet, model: Model) -> None:
    """Add queries, keys and values as one matrix product, h x (a d + 2 a_kv d).

    h: hidden size; a and a_kv: heads of queries and of keys and values; d: width of a head.
    """
    tp, dim, tokens = sheet.run.tp, model.head_dim, sheet.tokens
    sheet.enter("qkv", model.hidden)
    q, kv = model.query_width / tp, local_kv_heads(sheet, model)
    keys, values = kv * dim, kv * model.value_dim
    sheet.product("qkv", (tokens, q + keys + values, model.hidden))
    rows = model.hidden + model.qkv_bias
    sheet.parameters(rows * model.query_width, tp)
    sheet.parameters(rows * model.kv_heads * (dim + model.value_dim), model.kv_heads / kv)
    rotated = tokens * (q + keys) * sheet.element
    if model.qk_norm:
        sheet.passes("norms of q and k", 2 * rotated, 3 * rotated)
        sheet.hold("norms of q and k input", rotated)
        sheet.parameters(model.qk_norm)
    if not model.positions:
        sheet.passes("rotation", 2 * rotated, 2 * rotated)
    for name, width in (("q", q), ("k", keys), ("v", values)):
        sheet.hold(name, tokens * width * sheet.element)


def _write_latent(sheet: Sheet, model: Model, latent: LatentAttention) -> None:
    """Add low-rank queries, keys and values (DeepSeek-V2, 2024, equations 9 to 19).

    As in Megatron, each tensor parallel rank has the whole down-projections and runs them on its
    part of the sequence, while up-projections are divided by heads.
    """
    nope, rope, tp = latent.nope_dim, latent.rope_dim, sheet.run.tp

    def up(name: str, rank: int, width: int) -> None:
        sheet.linear(name, sheet.tokens, rank, model.heads * width, column=tp)

    if latent.query_rank is None:
        sheet.enter("q", model.hidden)
        up("q", model.hidden, nope + rope)
    else:
        _write_down(sheet, model, "q", latent.query_rank, 0)
        up("q up", latent.query_rank, nope + rope)
    _write_down(sheet, model, "kv", latent.kv_rank, rope)
    up("kv up", latent.kv_rank, nope + model.value_dim)
    number = sheet.tokens * model.heads / tp * sheet.element
    # rotated part of q; k concatenated from its two parts
    sheet.passes("rotation", number * (3 * rope + 2 * nope), number * (3 * rope + 2 * nope))
    for name, width in (("q", nope + rope), ("k", nope + rope), ("v", model.value_dim)):
        sheet.hold(name, number * width)


def _write_down(sheet: Sheet, model: Model, name: str, rank: int, beside: int) -> None:
    """Add a down-projection and the all-gather of its result.

    Its output has ``rank`` columns, which are normed, and ``beside`` further columns, which are
    not.
    """
    shape = (sheet.spread, model.hidden, rank + beside)
    sheet.linear(f"{name} down", *shape, bias=model.qkv_bias)
    size = sheet.spread * rank * sheet.element
    sheet.passes(f"{name} norm", 2 * size, 3 * size)
    sheet.hold(f"{name} norm input", size)
    sheet.hold(f"{name} norm output", size, W)
    sheet.parameters(rank)
    sheet.enter(f"{name} up", rank + beside)


def share_of_pairs(keys: int, window: int | None) -> float:
    """The fraction of all (query, key) pairs that a causal mask keeps: 1/2, or less with a window.

    ``keys``: the sequence length.
    """
    near = min(window or keys, keys) / keys
    return near - near**2 / 2


def _write_flash(sheet: Sheet, model: Model, window: int | None) -> None:
    """Add fused attention (Dao, 2023, sections 2 and 4.1).

    F has two matrix products over pairs of positions. B has five, one of which recomputes the
    scores, and hence 2.5 times F's FLOPs. One float32 per row of scores is held.

    Context parallel ranks pass keys and values around a ring, in B also their gradients, and add up
    the results of all rounds (Liu et al., 2023, section 3).
    """
    run, e = sheet.run, sheet.element
    heads = model.heads / run.tp
    kv = heads if model.latent else local_kv_heads(sheet, model)
    queries, share = run.seq / run.cp, share_of_pairs(run.seq, window)
    products = 2.0 * run.micro_batch * queries * run.seq * share * heads
    d, dv = model.head_dim, model.value_dim
    q, k, v = (sheet.tokens * width for width in (heads * d, kv * d, kv * dv))
    out, rows = sheet.tokens * heads * dv, sheet.tokens * heads * 4
    _write_ring(sheet, (k + v) * e, out * e, (q + k + v) * e)
    shape = (run.precision.wide, run.micro_batch * heads * queries, run.cp)

    def kernel(op: OpKind, flops: float, moved: float) -> Attention:
        return Attention("attention", op, *shape, flops * products, (moved * e + rows) * run.cp)

    sheet.add(kernel(F, d + dv, q + k + v + out), kernel(B, 3 * d + 2 * dv, 2 * (q + k + v + out)))
    sheet.hold("attention row sums", rows)


def _write_ring(sheet: Sheet, size: float, result: float, gradients: float) -> None:
    """Add the ring on which context parallel ranks pass keys and values.

    ``size``: bytes of a rank's keys and values. ``result``, ``gradients``: bytes of the tensors to
    which each round after the first adds its results, in F and in B respectively. Each addition
    reads two tensors and writes one.
    """
    more = sheet.run.cp - 1
    if more:
        added = ((F, result), (B, gradients))
        sheet.add(*(Elementwise("ring", op, 3 * more * s, more) for op, s in added))
    for op, times in ((F, 1), (B, 2)):
        sheet.collective("keys and values", size * times, {op: SEND}, Group.CP, count=more)


def _write_unfused(sheet: Sheet, model: Model) -> None:
    """Add unfused attention (Korthikanti et al., 2022, section 4.1).

    It consists of two batched matrix products over all pairs of positions, for scores and weighted
    sum, and a softmax between them. The softmax is held, with two bytes per pair and head. With
    dropout, its mask (one byte) and its result (two bytes) are held as well: 5 a s^2 b bytes in
    total for a heads, s positions and b sequences.
    """
    run, e = sheet.run, sheet.element
    count = run.micro_batch * model.heads / run.tp
    s, d, dv = run.seq, model.head_dim, model.value_dim
    pairs = count * s * s

    def product(name: str, op: OpKind, m: float, n: float, k: float) -> Gemm:
        return Gemm(name, op, m, n, k, count, run.precision.wide)

    scores = product("scores", F, s, s, d)
    sheet.add(scores, product("scores", B, s, d, s), product("scores", B, s, d, s))
    sheet.passes("softmax", 2 * pairs * e, 3 * pairs * e)
    sheet.hold("softmax", pairs * e)
    if model.dropout:
        sheet.passes("attention dropout", 2 * pairs * e + pairs, 2 * pairs * e + pairs)
        sheet.hold("attention dropout mask", pairs)
        sheet.hold("attention dropout output", pairs * e)
    weighted = product("weighted sum", F, s, dv, s)
    sheet.add(weighted, product("weighted sum", B, s, s, dv), product("weighted sum", B, s, dv, s))


def _write_output(sheet: Sheet, model: Model) -> None:
    tp, width = sheet.run.tp, model.attention_width
    sheet.hold("attention output", sheet.tokens * width / tp * sheet.element, W)
    shape = (sheet.tokens, width, model.hidden)
    sheet.linear("output projection", *shape, row=tp, bias=model.output_bias)
    sheet.leave("output projection", model.hidden)
    write_addition(sheet, model, "attention addition")
