"""The profile of a pipeline's own stages, measured where they are: sharded, wrapped, on their
devices.

Every process runs its stages as in a step, but for messages, which are made up: F, B and W of some
microbatches, then BW's. What stages do inside, collectives over a mesh too, is done as in a step,
by all processes in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.program import Program

from ..executor.stage_runner import Cell
from ..measure.activation_ledger import Ledger
from ..optim.step_end import StepEnd
from ..probes import measuring
from ..probes.held_bytes import HeldBytes, held_bytes
from ..probes.link_probe import ring_routes
from ..probes.stage_probe import Asked, StageProbe
from ..rank.context import RankContext
from ..stages.tie_detection import tied_stages
from ..tensors.forward_state import undisturbed
from ..tensors.trees import mapped
from .step_inputs import Cells
from .steps.setup import StepSetup


@dataclass(frozen=True, slots=True)
class AskedInPlace:
    """The settings that :meth:`~.pipeline.Pipeline.profile` was given."""

    repeats: int
    warmup: int
    in_flight: int | None
    recompute: bool
    view: str

    def check(self, program: Program) -> None:
        """Raises InputError for what cannot be, or where weights are sent: stages run as they
        come."""
        if program.schedule.transfers:
            raise InputError("profile: expected a program that sends activations, not weights")
        measuring.check_view(self.view)
        measuring.check_numbers(repeats=self.repeats, warmup=self.warmup, in_flight=self.in_flight)


class StagesInPlace:
    """A rank's stages, with what a step was given in its cells, to be measured."""

    def __init__(self, context: RankContext, step_end: StepEnd, setup: StepSetup) -> None:
        self._context, self._cells = context, setup.cells
        self._step_end, self._setup = step_end, setup

    def measure(self, given: AskedInPlace) -> Measurement:
        """Parameters, gradients, buffers and random numbers are as before afterwards."""
        context = self._context
        ranks = context.program.schedule.problem.ranks
        in_flight, view = self._in_flight(given.in_flight or ranks), given.view
        asked = Asked(in_flight, fused=True, recompute=given.recompute)
        held = {s: self._held(s) for s in context.role.run}
        with self._undone():
            probe = self._probe(asked, view)
            parts = measuring.probed(
                probe, held.__getitem__, repeats=given.repeats, warmup=given.warmup
            )
        seconds = context.options.timeout
        parts, links = measuring.gathered(view, context.transport, seconds, parts, self._links)
        name = context.program.schedule.problem.profile.name
        tied = tied_stages(context.options.tied) if view != "rank" else ()
        shown = ranks if view != "rank" else 1
        size = self._micro_batch(view)
        found = measuring.measurement(
            parts, links, ranks=shown, name=name, tied=tied, micro_batch=size
        )
        most, waits = found.profile.num_stages, context.waits_for_norm
        profile = replace(found.profile, max_stages=most, barrier=waits)
        return replace(found, profile=profile)

    def _micro_batch(self, view: str) -> int | None:
        """The sequences in a microbatch, where a rank of the view is given them."""
        first = [cell.inputs for (stage, _), cell in self._cells.items() if stage == 0]
        own = measuring.sequences(first[0]) if first else None
        if view == "rank":
            return own
        return next((n for n in self._context.transport.gather(own) if n is not None), None)

    def _in_flight(self, asked: int) -> int:
        """The microbatches of a round: at most as many as the rank has of each stage."""
        counts: defaultdict[int, int] = defaultdict(int)
        for stage, _ in self._cells:
            counts[stage] += 1
        return min([asked, *counts.values()])

    def _probe(self, asked: Asked, view: str) -> StageProbe:
        memory, context = Ledger(), self._context
        runners = {s: self._setup.runner(s, memory, stashing=False) for s in context.role.run}
        for runner in runners.values():
            runner.keep_outputs = False
        together = context.transport.barrier if view != "rank" else _alone
        return StageProbe(
            runners,
            self._setup.interfaces,
            _StepFeed(self._cells),
            memory=memory,
            device=context.device,
            asked=asked,
            together=together,
            names=context.options.names,
        )

    def _held(self, stage: int) -> HeldBytes:
        optimizer = self._step_end.optimizers.get(stage)
        context = self._context
        return held_bytes(context.store, stage, context.options.optimizer, optimizer)

    def _links(self, largest: int) -> measuring.LinkParts:
        """Links, over connections of their own: a program has those alone that it uses."""
        context = self._context
        routes = ring_routes(context.transport.size, context.options.timeout)
        transport = context.transport.beside(routes)
        try:
            return measuring.probed_links(transport, largest, context.device, offload=False)
        finally:
            transport.close()

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """A context that takes back what ops leave in gradients, buffers and random numbers."""
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


class _StepFeed:
    """The microbatches that a step was given; of those of a stage the rank's first ones."""

    def __init__(self, cells: Cells) -> None:
        self._cells: defaultdict[int, list[Cell]] = defaultdict(list)
        for (stage, _), cell in sorted(cells.items(), key=lambda item: item[0]):
            self._cells[stage].append(cell)

    def renew(self, step: int) -> None:
        pass

    def fill(self, stage: int, microbatch: int, cell: Cell) -> None:
        given = self._cells[stage][microbatch]
        cell.options = mapped(_own, given.options)
        cell.target = mapped(_own, given.target)
        if stage == 0:
            cell.inputs = tuple(mapped(_own, x) for x in given.inputs)


def _own(tensor: Tensor) -> Tensor:
    # a view would make one microbatch count the whole batch that it was cut from
    return tensor.detach().clone()


def _alone() -> None:
    """Waits for nobody."""
