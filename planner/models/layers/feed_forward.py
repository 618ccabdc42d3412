"""The feed-forward half of a decoder layer: norm, two or three matrices or experts, addition."""

from __future__ import annotations

from dataclasses import dataclass

from ..model import Experts, Model
from ..precision import Precision
from ..work import Group
from .attention import PROJECTIONS, write_addition, write_norm
from .sheet import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, B, F, Sheet, W

MLP, MOE, ACTIVATION, SHARED = "mlp", "moe", "moe.moe_act", "moe.shared_experts"


def write_feed_forward(sheet: Sheet, model: Model) -> None:
    """A dense feed-forward part."""
    _write_norm(sheet, model)
    sheet.enter("feed-forward", MLP, model.hidden)
    _write_matrices(sheet, model, _Part("", MLP, MLP, model.width, sheet.run.tp, model.mlp_bias))
    sheet.leave("feed-forward", MLP, model.hidden)
    write_addition(sheet, model, "feed-forward addition", MLP)


def write_experts(sheet: Sheet, model: Model, experts: Experts) -> None:
    """A mixture of experts, over which tokens are evenly distributed."""
    _write_norm(sheet, model)
    _write_router(sheet, model, experts)
    if experts.shared_width:
        _write_shared(sheet, model, experts)
    _write_dispatch(sheet, model, experts)
    _write_grouped(sheet, model, experts)
    _write_combine(sheet, model, experts)
    write_addition(sheet, model, "feed-forward addition", MOE)


@dataclass(frozen=True, slots=True)
class _Part:
    """A feed-forward part: ``prefix`` of its kernels' names; ``split`` ranks divide its width."""

    prefix: str
    module: str
    activation: str
    width: int
    split: int
    biases: bool


def _write_norm(sheet: Sheet, model: Model) -> None:
    held = None if model.parallel else PROJECTIONS
    write_norm(sheet, model, "feed-forward norm", held=held)


def _write_matrices(sheet: Sheet, model: Model, part: _Part) -> None:
    """The input matrix h x f (two of them if gated), an activation function, and the output matrix
    f x h."""
    tokens, split, width = sheet.tokens, part.split, part.width
    wide = width * (1 + model.gated)
    sheet.linear(
        f"{part.prefix}in", part.module, tokens, model.hidden, wide, column=split, bias=part.biases
    )
    _write_activation(sheet, model, part, tokens * width / split)
    sheet.linear(
        f"{part.prefix}out", part.module, tokens, width, model.hidden, row=split, bias=part.biases
    )


def _write_activation(sheet: Sheet, model: Model, part: _Part, count: float) -> None:
    """The activation function for ``count`` elements.

    F reads one number per element (two if gated) and writes one; B reads one more and writes as
    many as F read. Held are its input (except for ReLU) and its output.
    """
    size, inputs = count * sheet.element, 1 + model.gated
    name = f"{part.prefix}activation"
    sheet.passes(name, part.activation, (inputs + 1) * size, (2 * inputs + 1) * size)
    if not model.relu:
        sheet.hold(f"{name} input", part.module, inputs * size)
    sheet.hold(f"{name} output", part.activation, size, W)


def _write_router(sheet: Sheet, model: Model, experts: Experts) -> None:
    """Scores of all experts in float32, softmax or sigmoid, and top-k."""
    name, count = "router", experts.count
    shape = (sheet.spread, model.hidden, count)
    sheet.linear(name, MOE, *shape, precision=Precision.FP32)
    sheet.parameters(experts.router_bias)
    scores = sheet.spread * count * 4
    sheet.passes("choice of experts", MOE, 4 * scores, 3 * scores)
    sheet.hold("router scores", MOE, scores)


def _write_shared(sheet: Sheet, model: Model, experts: Experts) -> None:
    part = _Part("shared experts ", SHARED, SHARED, experts.shared_width, sheet.run.tp, False)
    sheet.enter("shared experts", SHARED, model.hidden)
    _write_matrices(sheet, model, part)
    sheet.leave("shared experts", SHARED, model.hidden)
    if experts.shared_gate:
        sheet.linear("shared experts gate", SHARED, sheet.spread, model.hidden, 1)


def _dispatched(sheet: Sheet, experts: Experts) -> float:
    """The number of token copies that a rank sends to experts (including itself) and receives
    back."""
    return sheet.spread * experts.chosen


def _write_dispatch(sheet: Sheet, model: Model, experts: Experts) -> None:
    """The dispatch: copies are sorted by expert, sent to the experts' ranks, and gathered if
    several ranks share an expert.

    An all-to-all (Lepikhin et al., 2020, section 3.1), then an all-gather over the ranks that hold
    parts of the same experts.
    """
    size = _dispatched(sheet, experts) * model.hidden * sheet.element
    read = sheet.spread * model.hidden * sheet.element
    sheet.passes("sort by expert", MOE, read + size, read + size)
    sheet.collective("dispatch", MOE, size, {F: ALL_TO_ALL, B: ALL_TO_ALL}, Group.EP)
    kinds = {F: ALL_GATHER, B: REDUCE_SCATTER}
    sheet.collective("dispatch", MOE, size * sheet.run.etp, kinds, Group.ETP)


def _write_grouped(sheet: Sheet, model: Model, experts: Experts) -> None:
    """The matrices of a rank's experts, each as one grouped product (Gale et al., 2022)."""
    run, hidden = sheet.run, model.hidden
    local = experts.count / run.ep
    tokens = _dispatched(sheet, experts) * run.etp
    width, split = experts.width / run.etp, run.ep * run.etp
    wide = (1 + model.gated) * width
    sheet.hold("expert input", MOE, tokens * hidden * sheet.element, W)
    sheet.product("experts in", MOE, (tokens / local, wide, hidden), count=local)
    part = _Part("experts ", MOE, ACTIVATION, experts.width, run.etp, experts.biases)
    _write_activation(sheet, model, part, tokens * width)
    sheet.product("experts out", MOE, (tokens / local, hidden, width), count=local)
    outer = experts.width * (1 + model.gated)
    sheet.parameters(experts.count * hidden * (outer + experts.width), split, expert=True)
    if experts.biases:
        sheet.parameters(experts.count * outer, split, expert=True)
        sheet.parameters(experts.count * hidden, run.ep, expert=True)


def _write_combine(sheet: Sheet, model: Model, experts: Experts) -> None:
    """The reverse of the dispatch, and the sum of each token's copies. As in Megatron, the copies'
    weights are applied within the activation function, so that nothing is held."""
    size = _dispatched(sheet, experts) * model.hidden * sheet.element
    kinds = {F: REDUCE_SCATTER, B: ALL_GATHER}
    sheet.collective("combine", MOE, size * sheet.run.etp, kinds, Group.ETP)
    sheet.collective("combine", MOE, size, {F: ALL_TO_ALL, B: ALL_TO_ALL}, Group.EP)
    written = sheet.spread * model.hidden * sheet.element
    sheet.passes("sum of copies", MOE, size + written, size + written)
