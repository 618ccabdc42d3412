"""The first and last layers: embedding, head with loss, and multi-token prediction."""

from __future__ import annotations

from ..model import Model
from ..run import Sharding
from .attention import write_norm
from .sheet import ALL_GATHER, ALL_REDUCE, F, Sheet, W


def write_embedding(sheet: Sheet, model: Model) -> None:
    """Add the embedding table and, if there is one, the table of learned positions.

    Tensor parallel ranks divide the embedding table by vocabulary entries. With dropout, its mask
    is held (Korthikanti et al., 2022, section 4.3).
    """
    width, count = model.embedding_width or model.hidden, sheet.spread * model.hidden
    sheet.parameters(model.vocab * width, sheet.run.tp)
    sheet.parameters(model.positions * model.hidden)
    rows = sheet.tokens * width * sheet.element
    # F reads and writes rows; W adds each row to one of a float32 gradient
    sheet.passes("embedding", 2 * rows, 3 * rows, W)
    if model.embedding_width is not None:
        sheet.hold("projection in input", rows, W)
        sheet.linear("projection in", sheet.tokens, width, model.hidden)
    sheet.leave("embedding", model.hidden)
    if model.positions:
        size = count * sheet.element
        sheet.passes("positions", 3 * size, 2 * size, W)
    if model.dropout:
        moved = count * (2 * sheet.element + 1)
        sheet.passes("embedding dropout", moved, moved)
        sheet.hold("embedding dropout mask", count)


def write_head(sheet: Sheet, model: Model, *, owns: bool) -> None:
    """Add the final norm, the matrix product with the vocabulary matrix, and the loss.

    The product and the loss are never recomputed. ``owns``: whether the vocabulary matrix counts as
    a parameter of this layer. It does not if it is tied to the embedding or belongs to another
    head. In that case, if the embedding may be on another rank (pp > 1), this layer holds a copy of
    the matrix (``tied`` in :class:`..work.Parameters`).
    """
    tp, width = sheet.run.tp, model.embedding_width or model.hidden
    if model.final_norm:
        write_norm(sheet, model, "final norm", kept=True)
    sheet.again = False
    if not model.final_norm:
        sheet.hold("head input", sheet.spread * model.hidden * sheet.element, W)
    if model.embedding_width is not None:
        sheet.linear("projection out", sheet.tokens, model.hidden, width)
        sheet.hold("projection out output", sheet.tokens * width * sheet.element, W)
    sheet.enter("head", width)
    shape = (sheet.tokens, model.vocab / tp, width)
    sheet.product("head", shape, precision=sheet.run.precision.wide)
    if owns or sheet.run.pp > 1:
        sheet.parameters(model.vocab * width, tp, tied=not owns)
    if model.head_bias:
        sheet.parameters(model.vocab, tp)
    _write_loss(sheet, model)


def _write_loss(sheet: Sheet, model: Model) -> None:
    """Add the cross entropy, with the vocabulary divided over tensor parallel ranks.

    The division is that of Shoeybi et al., 2019, section 3. Unfused: logits are copied to float32,
    and the copy is held (Korthikanti et al., 2022, section 4.3). With two-byte logits, a maximum,
    an exponential, a sum and a quotient move 22 bytes per logit in F, and 14 in B. B also needs
    workspace for the gradient of the logits. Fused: logits are read twice, and their gradient
    overwrites them. torch's own loss, which is assumed with ``fsdp``, overwrites nothing: besides
    the log-softmax in float32 it needs the float32 copy and a gradient.
    """
    logits, e = sheet.tokens * model.vocab / sheet.run.tp, sheet.element
    if sheet.run.fused_cross_entropy:
        sheet.passes("loss", 3 * e * logits, 0.0)
        sheet.hold("logits", e * logits)
    else:
        sheet.passes("loss", (e + 20) * logits, (e + 12) * logits)
        sheet.hold("logits in float32", 4 * logits)
        sheet.workspace = (8 if sheet.run.sharding is Sharding.FSDP else e) * logits
    for name in ("maximum", "sum", "logit of the target"):
        sheet.collective(f"loss {name}", 4 * sheet.tokens, {F: ALL_REDUCE})


def write_prediction(sheet: Sheet, model: Model) -> None:
    """Add the first part of a multi-token prediction module (DeepSeek-V3, 2024, equation 21).

    It has norms of the residual stream and of the next tokens' embeddings, and a projection of
    both. The module shares the model's embedding and head.
    """
    for name in ("stream", "embedding"):
        write_norm(sheet, model, f"{name} norm", kept=True)
    width = 2 * model.hidden
    sheet.enter("projection of both", width)
    sheet.linear("projection of both", sheet.tokens, width, model.hidden, column=sheet.run.tp)
    size = sheet.tokens * model.hidden * sheet.element
    sheet.collective("projection of both", size, {F: ALL_GATHER})
