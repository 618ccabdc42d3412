"""The attention half of a decoder layer: norm, q, k and v, scores, output projection, addition."""

from __future__ import annotations

from pipeloom.ir.model.ops import OpKind

from ..model import LatentAttention, Model
from ..run import AttentionKernel
from ..work import Attention, Elementwise, Gemm, Group
from .sheet import INPUT, SEND, B, F, Sheet, W

CORE, PROJECTIONS, LATENT = "core_attn", "self_attn", "mla_up_proj"


def write_attention(sheet: Sheet, model: Model, window: int | None) -> None:
    """The kernels from the layer's input to the residual addition."""
    write_norm(sheet, model, "attention norm", held=INPUT)
    if model.latent is None:
        _write_qkv(sheet, model)
    else:
        _write_latent(sheet, model, model.latent)
    _write_core(sheet, model, window)
    _write_output(sheet, model)


def write_norm(sheet: Sheet, model: Model, name: str, *, held: str | None) -> None:
    """A norm of the residual stream. Its input is held, and its output, which a product reads.

    F reads and writes one number per element; B reads two and writes one. ``held``: the module
    whose recomputation restores the input; None: another norm holds it.
    """
    size = sheet.spread * model.hidden * sheet.element
    sheet.passes(name, "layernorm", 2 * size, 3 * size)
    if held is not None:
        sheet.hold(f"{name} input", held, size)
    sheet.hold(f"{name} output", "layernorm", size, W)
    sheet.parameters(model.norm_parameters * model.hidden)


def write_addition(sheet: Sheet, model: Model, name: str, module: str) -> None:
    """The addition of a branch to the residual stream, after dropout if there is any, whose mask
    has one byte per element.

    If layers have four norms, the branch is normed before the addition.
    """
    count = sheet.spread * model.hidden
    if model.norms == 4:
        size = count * sheet.element
        sheet.passes(f"{name} norm", module, 2 * size, 3 * size)
        sheet.hold(f"{name} norm input", module, size)
        sheet.parameters(model.norm_parameters * model.hidden)
    mask = count if model.dropout else 0.0
    dropped = 2 * count * sheet.element if model.dropout else 0.0  # B of an addition moves nothing
    sheet.passes(name, module, 3 * count * sheet.element + mask, dropped + mask)
    if model.dropout:
        sheet.hold(f"{name} dropout mask", module, mask)


def local_kv_heads(sheet: Sheet, model: Model) -> float:
    """The number of heads of keys and values on a rank; 1 if there are fewer heads than ranks."""
    return max(model.kv_heads / sheet.run.tp, 1.0)


def _write_qkv(sheet: Sheet, model: Model) -> None:
    """Queries, keys and values as one product, h x (a d + 2 a_kv d)."""
    tp, dim, tokens = sheet.run.tp, model.head_dim, sheet.tokens
    sheet.enter("qkv", PROJECTIONS, model.hidden)
    q, kv = model.query_width / tp, local_kv_heads(sheet, model)
    keys, values = kv * dim, kv * model.value_dim
    sheet.product("qkv", PROJECTIONS, (tokens, q + keys + values, model.hidden))
    total_kv = model.kv_heads * (dim + model.value_dim)
    rows = model.hidden + model.qkv_bias
    sheet.parameters(rows * model.query_width, tp)
    sheet.parameters(rows * total_kv, model.kv_heads / kv)
    rotated = tokens * (q + keys) * sheet.element
    if model.qk_norm:
        sheet.passes("norms of q and k", PROJECTIONS, 2 * rotated, 3 * rotated)
        sheet.hold("norms of q and k input", PROJECTIONS, rotated)
        sheet.parameters(model.qk_norm)
    if not model.positions:
        sheet.passes("rotation", PROJECTIONS, 2 * rotated, 2 * rotated)
    sheet.hold("q", PROJECTIONS, tokens * q * sheet.element)
    sheet.hold("k", PROJECTIONS, tokens * keys * sheet.element)
    sheet.hold("v", PROJECTIONS, tokens * values * sheet.element)


def _write_latent(sheet: Sheet, model: Model, latent: LatentAttention) -> None:
    """Low-rank q, k and v (DeepSeek-V2, 2024, equations 9 to 19).

    As in Megatron, each tensor parallel rank has the down-projections and runs them on its part of
    the sequence; up-projections are divided by heads.
    """
    nope, rope = latent.nope_dim, latent.rope_dim
    if latent.query_rank is None:
        sheet.enter("q", PROJECTIONS, model.hidden)
        _up(sheet, model, "q", model.hidden, nope + rope)
    else:
        _down(sheet, model, "q", latent.query_rank, 0)
        _up(sheet, model, "q up", latent.query_rank, nope + rope)
    _down(sheet, model, "kv", latent.kv_rank, rope)
    _up(sheet, model, "kv up", latent.kv_rank, nope + model.value_dim)
    heads = model.heads / sheet.run.tp
    number = sheet.tokens * heads * sheet.element
    # rotated part of q; k concatenated from its two parts
    sheet.passes("rotation", LATENT, number * (3 * rope + 2 * nope), number * (3 * rope + 2 * nope))
    sheet.hold("q", LATENT, number * (nope + rope))
    sheet.hold("k", LATENT, number * (nope + rope))
    sheet.hold("v", LATENT, number * model.value_dim)


