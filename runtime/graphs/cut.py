"""A stage's joint graph cut into F, B and W, by what depends on what.

::

    F     what outputs and updates of buffers need
    B     what the gradients of inputs need beyond that
    W     what is left: the gradients of parameters

    parameters ─▶ F ──▶ outputs
                  │ saved ─────────┬──────────────┐
    tangents  ────┼─▶ B ─▶ gradients of inputs    │
                  │   └── waiting ─┼─▶ W ─▶ gradients of parameters

A stage whose inputs need no gradient has a B all the same: what the gradients of two parameters
or more depend on, which is the way back through its layers. A gradient that comes out of B's own
calls, as those of a fused norm's weight do, or is a tangent itself, is added there.

Parameters and buffers, and what is a view or a cast of parameters alone, do not cross a cut: they
are looked up and made again. So what a microbatch holds is the bytes of ``saved`` from F to B, and
from B to W those of ``saved`` that W needs and of ``waiting``, each storage once, and besides those
of the tensors that the stage receives.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from .joint import Joint, Role
from .rewrites import copy_updated, name_generators, needed, reached, split_convolutions
from .torch_internals.aten import draws, views
from .torch_internals.errors import TraceError

_aten = torch.ops.aten
_CASTS = {_aten._to_copy.default}
HELD = (Role.PARAMETER, Role.BUFFER)
"""The inputs that are where they are, for all ops."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One function cut out of a joint graph, its nodes those of the joint graph.

    ``inputs``: in the order of its arguments; ``calls``: what it computes, in the joint graph's
    order; ``returned``: its results; ``gradients``: those of parameters, which it adds to theirs.
    """

    inputs: Sequence[fx.Node]
    calls: Sequence[fx.Node]
    returned: Sequence[fx.Node]
    gradients: Sequence[fx.Node] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """The ``pieces`` of a stage.

    All take parameters and buffers, which no op holds. ``forward`` (F) takes besides the tensors of
    the microbatch, and gives its results (outputs, then updates) and ``saved``; ``alone`` is F that
    saves nothing, ``again`` (R) gives only ``saved``. ``backward`` (B) takes the first ``to_b`` of
    ``saved`` and the ``tangents``, and gives the gradients of inputs and what waits for ``weight``
    (W), which takes that and ``saved`` from ``from_w`` on. ``fused`` (BW) takes all of ``saved``
    and ``tangents``, and gives the gradients of inputs. Each piece's inputs are those that it uses,
    in this order.
    """

    joint: Joint
    tangents: Sequence[fx.Node]
    saved: Sequence[fx.Node]
    to_b: int
    from_w: int
    pieces: Mapping[str, Piece]


def cut(joint: Joint) -> Cut:
    """The pieces of a joint graph. Raises TraceError where its backward draws random numbers, which
    would be others than its forward's."""
    split_convolutions(joint)
    copy_updated(joint)
    name_generators(joint)
    return _Cutting(joint).result()


