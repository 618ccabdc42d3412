"""Profiles the stages of an existing pipeline as they are: sharded, wrapped, on their devices.

Every process runs its stages by :class:`~pipeloom.runtime.probes.stage_probe.StageProbe` on the
first microbatches of a step, with random numbers instead of messages from other ranks. All
processes run their collectives inside stages, such as over a mesh, in the same order, as in a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch.distributed as dist

from pipeloom.ir.formats.measured_profile import Measurement

from ..executor.offload import Host
from ..measure.activation_ledger import Ledger
from ..probes.held_bytes import held_bytes
from ..probes.link_probe import LinkSamples, probe_host, probe_links, ring_routes
from ..probes.measuring import (
    ACTIVATION,
    StagePart,
    largest_activation,
    measurement,
    sequences,
)
from ..probes.stage_probe import Asked, StageProbe
from ..stages.tie_detection import tied_stages
from ..tensors.forward_state import undisturbed
from .steps.prepared import Prepared, make_cell


class StagesInPlace:
    """Measures the stages of one rank of a pipeline.

    ``own``: everything prepared for the pipeline's own program; its cells contain the arguments of
    a step. ``asked``: what to measure. All ranks create their object and call :meth:`measure`.
    """

    def __init__(self, own: Prepared, asked: Asked) -> None:
        self._context, self._own, self._memory = own.context, own, Ledger()
        self._given = {
            stage: [j for s, j in sorted(own.cells) if s == stage] for stage in own.context.role.run
        }
        # at most the number of microbatches that this rank runs on each stage
        count = min([asked.in_flight, *map(len, self._given.values())])
        self._asked = replace(asked, in_flight=count)
        self._interfaces = own.shapes.interfaces(own.cells)

    def measure(self) -> Measurement:
        """Returns the joint profile of all processes: stages, links and, if requested, the host.

        Afterwards, gradients, buffers and random states are as before; parameters do not change.
        """
        context, problem = self._context, self._context.program.schedule.problem
        optimizers = self._own.step_end.optimizers
        held = {s: held_bytes(context.store, s, optimizers.get(s)) for s in context.role.run}
        with self._undone():
            probes = {s: self._probe(s) for s in context.role.run}
            for number in range(self._asked.warmup + self._asked.repeats):
                context.transport.barrier()
                for probe in probes.values():
                    probe.run(counts=number >= self._asked.warmup)
            parts = [self._part(s, probe, held[s]) for s, probe in probes.items()]
        every = self._gather(parts)
        links = self._gather(self._links(largest_activation(every)))
        offload = self._asked.offload
        host = [probe_host(context.device, context.transport.rank)] if offload else []
        return measurement(
            every,
            links,
            self._gather(host),
            ranks=problem.ranks,
            name=problem.profile.name,
            tied=tuple(tied_stages(context.options.tied)),
            micro_batch=next(filter(None, self._gather(self._micro_batch())), None),
            barrier=context.waits_for_norm,
        )

    def _gather(self, own: list[Any]) -> list[Any]:
        """Returns one list with the elements of the lists ``own`` that all processes pass.

        If the pipeline was given a ``transport``, only the ranks that it connects are included.
        """
        rows: list[Any] = [None] * (dist.get_world_size() if dist.is_initialized() else 0)
        if self._context.options.transport is not None or not rows:
            rows = self._context.transport.gather(own)
        else:
            dist.all_gather_object(rows, own)
        return list(chain.from_iterable(rows))

    def _probe(self, stage: int) -> StageProbe:
        asked, own = self._asked, self._given[stage][: self._asked.in_flight]
        interfaces = [[row[j] for j in own] for row in self._interfaces]
        sent = interfaces[stage] if stage < len(interfaces) else [None] * len(own)
        device, memory = self._context.device, self._memory
        host = Host(device)
        cells = [[make_cell(way, memory, host, one) for one in sent] for way in asked.ways.values()]
        runner = self._own.runner(stage, memory, stashing=False)
        runner.keep_outputs = False
        sources = [self._own.cells[stage, j] for j in own]
        return StageProbe(runner, asked, sources, cells, interfaces=interfaces, device=device)

    def _part(self, stage: int, probe: StageProbe, held: dict[str, int]) -> StagePart:
        """Returns the measurements of ``stage``: the times in ``probe``, and the bytes.

        Measuring the bytes runs each microbatch once more. ``held``: the bytes besides activations,
        by the keys of a stage in a profile.
        """
        sizes = probe.sizes()
        if self._interfaces:
            # the last stage sends nothing; count what it receives, in case it is cut further
            sent = self._interfaces[min(stage, len(self._interfaces) - 1)]
            sizes[ACTIVATION] = max(one.forward.nbytes for one in sent)
        eager = getattr(probe.runner, "refusal", None)
        return StagePart(stage, probe.times, {**sizes, **held}, eager)

    def _micro_batch(self) -> list[int | None]:
        """Returns a list with one element: the number of sequences in a microbatch, or None.

        It is None if the number is unknown. The list is empty if this rank does not run the first
        stage.
        """
        first = [cell.inputs for (stage, _), cell in self._own.cells.items() if stage == 0]
        return [sequences(first[0])] if first else []

    def _links(self, largest: int) -> list[LinkSamples]:
        """Returns the measured message times of the links between this rank and higher neighbors.

        Neighbors are the adjacent ranks in a ring. ``largest``: bytes of the largest activation.
        The links are measured over new connections, as a program's transport connects only ranks
        that exchange messages.
        """
        context = self._context
        routes = ring_routes(context.transport.size, context.options.timeout)
        with closing(context.transport.beside(routes)) as transport:
            return probe_links(transport, largest, context.device)

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """A context without gradients; on exit, restores gradients, buffers and random states."""
        store = self._context.store
        modules = [store.module(s) for s in store.stages]
        parameters = [p for s in store.stages for p in store.parameters(s)]
        gradients = [p.grad for p in parameters]
        store.gather()
        with store.computing():
            try:
                with undisturbed(modules, [self._context.device]):
                    for parameter in parameters:
                        parameter.grad = None
                    yield
            finally:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
