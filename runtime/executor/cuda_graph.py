"""A step recorded once as a CUDA graph: launched by one call instead of thousands.

::

    steps 0, 1, 2    as ever: memory, libraries and connections are made
    step 3           recorded, on every stream that it comes to, and launched
    step 4, 5, ...   the batch copied to where step 3 had its own, and launched

What Python does in a step happens while it is recorded, and never again: peak memory and options
that are no tensors are step 3's. Gradients are cleared in it, so an optimizer has to step in it,
too.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError

from ..cuda import make_event, make_stream
from ..errors import ShapeError
from ..measure.op_timer import Call, Clock
from ..tensors.microbatches import leaves_of, mapped, shown
from ..tensors.stage_interface import Spec
from ..transport import Transport
from ..transport.in_process import follow
from ..transport.thread_rank import here
from .stage_runner import Cell

WARMUP = 3  # steps before the recorded one, as torch advises


class Recording(Protocol):
    """Work queued on one rank's device between ``begin`` and ``end``, to be launched again."""

    def within(self) -> AbstractContextManager[object]:
        """A context for each step, also before it is recorded, whose stream is one that can be."""
        ...

    def begin(self) -> None:
        """Work queued from now on is recorded and not run."""
        ...

    def end(self) -> None:
        """Ends the recording."""
        ...

    def launch(self) -> None:
        """Runs what was recorded."""
        ...


class DeviceRecording:
    """A process's own, on a stream of its own: the default one cannot be recorded."""

    def __init__(self, device: torch.device, *, beside: bool) -> None:
        self._device = device
        self._graph = torch.cuda.CUDAGraph()
        self._stream = make_stream(device) if beside else None

    def within(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else _beside(self._device, self._stream)

    def begin(self) -> None:
        torch.cuda.synchronize(self._device)
        gc.collect()  # nothing is to be destroyed meanwhile
        torch.cuda.empty_cache()  # the graph's memory is its own
        # other threads may go on: NCCL's that watches, or those of thread ranks, whose streams
        # join
        self._graph.capture_begin(capture_error_mode="thread_local")

    def end(self) -> None:
        self._graph.capture_end()

    def launch(self) -> None:
        self._graph.replay()


class SharedRecording:
    """One graph of all thread ranks of a device, which rank 0 makes and launches.

    ::

        rank 0   begin ──┬── 0F0 0F1 ... ◀─┬── end     a stream is recorded from the
        rank 1           └─▶ 1F0 1B0 ... ──┘           moment on when it waits for one that is
    """

    def __init__(
        self, transport: Transport, device: torch.device, own: Recording | None = None
    ) -> None:
        self._transport, self._device = transport, device
        self._own = own
        if own is None and transport.rank == 0:
            self._own = DeviceRecording(device, beside=False)

    def within(self) -> AbstractContextManager[object]:
        return nullcontext()

    def begin(self) -> None:
        self._transport.barrier()  # no rank is in a step any more
        if self._own is not None:
            self._own.begin()
        self._from_first()

    def end(self) -> None:
        self._to_first()
        if self._own is not None:
            self._own.end()
        self._transport.barrier()

    def launch(self) -> None:
        self._to_first()
        if self._own is not None:
            self._own.launch()
        self._from_first()

    def _to_first(self) -> None:
        events = self._transport.gather(self._now())
        if self._own is not None:
            follow(self._device, events[1:])

    def _from_first(self) -> None:
        event = self._transport.share(None if self._own is None else self._now(), 0)
        if self._own is None:
            follow(self._device, [event])

    def _now(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = make_event(timed=False)
        event.record(torch.cuda.current_stream(self._device))
        return event


def make_recording(transport: Transport, device: torch.device) -> Recording:
    """The one for this rank, whose current stream is its own where it is a thread."""
    if here() is not None:
        return SharedRecording(transport, device)
    return DeviceRecording(device, beside=True)


class GraphedSteps:
    """Runs one rank's steps; all ranks record the same one.

    ``cells`` hold what a step is given and what comes out; see
    :class:`~pipeloom.runtime.executor.stage_runner.Cell`.
    """

    def __init__(self, recording: Recording, transport: Transport, cells: Iterable[Cell]) -> None:
        self._recording, self._transport = recording, transport
        self._cells = [*cells]
        self._before = WARMUP
        self._places: list[list[Any]] = []
        self._results: list[tuple[Cell, Tensor, object, object]] = []
        self._keeps: bool | None = None  # whether outputs are kept; None: nothing is recorded yet

    def run(self, issue: Call, clock: Clock, *, keep: bool) -> None:
        """Runs one step on the cells' contents; ``issue`` queues all of it on the device.

        Raises ShapeError for shapes, InputError for outputs to ``keep`` that the recorded step had
        not.
        """
        with self._recording.within():
            clock.start()
            if self._before > 0:
                self._before -= 1
                issue()
                return
            if self._keeps is None:
                self._record(issue)
                self._keeps = keep
            else:
                self._refill(keep)
            self._recording.launch()
            self._hand_out(keep)

    def _record(self, issue: Call) -> None:
        for cell in self._cells:
            cell.inputs, cell.options, cell.target = (
                mapped(torch.clone, given) for given in (cell.inputs, cell.options, cell.target)
            )
            self._places.append(_given(cell))
        self._transport.renew()  # events from before cannot be waited for within
        self._recording.begin()
        issue()
        self._recording.end()
        self._results = [
            (c, c.loss, c.metrics, c.result) for c in self._cells if c.loss is not None
        ]

    @torch.no_grad()
    def _refill(self, keep: bool) -> None:
        if keep and not self._keeps:
            raise InputError(
                "return_outputs: expected False, as it was when the step became a CUDA graph"
            )
        for cell, places in zip(self._cells, self._places, strict=True):
            for place, value in zip(places, _given(cell), strict=True):
                _copy(place, value)
            cell.inputs, cell.options, cell.target = (), {}, None

    @torch.no_grad()
    def _hand_out(self, keep: bool) -> None:
        """Copies: the next launch writes to the same memory."""
        for cell, loss, metrics, result in self._results:
            cell.loss, cell.metrics = loss.clone(), mapped(torch.clone, metrics)
            cell.result = mapped(torch.clone, result) if keep else None


def _given(cell: Cell) -> list[Any]:
    """The inputs of a step for one microbatch on one stage, in a fixed order."""
    return leaves_of((cell.inputs, cell.options, cell.target))


def _copy(place: Any, value: Any) -> None:
    """Copies into the recorded step's own. Raises ShapeError where that is not possible."""
    tensors = isinstance(place, Tensor) and isinstance(value, Tensor)
    if not tensors or Spec.of(place) != Spec.of(value):
        if tensors or place != value:
            raise ShapeError(
                f"step: given {shown(value)} where the step that became a CUDA graph was given "
                f"{shown(place)}"
            )
        return
    place.copy_(value, non_blocking=True)


@contextmanager
def _beside(device: torch.device, stream: torch.cuda.Stream) -> Iterator[None]:
    """Makes ``stream`` the current one, which waits for the one outside, and that one for it."""
    outside = torch.cuda.current_stream(device)
    stream.wait_stream(outside)
    with torch.cuda.stream(stream):
        yield
    outside.wait_stream(stream)