class _Cutting:
    """The sets of nodes that a cut is made of."""

    def __init__(self, joint: Joint) -> None:
        self._joint = joint
        self._order = {node: i for i, node in enumerate(joint.graph.nodes)}
        self._held = [n for n, v in joint.inputs.items() if v.role in HELD]
        self._tangents = [n for n, v in joint.inputs.items() if v.role is Role.TANGENT]
        given = {n for n, v in joint.inputs.items() if v.role is not Role.TANGENT}
        backward = reached(self._tangents)
        results = [*joint.of(Role.OUTPUT), *joint.of(Role.BUFFER_UPDATE)]
        self._results = [node for node, _ in results]
        drawn = [n for n in joint.graph.nodes if draws(n) and n not in backward]
        forward = needed([*self._results, *drawn])
        self._forward = given | forward | _parts(joint.graph, forward)
        self._remade = {*self._held}  # and what is made of these alone, by views and casts
        for node in joint.graph.nodes:
            sources = node.all_input_nodes if views(node) or node.target in _CASTS else ()
            if sources and self._remade.issuperset(sources):
                self._remade.add(node)

    def result(self) -> Cut:
        joint = self._joint
        of_inputs = [n for n, _ in joint.of(Role.INPUT_GRADIENT)]
        of_parameters = [n for n, _ in joint.of(Role.PARAMETER_GRADIENT)]
        early = needed(of_inputs or self._shared(of_parameters), self._forward)
        early |= _parts(joint.graph, early)
        late = needed(of_parameters, self._forward | early)
        for node in (*early, *late):
            if draws(node):
                raise TraceError(f"its backward draws random numbers ({node.target})")
        tangents = set(self._tangents)
        there = early | self._forward | tangents  # before W
        by_b = [n for n in of_parameters if n in there]
        by_w = [n for n in of_parameters if n not in there]
        for_b, for_w = self._crossing(early, [*of_inputs, *by_b]), self._crossing(late, by_w)
        waiting = self._sorted(for_w & (early | tangents))
        b_saved, w_saved = for_b & self._forward, for_w & self._forward
        saved = [
            *self._sorted(b_saved - w_saved),
            *self._sorted(b_saved & w_saved),
            *self._sorted(w_saved - b_saved),
        ]
        to_b, from_w = len(b_saved), len(b_saved - w_saved)
        inputs = [n for n, v in joint.inputs.items() if v.role is Role.INPUT]
        piece, results = self._piece, self._results
        pieces = {
            "forward": piece(inputs, [*results, *saved]),
            "alone": piece(inputs, results),
            "again": piece(inputs, saved),
            "backward": piece([*saved[:to_b], *self._tangents], [*of_inputs, *waiting], by_b),
            "weight": piece([*saved[from_w:], *waiting], [], by_w),
            "fused": piece([*saved, *self._tangents], of_inputs, [*by_b, *by_w]),
        }
        return Cut(joint, self._tangents, saved, to_b, from_w, pieces)

    def _sorted(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return sorted(nodes, key=self._order.__getitem__)

    def _shared(self, gradients: Sequence[fx.Node]) -> list[fx.Node]:
        """The nodes of the backward that two of the gradients or more depend on."""
        counts: dict[fx.Node, int] = {}
        for gradient in set(gradients):
            for node in needed([gradient], self._forward):
                counts[node] = counts.get(node, 0) + 1
        return [node for node, count in counts.items() if count > 1 and node.op != "placeholder"]

    def _crossing(self, calls: Collection[fx.Node], ends: Iterable[fx.Node]) -> set[fx.Node]:
        """The values that ``calls`` need of others, and ``ends`` that are not theirs."""
        calls = {node for node in calls if node.op != "placeholder"}
        found: set[fx.Node] = set()
        stack = [n for call in calls for n in call.all_input_nodes] + [*ends]
        while stack:
            node = stack.pop()
            if node in calls or node in found or node in self._held:
                continue
            if node in self._remade:
                stack.extend(node.all_input_nodes)
            elif node.op != "get_attr":
                found.add(node)
        return found

    def _piece(
        self, given: Sequence[fx.Node], returned: Sequence[fx.Node], by: Sequence[fx.Node] = ()
    ) -> Piece:
        """The piece that computes ``returned``, and the gradients ``by`` which it adds, of what is
        held and ``given``."""
        inputs, ends = [*self._held, *given], [*returned, *by]
        calls = self._sorted(needed(ends, set(inputs)))
        random = [n for n in self._order if draws(n) and n in self._forward]
        if any(n in calls for n in random):  # in F's order, all that F draws
            calls = self._sorted(needed([*ends, *random], set(inputs)))
        used = {n for call in calls for n in call.all_input_nodes} | {*ends}
        inputs = [n for n in self._held if n in used] + [*given]
        return Piece(inputs, calls, returned, by)


def _parts(graph: fx.Graph, nodes: Collection[fx.Node]) -> set[fx.Node]:
    """The parts of tuples that ``nodes`` give: they are where their tuple is."""
    chosen = [n for n in graph.nodes if n.target is operator.getitem]
    return {n for n in chosen if n.args[0] in nodes}
