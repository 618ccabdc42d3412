"""The feed-forward half of a decoder layer: norm, two or three matrices or experts, and
addition."""

from __future__ import annotations

from ..model import Experts, Model
from ..precision import Precision
from ..work import Group
from .attention import write_addition, write_norm
from .sheet import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, B, F, Sheet, W


def write_feed_forward(sheet: Sheet, model: Model, experts: Experts | None) -> None:
    """Add a dense feed-forward part (``experts`` is None) or a mixture of experts.

    Tokens are assumed to be evenly distributed over the experts.
    """
    write_norm(sheet, model, "feed-forward norm", holds=not model.parallel)
    if experts is None:
        sheet.enter("feed-forward", model.hidden)
        _write_matrices(sheet, model, "", model.width, biases=model.mlp_bias)
        sheet.leave("feed-forward", model.hidden)
    else:
        _write_router(sheet, model, experts)
        if experts.shared_width:
            _write_shared(sheet, model, experts)
        _write_experts(sheet, model, experts)
    write_addition(sheet, model, "feed-forward addition")


def _write_matrices(sheet: Sheet, model: Model, prefix: str, width: int, *, biases: bool) -> None:
    """Add the input matrix (two if gated), an activation function, and the output matrix.

    Input matrices are h x f, the output matrix is f x h, with h the hidden size and f = ``width``.
    The names of the kernels begin with ``prefix``.
    """
    tokens, tp, hidden = sheet.tokens, sheet.run.tp, model.hidden
    wide = width * (1 + model.gated)
    sheet.linear(f"{prefix}in", tokens, hidden, wide, column=tp, bias=biases)
    _write_activation(sheet, model, f"{prefix}activation", tokens * width / tp)
    sheet.linear(f"{prefix}out", tokens, width, hidden, row=tp, bias=biases)


def _write_activation(sheet: Sheet, model: Model, name: str, count: float) -> None:
    """Add the activation function for ``count`` output elements.

    Per output element, F reads one number (two if gated) and writes one. B reads one more than F,
    and writes as many as F reads. The input (except with ReLU) and the output are held.
    """
    size, inputs = count * sheet.element, 1 + model.gated
    sheet.passes(name, (inputs + 1) * size, (2 * inputs + 1) * size)
    if not model.relu:
        sheet.hold(f"{name} input", inputs * size)
    sheet.hold(f"{name} output", size, W)


def _write_router(sheet: Sheet, model: Model, experts: Experts) -> None:
    """Add the router: scores of all experts in float32, softmax or sigmoid, and top-k."""
    shape = (sheet.spread, model.hidden, experts.count)
    sheet.linear("router", *shape, precision=Precision.FP32)
    sheet.parameters(experts.router_bias)
    scores = sheet.spread * experts.count * 4
    sheet.passes("choice of experts", 4 * scores, 3 * scores)
    sheet.hold("router scores", scores)


def _write_shared(sheet: Sheet, model: Model, experts: Experts) -> None:
    """Add the experts that every token uses."""
    sheet.enter("shared experts", model.hidden)
    _write_matrices(sheet, model, "shared experts ", experts.shared_width, biases=False)
    sheet.leave("shared experts", model.hidden)
    if experts.shared_gate:
        sheet.linear("shared experts gate", sheet.spread, model.hidden, 1)


def _write_experts(sheet: Sheet, model: Model, experts: Experts) -> None:
    """Add the dispatch of tokens to the chosen experts, the experts, and the combination of
    results.

    A token is copied once for each chosen expert. The copies are sorted by expert and sent to the
    experts' ranks by an all-to-all (Lepikhin et al., 2020, section 3.1), then gathered over the
    ranks that hold parts of the same experts. The combination reverses this and sums the copies of
    each token. As in Megatron, the router's weights are applied within the activation function, so
    that no additional tensor is held for them.
    """
    run, tokens = sheet.run, sheet.spread * model.hidden * sheet.element
    copies = tokens * experts.chosen
    to_all, gather = {F: ALL_TO_ALL, B: ALL_TO_ALL}, {F: ALL_GATHER, B: REDUCE_SCATTER}
    sheet.passes("sort by expert", tokens + copies, tokens + copies)
    sheet.collective("dispatch", copies, to_all, Group.EP)
    sheet.collective("dispatch", copies * run.etp, gather, Group.ETP)
    _write_grouped(sheet, model, experts)
    scatter = {F: REDUCE_SCATTER, B: ALL_GATHER}
    sheet.collective("combine", copies * run.etp, scatter, Group.ETP)
    sheet.collective("combine", copies, to_all, Group.EP)
    sheet.passes("sum of copies", copies + tokens, copies + tokens)


def _write_grouped(sheet: Sheet, model: Model, experts: Experts) -> None:
    """Add the experts on a rank: a grouped matrix product for their input matrices, the activation
    function, and another grouped product for their output matrices (Gale et al., 2022)."""
    run, hidden = sheet.run, model.hidden
    local, width = experts.count / run.ep, experts.width / run.etp
    tokens = sheet.spread * experts.chosen * run.etp
    sheet.hold("expert input", tokens * hidden * sheet.element, W)
    shape = (tokens / local, (1 + model.gated) * width, hidden)
    sheet.product("experts in", shape, count=local)
    _write_activation(sheet, model, "experts activation", tokens * width)
    sheet.product("experts out", (tokens / local, hidden, width), count=local)
    outer, split = experts.width * (1 + model.gated), run.ep * run.etp
    sheet.parameters(experts.count * hidden * (outer + experts.width), split, expert=True)
    if experts.biases:
        sheet.parameters(experts.count * outer, split, expert=True)
        sheet.parameters(experts.count * hidden, run.ep, expert=True)
