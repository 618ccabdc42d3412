"""What a step needs once its shapes are known: buffers and calls, made again only for other
shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir

from ..executor.executor import Executor
from ..executor.stage_runner import Loss, StageRunner
from ..executor.tensor_routing import Activations, Carrier
from ..executor.weight_stashing import StashingRunner
from ..optim.step_end import Stepping
from ..rank.context import Worker
from ..stages.store import StageStore
from ..stages.streamed_weights import TravellingStages
from ..tensors.microbatches import mapped
from ..tensors.skip_connections import Skips
from .shape_inference import Edges, Shapes
from .step_inputs import Cells


class Preparation:
    """Makes the executor of a step: in the first one, and where shapes may vary for each other
    ones.

    ``runners`` run the stages of this rank; the arguments are the pipeline's.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        cells: Cells,
        stepping: Stepping,
        loss: Loss | None,
        skips: Skips,
        pace: bool,
        varying: bool,
    ) -> None:
        problem = worker.program.schedule.problem
        placed = problem.owner
        self._worker, self._cells, self._stepping = worker, cells, stepping
        self._loss, self._skips, self._pace, self._varying = loss, skips, pace, varying
        self._last = problem.stages - 1
        self._shapes = Shapes(worker.store, placed, skips, worker.transport, worker.device)
        self._edges: Edges = []
        self._executor: Executor | None = None
        self.runners = {s: self._runner(s) for s in worker.role.run}

    def executor(self) -> Executor:
        """For what is in the cells; all ranks call it. Raises ShapeError, alike on all."""
        if self._executor is not None and not self._varying:
            return self._executor
        edges = self._shapes.edges(self._cells)
        if self._executor is not None and edges == self._edges:
            return self._executor
        self._edges = edges
        for (s, j), cell in self._cells.items():
            cell.edge = edges[s][j] if s < len(edges) else None
        self._worker.transport.renew()
        self._executor = self._made(edges)
        return self._executor

    def ran(self) -> Executor:
        """That of the last step. Raises InputError where there was none."""
        if self._executor is None:
            raise InputError("trace: no step has run yet")
        return self._executor

    def _made(self, edges: Edges) -> Executor:
        worker, stepping = self._worker, self._stepping
        carriers: dict[ir.TensorKind, Carrier] = dict.fromkeys(
            ir.TensorKind, Activations(self._cells, edges, worker.device)
        )
        if isinstance(worker.store, TravellingStages):
            carriers[ir.TensorKind.WEIGHT] = carriers[ir.TensorKind.GRADIENT] = worker.store
        return Executor(
            worker.program,
            worker.transport,
            cells=self._cells,
            runners=self.runners,
            carriers=carriers,
            memory=worker.memory,
            device=worker.device,
            reduce=stepping.reduce,
            average=stepping.average,
            step=stepping.step,
            judge=stepping.judge,
            validate=stepping.validate,
            rewind=stepping.rewind,
            pace=self._pace,
        )

    def _runner(self, stage: int) -> StageRunner:
        worker = self._worker
        stash = self._stepping.stashes.get(stage)
        return (StageRunner if stash is None else StashingRunner)(
            stage,
            worker.store.module(stage) if stash is None else stash,
            parameters=worker.store.parameters(stage) if stash is None else None,
            using=partial(worker.store.using, stage),
            memory=worker.memory,
            last=stage == self._last,
            loss=self._loss,
            seed=self._stepping.seed,
            skips=self._skips if self._skips.passes(stage) else None,
        )


def loss_in_full(loss: Loss, store: StageStore) -> Loss:
    """The loss of an output in the modules' own dtype, where they compute in another."""
    assert isinstance(store, TravellingStages)
    master = store.precision.master

    def computed(output: Any, target: Any) -> Tensor:
        return loss(mapped(lambda x: x.to(master) if x.is_floating_point() else x, output), target)

    return computed
