"""Thread ranks in this process: a pipeline really executed where one machine, or one GPU, is at
hand.

Each rank is a thread. On a GPU it computes on a stream of its own; copies between ranks have
streams of their own. Its backward passes are issued by its
own thread too (:func:`~pipeloom.runtime.executor.weight_grad_deferral.run_backward`): torch's own
has one thread a device for all of them.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pipeloom.ir.errors import PipeloomError, in_words, of_rank

from ..cuda import check_devices, make_stream
from ..errors import LaunchError
from ..transport.in_process import Hub, LinkTime
from ..transport.thread_rank import being
from ..transport.waiting import waits_for_another

GRACE = 1.0  # seconds that the others have to end by themselves after a failure
INTERRUPT_GRACE = 5.0  # and all of them after an interrupt: a checkpoint takes seconds to write
POLL = 0.05  # seconds between looks for one
RANK_THREAD = "rank "  # prefix of the threads' names, by which the command line knows those left
QUEUES = "32"  # of the device: with its default of 8, streams of several ranks wait for each other


@dataclass(slots=True)
class _Outcome:
    """The result or the error of a thread rank; ``moment`` orders failures.

    ``ended`` is waited for, not the thread: Python 3.11 takes a thread for ended whose ``join`` was
    interrupted.
    """

    ended: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None
    moment: float = field(default=float("inf"))
    details: str = ""


def launch_local(
    function: Callable[..., Any],
    ranks: int,
    args: Sequence[Any] = (),
    *,
    device: torch.device | str = "cpu",
    link_time: LinkTime | None = None,
    timeout: float | None = None,
) -> dict[int, Any]:
    """Calls ``function(*args)`` on each of ``ranks`` threads, and returns each one's result.

    Within, pipelines talk to each other over the ``local`` transport, without
    ``torch.distributed``. Arguments are shared, not copied. ``link_time(source, target, bytes)``
    gives the milliseconds that a message takes, one at a time on each ordered pair of ranks; a
    CPU's links alone can be slowed. ``timeout``, in seconds, bounds the whole.

    Raises LaunchError for the first rank that fails, all others' waits end then too, as on an
    interrupt of the main thread; a thread that computes on past the timeout, or seconds after the
    interrupt, cannot be ended, it ends with the process.
    """
    device = torch.device(device)
    if device.type == "cuda":
        check_devices()
    if link_time is not None and device.type != "cpu":
        raise ValueError(f"link_time: expected a CPU, got {device}")
    hub, outcomes = Hub(ranks, link_time), [_Outcome() for _ in range(ranks)]
    streams = _streams(ranks, device)

    def run(rank: int) -> None:
        outcome = outcomes[rank]
        try:
            with being(hub, rank), _computing(streams[rank]):
                outcome.result = function(*args)
        except BaseException as error:
            outcome.error, outcome.moment = error, time.monotonic()
            outcome.details = traceback.format_exc()
            hub.fail(f"rank {rank} has ended")
        finally:
            outcome.ended.set()

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"{RANK_THREAD}{rank}", daemon=True)
        for rank in range(ranks)
    ]
    try:
        for thread in threads:
            thread.start()
        _join(threads, outcomes, timeout, hub)
    except KeyboardInterrupt:
        hub.fail("the run was interrupted")
        _let_end(outcomes)
        raise
    first = min(range(ranks), key=lambda rank: outcomes[rank].moment)
    if outcomes[first].error is not None:
        raise _launch_error(first, outcomes[first])
    return {rank: outcome.result for rank, outcome in enumerate(outcomes)}


def _join(
    threads: Sequence[threading.Thread],
    outcomes: Sequence[_Outcome],
    timeout: float | None,
    hub: Hub,
) -> None:
    """Waits until all have ended, or a little after one has failed. Raises LaunchError at the
    timeout."""
    end = float("inf") if timeout is None else time.monotonic() + timeout
    while alive := [r for r, outcome in enumerate(outcomes) if not outcome.ended.is_set()]:
        failed = min(outcome.moment for outcome in outcomes)
        now = time.monotonic()
        if now > failed + GRACE:
            return
        if now > end:
            hang = [r for r in alive if not waits_for_another(threads[r].ident)] or alive
            hub.fail("the run has ended")
            raise LaunchError(f"no answer in time from rank {', '.join(map(str, hang))}")
        outcomes[alive[0]].ended.wait(POLL)


def _let_end(outcomes: Sequence[_Outcome]) -> None:
    """Waits for the ranks, whose waits have ended, but not for one that computes for long."""
    end = time.monotonic() + INTERRUPT_GRACE
    for outcome in outcomes:
        outcome.ended.wait(max(0.0, end - time.monotonic()))


def _launch_error(rank: int, outcome: _Outcome) -> LaunchError:
    error = outcome.error
    assert error is not None
    rank = getattr(error, "rank", rank)
    return LaunchError(
        of_rank(rank, in_words(error)),
        rank=rank,
        details=outcome.details,
        exit_code=error.exit_code if isinstance(error, PipeloomError) else 1,
    )


def _streams(ranks: int, device: torch.device) -> Sequence[torch.cuda.Stream | None]:
    """The stream that each rank computes on; None on a CPU."""
    if device.type != "cuda":
        return [None] * ranks
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", QUEUES)  # read when CUDA is first used
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.synchronize(index)  # the arguments are there, whatever stream they were made on
    return [make_stream(torch.device("cuda", index)) for _ in range(ranks)]


@contextmanager
def _computing(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """A context in which this thread computes on ``stream``; after it all of that is done."""
    if stream is None:
        yield
        return
    torch.cuda.set_device(stream.device)
    with torch.cuda.stream(stream):
        yield
        stream.synchronize()