def _down(sheet: Sheet, model: Model, name: str, rank: int, beside: int) -> None:
    """A down-projection to ``rank``, which is normed, and to ``beside``, which is not; then an
    all-gather."""
    shape = (sheet.spread, model.hidden, rank + beside)
    sheet.linear(f"{name} down", PROJECTIONS, *shape, bias=model.qkv_bias)
    size = sheet.spread * rank * sheet.element
    sheet.passes(f"{name} norm", PROJECTIONS, 2 * size, 3 * size)
    sheet.hold(f"{name} norm input", PROJECTIONS, size)
    sheet.hold(f"{name} norm output", PROJECTIONS, size, W)
    sheet.parameters(rank)
    sheet.enter(f"{name} up", PROJECTIONS, rank + beside)


def _up(sheet: Sheet, model: Model, name: str, rank: int, width: int) -> None:
    outputs = model.heads * width
    sheet.linear(name, LATENT, sheet.tokens, rank, outputs, column=sheet.run.tp)


def _write_core(sheet: Sheet, model: Model, window: int | None) -> None:
    if sheet.run.attention is AttentionKernel.FLASH:
        _write_flash(sheet, model, window)
    else:
        _write_unfused(sheet, model)
    if model.sinks:
        sheet.parameters(model.heads, sheet.run.tp)


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
    q = sheet.tokens * heads * model.head_dim
    k, v = (sheet.tokens * kv * dim for dim in (model.head_dim, model.value_dim))
    out, rows = sheet.tokens * heads * model.value_dim, sheet.tokens * heads * 4
    _write_ring(sheet, (k + v) * e, out * e, (q + k + v) * e)
    d, dv = model.head_dim, model.value_dim

    def kernel(op: OpKind, flops: float, moved: float) -> Attention:
        shape = (run.micro_batch, heads, queries, run.seq)
        moved = (moved * e + rows) * run.cp
        return Attention("attention", CORE, op, *shape, flops * products, moved)

    sheet.add(kernel(F, d + dv, q + k + v + out), kernel(B, 3 * d + 2 * dv, 2 * (q + k + v + out)))
    sheet.hold("attention row sums", CORE, rows)


def _write_ring(sheet: Sheet, size: float, result: float, gradients: float) -> None:
    """The ring of context parallel ranks. ``size``: bytes of keys and values. Each addition reads
    two tensors and writes one."""
    more = sheet.run.cp - 1
    if more:
        added = ((F, result), (B, gradients))
        sheet.add(*(Elementwise("ring", CORE, op, 3 * more * s, more) for op, s in added))
    for op, times in ((F, 1), (B, 2)):
        sheet.collective("keys and values", CORE, size * times, {op: SEND}, Group.CP, count=more)


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
    masks = pairs if model.dropout else 0.0

    def product(name: str, op: OpKind, m: float, n: float, k: float) -> Gemm:
        return Gemm(name, CORE, op, m, n, k, count, run.precision.wide)

    scores = product("scores", F, s, s, d)
    sheet.add(scores, product("scores", B, s, d, s), product("scores", B, s, d, s))
    sheet.passes("softmax", CORE, 2 * pairs * e, 3 * pairs * e)
    sheet.hold("softmax", CORE, pairs * e)
    if model.dropout:
        moved = 2 * pairs * e + masks
        sheet.add(*(Elementwise("attention dropout", CORE, op, moved, 1) for op in (F, B)))
        sheet.hold("attention dropout mask", CORE, masks)
        sheet.hold("attention dropout output", CORE, pairs * e)
    weighted = product("weighted sum", F, s, dv, s)
    sheet.add(weighted, product("weighted sum", B, s, s, dv), product("weighted sum", B, s, dv, s))


def _write_output(sheet: Sheet, model: Model) -> None:
    name, tp, width = "output projection", sheet.run.tp, model.attention_width
    bias, size = model.output_bias, sheet.tokens * width / tp * sheet.element
    sheet.hold("attention output", PROJECTIONS, size, W)
    sheet.linear(name, PROJECTIONS, sheet.tokens, width, model.hidden, row=tp, bias=bias)
    sheet.leave(name, PROJECTIONS, model.hidden)
    write_addition(sheet, model, "attention addition", PROJECTIONS)
