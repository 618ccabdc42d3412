"""The sheet on which a layer is written down: kernels of each op, tensors held, parameters."""

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
"""The modules that recomputation of a whole layer leaves: its input, a head."""
F, B, W, R = OpKind.F, OpKind.B, OpKind.W, OpKind.R
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND = CollectiveKind


class Sheet:
    """Collects one layer of a run. ``module`` is a path: ``moe.moe_act`` is recomputed with
    either.

    ``tokens``: of a microbatch on a rank; ``spread``: where sequence parallelism divides them.
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
        """Adds kernels that belong together: in B and W such groups come in reversed order."""
        self._groups.append([*kernels])

    def hold(self, name: str, module: str, size: float, until: OpKind = B) -> None:
        """``size`` bytes from F on."""
        self._held.append(Held(name, module, size, until, F, self._drops(module)))

    def parameters(self, count: int, split: float = 1, *, expert: bool = False) -> None:
        """``count`` numbers, divided over ``split`` ranks."""
        self._total += count
        if expert:
            self._expert += count / split
        else:
            self._dense += count / split

    def tied(self, count: int, split: float) -> None:
        """Parameters that another layer counts."""
        self._tied += count / split

    def passes(
        self, name: str, module: str, forward: float, backward: float, back: OpKind = B
    ) -> None:
        """One kernel each way that reads and writes so many bytes, in F and in ``back``."""
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
        """A product with a weight whose outputs (``column``) or inputs (``row``) are divided.

        F: Y = X A; B: dX = dY A'; W: dA = X' dY; each 2 x rows x inputs x outputs FLOPs. The bias
        of what is divided by rows is on each rank. X is the caller's to hold; dY waits for W.
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
        """``count`` products (m x k)(k x n) of activations with weights, in F, B and W."""
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
        """Into what tensor parallel ranks share out (Korthikanti et al., 2022, figures 4 to 6).

        Sequence parallel: all-gather in F and again for W, reduce-scatter in B; else an all-reduce
        in B.
        """
        divided = {F: ALL_GATHER, B: REDUCE_SCATTER, W: ALL_GATHER}
        kinds = divided if self.run.sequence_parallel else {B: ALL_REDUCE}
        self.collective(name, module, self.tokens * width * self.element, kinds)

    def leave(self, name: str, module: str, width: int) -> None:
        """Out of what they share out: the conjugate of :meth:`enter`; dY is gathered once, in B."""
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
        """One in each of these ops; nothing where the group is one rank."""
        ranks: int = getattr(self.run, group)
        if ranks > 1:
            sent = (group, ranks, size, count)
            self.add(*(Collective(name, module, op, kind, *sent) for op, kind in kinds.items()))

    def work(self, kind: WorkKind, name: str, message: float) -> LayerWork:
        """The layer. ``message``: numbers of an activation that a next stage would get."""
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
        """Whether the run recomputes this module, or one that it is in."""
        if self._recompute == FULL:
            return module not in (INPUT, HEAD)
        return not self._recompute.isdisjoint(module.split("."))
