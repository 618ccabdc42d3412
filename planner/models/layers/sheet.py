"""The record of a layer: kernels of each op, held tensors, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeloom.ir.model.ops import OpKind

from ..precision import Precision
from ..run import FULL, TrainingRun
from ..work import (
    Collective,
    CollectiveKind,
    Elementwise,
    Gemm,
    Group,
    Held,
    Kernel,
    LayerWork,
    Parameters,
    WorkKind,
)

INPUT, HEAD = "input", "head"
"""Modules that recomputation of a whole layer does not drop: its input, and a head."""
F, B, W, R = OpKind.F, OpKind.B, OpKind.W, OpKind.R
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND = CollectiveKind


class Sheet:
    """Collects the work of one layer of a run.

    ``module`` arguments are paths: ``moe.moe_act`` is recomputed if either of its parts is.
    ``tokens``: tokens of a microbatch on a rank; ``spread``: the same, divided by sequence
    parallelism.
    """

    def __init__(self, run: TrainingRun, *, recompute: frozenset[str] | None = None) -> None:
        self.run = run
        self.element = run.precision.element_bytes
        self.tokens = run.tokens
        self.spread = run.tokens / run.split
        self.workspace = 0.0
        self._recompute = run.recompute if recompute is None else recompute
        self._groups: list[list[Kernel]] = []
        self._held: list[Held] = []
        self._total, self._dense, self._expert, self._tied = 0, 0.0, 0.0, 0.0

    def add(self, *kernels: Kernel) -> None:
        """Add kernels that belong together. In B and W, such groups run in reverse order."""
        self._groups.append([*kernels])

    def hold(self, name: str, module: str, size: float, until: OpKind = B) -> None:
        """Add a tensor of ``size`` bytes that is held from F on."""
        self._held.append(Held(name, module, size, until, F, self._drops(module)))

    def parameters(self, count: int, split: float = 1, *, expert: bool = False) -> None:
        """Add ``count`` parameters, divided over ``split`` ranks."""
        self._total += count
        if expert:
            self._expert += count / split
        else:
            self._dense += count / split

    def tied(self, count: int, split: float) -> None:
        """Add a copy of parameters that are counted in another layer."""
        self._tied += count / split

    def passes(
        self, name: str, module: str, forward: float, backward: float, back: OpKind = B
    ) -> None:
        """Add an elementwise kernel in F and one in ``back``, which read and write these numbers of
        bytes."""
        moved = ((F, forward), (back, backward))
        self.add(*(Elementwise(name, module, op, size, 1) for op, size in moved if size))

    def linear(
        self,
        name: str,
        module: str,
        rows: float,
        inputs: int,
        outputs: int,
        *,
        column: int = 1,
        row: int = 1,
        bias: bool = False,
        precision: Precision | None = None,
    ) -> None:
        """Add a product with a weight whose outputs (``column``) or inputs (``row``) are divided.

        F: Y = X A; B: dX = dY A'; W: dA = X' dY; each has 2 x rows x inputs x outputs FLOPs. With
        division by rows, the bias is on each rank. The caller holds X; dY is held until W.
        """
        n, k = outputs / column, inputs / row
        self.product(name, module, (rows, n, k), precision=precision)
        self.parameters(inputs * outputs, column * row)
        if bias:
            self.parameters(outputs, column)

    def product(
        self,
        name: str,
        module: str,
        shape: tuple[float, float, float],
        *,
        count: float = 1,
        precision: Precision | None = None,
    ) -> None:
        """Add ``count`` products (m x k)(k x n) of activations with weights, in F, B and W."""
        m, n, k = shape
        kind = precision or self.run.precision
        self.add(
            Gemm(name, module, F, m, n, k, count, kind),
            Gemm(name, module, B, m, k, n, count, kind),
            Gemm(name, module, W, k, n, m, count, kind),
        )
        size = count * m * n * self.element
        self._held.append(Held(f"{name} output gradient", module, size, W, B))

    def enter(self, name: str, module: str, width: int) -> None:
        """Add the collectives before a tensor parallel part (Korthikanti et al., 2022, figures 4 to
        6).

        With sequence parallelism: all-gather in F and again in W, reduce-scatter in B; otherwise an
        all-reduce in B.
        """
        divided = {F: ALL_GATHER, B: REDUCE_SCATTER, W: ALL_GATHER}
        kinds = divided if self.run.sequence_parallel else {B: ALL_REDUCE}
        self.collective(name, module, self.tokens * width * self.element, kinds)

    def leave(self, name: str, module: str, width: int) -> None:
        """Add the collectives after a tensor parallel part: the conjugate of :meth:`enter`. dY is
        gathered once, in B."""
        divided = {F: REDUCE_SCATTER, B: ALL_GATHER}
        kinds = divided if self.run.sequence_parallel else {F: ALL_REDUCE}
        self.collective(name, module, self.tokens * width * self.element, kinds)

    def collective(
        self,
        name: str,
        module: str,
        size: float,
        kinds: Mapping[OpKind, CollectiveKind],
        group: Group = Group.TP,
        *,
        count: int = 1,
    ) -> None:
        """Add one collective in each of these ops; none if the group has a single rank."""
        ranks: int = getattr(self.run, group)
        if ranks > 1:
            sent = (group, ranks, size, count)
            self.add(*(Collective(name, module, op, kind, *sent) for op, kind in kinds.items()))

    def work(self, kind: WorkKind, name: str, message: float) -> LayerWork:
        """The finished layer. ``message``: elements of the activation that is sent to a next
        stage."""
        forward = [k for group in self._groups for k in group if k.op is F]
        again = [replace(k, op=R) for k in forward if self._drops(k.module)]
        back = [k for group in reversed(self._groups) for k in group if k.op is not F]
        return LayerWork(
            kind,
            name,
            (*forward, *again, *sorted(back, key=lambda kernel: kernel.op is W)),
            tuple(self._held),
            Parameters(self._total, self._dense, self._expert, self._tied),
            self.workspace,
            message * self.element,
        )

    def _drops(self, module: str) -> bool:
        """Whether the run recomputes this module or one that contains it."""
        if self._recompute == FULL:
            return module not in (INPUT, HEAD)
        return not self._recompute.isdisjoint(module.split("."))
