"""The attention half of a decoder layer: norm, q, k and v, scores, output projection, addition."""

from __future__ import annotations

from pipeloom.ir.model.ops import OpKind

from ..model import LatentAttention, Model
from ..run import AttentionKernel, Recompute
from ..work import Attention, Elementwise, Gemm, Group
from .sheet import SEND, B, F, Sheet, W


def write_attention(sheet: Sheet, model: Model, window: int | None) -> None:
    """The kernels from the layer's input to the residual addition."""
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
    """A norm of the residual stream. Its input is held, and its output, which a product reads.

    F reads and writes one number per element; B reads two and writes one. ``kept``: the input is
    not recomputed; ``holds``: false if another norm holds it.
    """
    size = sheet.spread * model.hidden * sheet.element
    sheet.passes(name, 2 * size, 3 * size)
    if holds:
        sheet.hold(f"{name} input", size, kept=kept)
    sheet.hold(f"{name} output", size, W)
    sheet.parameters(model.norm_parameters * model.hidden)


def write_addition(sheet: Sheet, model: Model, name: str) -> None:
    """The addition of a branch to the residual stream, after dropout if there is any, whose mask
    has one byte per element.

    If layers have four norms, the branch is normed before the addition.
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
    """The number of heads of keys and values on a rank; 1 if there are fewer heads than ranks."""
    return max(model.kv_heads / sheet.run.tp, 1.0)


def _write_qkv(sheet: Sheet, model: Model) -> None:
    """Queries, keys and values as one product, h x (a d + 2 a_kv d)."""
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
    """Low-rank q, k and v (DeepSeek-V2, 2024, equations 9 to 19).

    As in Megatron, each tensor parallel rank has the down-projections and runs them on its part of
    the sequence; up-projections are divided by heads.
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
    """A down-projection to ``rank``, which is normed, and to ``beside``, which is not; then an
    all-gather."""
    shape = (sheet.spread, model.hidden, rank + beside)
    sheet.linear(f"{name} down", *shape, bias=model.qkv_bias)
    size = sheet.spread * rank * sheet.element
    sheet.passes(f"{name} norm", 2 * size, 3 * size)
    sheet.hold(f"{name} norm input", size)
    sheet.hold(f"{name} norm output", size, W)
    sheet.parameters(rank)
    sheet.enter(f"{name} up", rank + beside)


def share_of_pairs(keys: int, window: int | None) -> float:
    """The share of pairs of positions that a causal mask leaves: one half, or less with a
    window."""
    near = min(window or keys, keys) / keys
    return near - near**2 / 2


def _write_flash(sheet: Sheet, model: Model, window: int | None) -> None:
    """Fused attention: two products over pairs of positions in F, and five in B, one of which
    recomputes scores (Dao, 2023, sections 2 and 4.1: B has 2.5 times F's FLOPs). One float32 per
    row is held.

    Context parallel ranks pass keys and values around a ring, in B with their gradients, and
    accumulate each round's result (Liu et al., 2023, section 3).
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
    """The ring of context parallel ranks. ``size``: bytes of keys and values. Each addition reads
    two tensors and writes one."""
    more = sheet.run.cp - 1
    if more:
        added = ((F, result), (B, gradients))
        sheet.add(*(Elementwise("ring", op, 3 * more * s, more) for op, s in added))
    for op, times in ((F, 1), (B, 2)):
        sheet.collective("keys and values", size * times, {op: SEND}, Group.CP, count=more)


def _write_unfused(sheet: Sheet, model: Model) -> None:
    """Unfused attention: scores and weighted sum as products over all pairs, with a softmax between
    them (Korthikanti et al., 2022, section 4.1).

    The softmax is held, with two bytes per pair and head; with dropout also its mask (one byte) and
    its result (two): 5 a s^2 b in total.
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
