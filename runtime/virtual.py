"""Virtual ranks in this process: a pipeline really executed where one machine, or one GPU, is at hand.

Each rank is a thread. On a GPU it computes on a stream of its own and, where the device and torch
have green contexts, on its own share of the multiprocessors, so that ranks do not take each
other's; copies between ranks have streams of their own.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pipeloom.ir.errors import PipeloomError

from .cuda import make_stream
from .errors import LaunchError
from .transport.local import Hub, LinkTime, being

GRACE = 1.0  # seconds that the others have to end by themselves after a failure
POLL = 0.05  # seconds between looks for one


@dataclass(slots=True)
class _Outcome:
    """What a virtual rank came to; ``moment`` orders failures."""

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

    Within, pipelines talk to each other over the ``local`` transport, without ``torch.distributed``.
    Arguments are shared, not copied. ``link_time(source, target, bytes)`` gives the milliseconds that
    a message takes, one at a time on each ordered pair of ranks; a CPU's links alone can be slowed.
    ``timeout``, in seconds, bounds the whole.

    Raises LaunchError for the first rank that fails, all others' waits end then too; a thread that
    computes on past the timeout cannot be ended, it ends with the process.
    """
    device = torch.device(device)
    if link_time is not None and device.type != "cpu":
        raise ValueError(f"link_time: expected a CPU, got {device}")
    hub, outcomes = Hub(ranks, link_time), [_Outcome() for _ in range(ranks)]
    shares = [*_shares(ranks, device)]

    def run(rank: int) -> None:
        outcome = outcomes[rank]
        try:
            with being(hub, rank), _computing(device, shares[rank]):
                outcome.result = function(*args)
        except BaseException as error:
            outcome.error, outcome.moment = error, time.monotonic()
            outcome.details = traceback.format_exc()
            hub.fail(f"rank {rank} has ended")

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    _join(threads, outcomes, timeout, hub)
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
    """Until all have ended, or a little after one has failed. Raises LaunchError at the timeout."""
    end = float("inf") if timeout is None else time.monotonic() + timeout
    while any(thread.is_alive() for thread in threads):
        failed = min(outcome.moment for outcome in outcomes)
        now = time.monotonic()
        if now > failed + GRACE:
            return
        if now > end:
            hub.fail("the run has ended")
            late = ", ".join(str(r) for r, thread in enumerate(threads) if thread.is_alive())
            raise LaunchError(f"no answer in time from rank {late}")
        next(thread for thread in threads if thread.is_alive()).join(POLL)


def _launch_error(rank: int, outcome: _Outcome) -> LaunchError:
    error = outcome.error
    text = str(error) if isinstance(error, PipeloomError) else f"{type(error).__name__}: {error}"
    return LaunchError(
        text if text.startswith(f"rank {rank}:") else f"rank {rank}: {text}",
        rank=rank,
        details=outcome.details,
        exit_code=error.exit_code if isinstance(error, PipeloomError) else 1,
    )


def _shares(ranks: int, device: torch.device) -> Iterator[int | None]:
    """How many multiprocessors each rank has to itself; None where they cannot be divided."""
    if device.type != "cuda" or not _green_contexts():
        yield from [None] * ranks
        return
    count = torch.cuda.get_device_properties(device).multi_processor_count
    yield from [max(1, count // ranks)] * ranks


def _green_contexts() -> bool:
    return getattr(getattr(torch.cuda, "green_contexts", None), "SUPPORTED", False)


@contextmanager
def _computing(device: torch.device, share: int | None) -> Iterator[None]:
    """Within: this thread computes on a stream, and if it can a share of the device, of its own."""
    with ExitStack() as stack:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            if share is not None:
                context: Any = torch.cuda.green_contexts.GreenContext.create(
                    num_sms=share, device_id=torch.cuda.current_device()
                )
                context.set_context()
                stack.callback(context.pop_context)
            else:
                stack.enter_context(torch.cuda.stream(make_stream(device)))
        yield
