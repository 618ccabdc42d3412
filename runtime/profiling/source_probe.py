"""The stages of one rank that a model source makes, and what it feeds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import is_dtensor
from ..executor.stage_runner import Cell, StageRunner
from ..graphs.graph_runner import runner_kind
from ..measure.activation_ledger import Ledger
from ..pipeline.model_source import ModelSource, checked_batch, checked_stages, names_of, skips_of
from ..pipeline.steps.shape_inference import ShapeInference
from ..probes.held_bytes import HeldBytes, held_bytes
from ..probes.measuring import sequences
from ..probes.stage_probe import Asked, StageProbe
from ..rank.options import StagesAs
from ..stages.fsdp import ShardedStages, resident_stages
from ..stages.store import Stage, StageStore, given_modules, made
from ..stages.tie_detection import Group, find_ties, tied_stages
from ..tensors.skip_connections import Skips
from ..tensors.stage_interface import StageInterface
from ..transport import Transport


class SourceStages:
    """The modules of one rank, ready to be probed; ``owners`` names the rank of every stage.

    ``tied``: the stages that share parameters; ``micro_batch``: the sequences in a microbatch,
    where they are known, once there is a probe. All ranks make theirs at the same time.
    Raises InputError for stages wrapped in ``fully_shard`` without a ``data_group``, and for a
    ``dtype`` of stages that have DTensors.
    """

    def __init__(
        self,
        source: ModelSource,
        owners: Sequence[int],
        transport: Transport,
        *,
        dtype: torch.dtype | None,
        device: torch.device,
        tied: Sequence[Group] = (),
        data_group: dist.ProcessGroup | None = None,
        timeout: float = 300.0,
        stages_as: StagesAs = "eager",
    ) -> None:
        self._source, self._owners, self._transport = source, owners, transport
        self._dtype, self._device, self._stages_as = dtype, device, stages_as
        self._stages = [s for s, owner in enumerate(owners) if owner == transport.rank]
        build = checked_stages(source, len(owners))
        modules = {s: self._made(build[s], s) for s in self._stages}
        given = given_modules(build, self._stages, len(owners)) | modules
        # the functions are still there, and with them a whole model that they may take parts of
        ties = find_ties(tied, len(owners), given, modules, transport.gather)
        self.tied = tied_stages(ties)
        self._store = self._stored(modules, data_group, timeout)
        self._memory = Ledger()
        self.micro_batch: int | None = None

    def _made(self, build: Stage, stage: int) -> nn.Module:
        """The module on the device and in the dtype asked for; what is sharded stays as it is."""
        module = made(build, stage)
        if not any(map(is_dtensor, module.parameters())):
            return module.to(device=self._device, dtype=self._dtype)
        if self._dtype is not None:
            raise InputError(
                f"dtype: expected none, as stage {stage} has shards in their own, got {self._dtype}"
            )
        return module

    def _stored(
        self, modules: Mapping[int, nn.Module], group: dist.ProcessGroup | None, timeout: float
    ) -> StageStore:
        return resident_stages(modules, group, timeout)

    def probe(self, asked: Asked) -> StageProbe:
        """A probe of the stages, tried once to see what they hand on; all ranks call it."""
        feed = _SourceFeed(self._source, asked.in_flight, self._device, self._dtype)
        self._store.gather()
        skips = Skips(skips_of(self._source, len(self._owners)), len(self._owners))
        interfaces = self._interfaces(feed, skips)
        self.micro_batch = sequences(feed.inputs)
        return StageProbe(
            {s: self._runner(s, asked.in_flight, skips) for s in self._stages},
            [[interface] * asked.in_flight for interface in interfaces],
            feed,
            memory=self._memory,
            device=self._device,
            asked=asked,
            together=self._transport.barrier,
            names=names_of(self._source, len(self._owners)),
        )

    def held(self, stage: int) -> HeldBytes:
        """Bytes that the device holds of the stage beside activations."""
        return held_bytes(self._store, stage, self._source.optimizer)

    def close(self) -> None:
        """Gives sharded stages back to their ``fully_shard``."""
        self._store.close()

    def _runner(self, stage: int, in_flight: int, skips: Skips) -> StageRunner:
        sharded = isinstance(self._store, ShardedStages)
        make = runner_kind("eager" if sharded else self._stages_as)
        runner = make(
            stage,
            self._store.module(stage),
            parameters=self._store.parameters(stage),
            using=partial(self._store.using, stage),
            memory=self._memory,
            last=stage == len(self._owners) - 1,
            loss=self._source.loss,
            seed=torch.tensor(1.0 / in_flight, dtype=torch.float64, device=self._device),
            skips=skips if skips.passes(stage) else None,
        )
        runner.keep_outputs = False
        return runner

    def _interfaces(self, feed: _SourceFeed, skips: Skips) -> list[StageInterface]:
        """Interfaces of all stages but the last, of the first microbatch."""
        feed.renew(0)
        cells = {(stage, 0): Cell(None) for stage in self._stages}
        for (stage, _), cell in cells.items():
            feed.fill(stage, 0, cell)
        placed = np.array(self._owners, dtype=np.int64)[:, np.newaxis]
        shapes = ShapeInference(self._store, placed, skips, self._transport, self._device)
        return [interfaces[0] for interfaces in shapes.interfaces(cells)]


class _SourceFeed:
    """The source's batches."""

    def __init__(
        self, source: ModelSource, count: int, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        self._source, self._count = source, count
        self._device, self._dtype = device, dtype
        self.inputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def renew(self, step: int) -> None:
        inputs, targets = checked_batch(self._source, step, self._count)
        self.inputs, self._targets = [*map(self._placed, inputs)], [*map(self._placed, targets)]

    def fill(self, stage: int, microbatch: int, cell: Cell) -> None:
        cell.target = self._targets[microbatch], {}
        if stage == 0:
            cell.inputs = (self.inputs[microbatch],)

    def _placed(self, tensor: Tensor) -> Tensor:
        # a copy: a view would make one microbatch count the whole batch that it was cut from
        return tensor.to(
            self._device, self._dtype if tensor.is_floating_point() else None, copy=True
        )
