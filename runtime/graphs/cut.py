"""Cuts a stage's joint graph into F, B and W, by data dependencies.

::

    F     the calls that outputs and updates of buffers need
    B     the further calls that the gradients of inputs need
    W     the other calls, for the gradients of parameters

    parameters ─▶ F ──▶ outputs
                  │ saved ─────────┬──────────────┐
    tangents  ────┼─▶ B ─▶ gradients of inputs    │
                  │   └── waiting ─┼─▶ W ─▶ gradients of parameters

Tangents are the gradients of the outputs. If a stage's inputs need no gradient, its B consists of
the calls that the gradients of at least two parameters depend on, which is the backward pass
through its layers. B also adds the gradients of parameters that are results of its own calls (for
example, the weight gradient of a fused norm) or are tangents themselves.

Parameters and buffers are not passed from op to op, nor are views and casts of parameters: each op
looks them up and computes them again. So from F to B, a microbatch holds the bytes of ``saved``;
from B to W, those of ``waiting`` and of the part of ``saved`` that W needs. Each storage counts
once. In addition, it holds the tensors that the stage receives.
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
"""Roles of graph inputs that every op can look up in the module."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One function cut out of a joint graph, as lists of nodes of the joint graph.

    ``inputs``: its arguments, in order. ``calls``: the calls that it runs, in the order of the
    joint graph. ``returned``: its results. ``gradients``: the gradients of parameters that it adds
    to their ``.grad``.
    """

    inputs: Sequence[fx.Node]
    calls: Sequence[fx.Node]
    returned: Sequence[fx.Node]
    gradients: Sequence[fx.Node] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """The functions (``pieces``, by name) into which the graph ``joint`` of a stage is cut.

    The first inputs of each piece are the parameters and buffers that it uses. Its further inputs
    -> its results are, in this order:

    - ``forward`` (F): the tensors in the stage's arguments -> outputs, new values of buffers, and
      ``saved``. ``alone`` is F without ``saved``; ``again`` (R) returns only ``saved``.
    - ``backward`` (B): ``saved[:to_b]``, ``tangents`` (the gradients of outputs) -> gradients of
      inputs, and the values that wait for W.
    - ``weight`` (W): ``saved[from_w:]``, the values that waited -> nothing.
    - ``fused`` (BW): all of ``saved``, ``tangents`` -> gradients of inputs.

    In addition, B, W and BW add the gradients of parameters to their ``.grad``.
    """

    joint: Joint
    tangents: Sequence[fx.Node]
    saved: Sequence[fx.Node]
    to_b: int
    from_w: int
    pieces: Mapping[str, Piece]


def cut(joint: Joint) -> Cut:
    """Returns the pieces of a joint graph, which is modified in place (:mod:`.rewrites`).

    Raises TraceError if its backward draws random numbers, as they would differ from those that the
    forward has drawn.
    """
    split_convolutions(joint)
    copy_updated(joint)
    name_generators(joint)
    return _Cutting(joint).result()


class _Cutting:
    """Collects the sets of nodes of a joint graph from which :meth:`result` creates the cut."""

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
        self._remade = {*self._held}  # and views and casts of only these
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
        there = early | self._forward | tangents  # available before W
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
        """Returns the nodes of the backward on which at least two of ``gradients`` depend."""
        counts: dict[fx.Node, int] = {}
        for gradient in set(gradients):
            for node in needed([gradient], self._forward):
                counts[node] = counts.get(node, 0) + 1
        return [node for node, count in counts.items() if count > 1 and node.op != "placeholder"]

    def _crossing(self, calls: Collection[fx.Node], ends: Iterable[fx.Node]) -> set[fx.Node]:
        """Returns the nodes outside of ``calls`` whose values ``calls`` and ``ends`` depend on.

        Only direct dependencies count. Parameters, buffers, views and casts of these, and constants
        are left out.
        """
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
        """Returns the piece that computes ``returned``, and adds the gradients ``by`` to ``.grad``.

        Its inputs are the parameters and buffers that it uses, and then ``given``.
        """
        inputs, ends = [*self._held, *given], [*returned, *by]
        calls = self._sorted(needed(ends, set(inputs)))
        random = [n for n in self._order if draws(n) and n in self._forward]
        if any(n in calls for n in random):  # then it draws all numbers that F draws, in F's order
            calls = self._sorted(needed([*ends, *random], set(inputs)))
        used = {n for call in calls for n in call.all_input_nodes} | {*ends}
        inputs = [n for n in self._held if n in used] + [*given]
        return Piece(inputs, calls, returned, by)


def _parts(graph: fx.Graph, nodes: Collection[fx.Node]) -> set[fx.Node]:
    """Returns the nodes that select an element of a tuple returned by one of ``nodes``."""
    chosen = [n for n in graph.nodes if n.target is operator.getitem]
    return {n for n in chosen if n.args[0] in nodes}
