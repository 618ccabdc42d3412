""":class:`Sheet` collects the work of a layer: kernels of each op, held tensors, and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeloom.ir.model.ops import OpKind

from ..precision import Precision
from ..run import Recompute, TrainingRun
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

F, B, W, R = OpKind.F, OpKind.B, OpKind.W, OpKind.R
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND = CollectiveKind


class Sheet:
    """Collects the work of one layer in a run.

    ``tokens``: tokens of a microbatch on a rank. ``spread``: tokens on a rank where sequence
    parallelism divides them further. ``element``: bytes of a number. ``again``: whether kernels and
    tensors added from now on are recomputed before the backward. ``workspace``: as in
    :class:`..work.LayerWork`.
    """

    def __init__(self, run: TrainingRun, *, recomputes: bool = True) -> None:
        self.run = run
        self.element = run.precision.element_bytes
        self.tokens = run.tokens
        self.spread = run.tokens / run.split
        self.again = recomputes and run.recompute is Recompute.FULL
        self.workspace = 0.0
        self._parameters = Parameters(0, 0.0, 0.0)
        self._forward: list[Kernel] = []
        self._recomputed: list[Kernel] = []
        self._backward: list[list[Kernel]] = []
        self._held: list[Held] = []

    def add(self, *kernels: Kernel) -> None:
        """Add kernels of F, B and W that belong together.

        In B and W, the groups added by successive calls run in reverse order.
        """
        forward = [kernel for kernel in kernels if kernel.op is F]
        self._forward += forward
        self._recomputed += [replace(kernel, op=R) for kernel in forward if self.again]
        self._backward.append([kernel for kernel in kernels if kernel.op is not F])

    def hold(self, name: str, size: float, until: OpKind = B, *, kept: bool = False) -> None:
        """Add a tensor of ``size`` bytes that is held until the end of the op ``until``.

        It is held from the start of F; if ``again`` is set and the tensor is not ``kept``, only
        from the start of R.
        """
        self._held.append(Held(name, size, until, F, self.again and not kept))

    def parameters(
        self, count: int, split: float = 1, *, expert: bool = False, tied: bool = False
    ) -> None:
        """Add ``count`` parameters, divided over ``split`` ranks.

        ``expert``: whether they belong to experts. ``tied``: whether they are counted in another
        layer, of which this layer only has a copy.
        """
        own, share = self._parameters, count / split
        if tied:
            self._parameters = replace(own, tied=own.tied + share)
        elif expert:
            self._parameters = replace(own, total=own.total + count, expert=own.expert + share)
        else:
            self._parameters = replace(own, total=own.total + count, dense=own.dense + share)

    def passes(self, name: str, forward: float, backward: float, back: OpKind = B) -> None:
        """Add elementwise kernels: one in F and one in the op ``back``.

        The kernel in F moves ``forward`` bytes, the one in ``back`` moves ``backward`` bytes. A
        kernel that moves nothing is left out.
        """
        moved = ((F, forward), (back, backward))
        self.add(*(Elementwise(name, op, size, 1) for op, size in moved if size))

    def linear(
        self,
        name: str,
        rows: float,
        inputs: int,
        outputs: int,
        *,
        column: int = 1,
        row: int = 1,
        bias: bool = False,
        precision: Precision | None = None,
    ) -> None:
        """Add a product Y = X A with a weight matrix A of ``inputs`` x ``outputs``.

        X has ``rows`` rows. ``column`` and ``row``: numbers of ranks over which the outputs or the
        inputs are divided. F: Y = X A; B: dX = dY A'; W: dA = X' dY; without division, each has 2 x
        rows x inputs x outputs FLOPs. If inputs are divided, each rank has the whole bias. The
        gradient dY is held until W; the caller adds X as a held tensor.
        """
        self.product(name, (rows, outputs / column, inputs / row), precision=precision)
        self.parameters(inputs * outputs, column * row)
        if bias:
            self.parameters(outputs, column)

    def product(
        self,
        name: str,
        shape: tuple[float, float, float],
        *,
        count: float = 1,
        precision: Precision | None = None,
    ) -> None:
        """Add ``count`` matrix products of activations (m x k) with weights (k x n), in F, B and W.

        ``shape``: (m, n, k); ``precision``: that of the operands, by default the run's.
        """
        m, n, k = shape
        kind = precision or self.run.precision
        self.add(
            Gemm(name, F, m, n, k, count, kind),
            Gemm(name, B, m, k, n, count, kind),
            Gemm(name, W, k, n, m, count, kind),
        )
        self._held.append(Held(f"{name} output gradient", count * m * n * self.element, W, B))

    def enter(self, name: str, width: int) -> None:
        """Add the collectives before a tensor parallel part.

        With sequence parallelism: an all-gather in F and again in W, and a reduce-scatter in B;
        otherwise an all-reduce in B (Korthikanti et al., 2022, figures 4 to 6). ``width``: elements
        per token.
        """
        divided = {F: ALL_GATHER, B: REDUCE_SCATTER, W: ALL_GATHER}
        kinds = divided if self.run.sequence_parallel else {B: ALL_REDUCE}
        self.collective(name, self.tokens * width * self.element, kinds)

    def leave(self, name: str, width: int) -> None:
        """Add the collectives after a tensor parallel part, the conjugates of those in
        :meth:`enter`.

        With sequence parallelism: a reduce-scatter in F, and an all-gather of the output's gradient
        in B, which W uses too; otherwise an all-reduce in F. ``width``: elements per token.
        """
        divided = {F: REDUCE_SCATTER, B: ALL_GATHER}
        kinds = divided if self.run.sequence_parallel else {F: ALL_REDUCE}
        self.collective(name, self.tokens * width * self.element, kinds)

    def collective(
        self,
        name: str,
        size: float,
        kinds: Mapping[OpKind, CollectiveKind],
        group: Group = Group.TP,
        *,
        count: int = 1,
    ) -> None:
        """Add one collective in each op of ``kinds``, or nothing if the group has a single rank.

        ``size``: bytes, as defined in :class:`..work.Collective`; ``count``: number of messages in
        sequence.
        """
        ranks = group.size(self.run)
        if ranks > 1:
            sent = (group, ranks, group.apart(self.run), size, count)
            self.add(*(Collective(name, op, kind, *sent) for op, kind in kinds.items()))

    def work(self, kind: WorkKind, name: str, message: float) -> LayerWork:
        """The collected work as the layer ``name`` of this kind.

        ``message``: the number of elements of the activation that a rank sends to the next stage if
        the model is cut after this layer.
        """
        back = [kernel for group in reversed(self._backward) for kernel in group]
        back.sort(key=lambda kernel: kernel.op is W)
        return LayerWork(
            kind,
            name,
            (*self._forward, *self._recomputed, *back),
            tuple(self._held),
            self._parameters,
            self.workspace,
            message * self.element,
        )
