"""The first error of any replica, which replicas check while they wait for each other.

::

    replica 0   rank 1 raises; its ranks end together, each publishes the error to its data group
    replica 1   rank 1 waits for an average, longer than SLICE: finds the error, ends its replica

A shorter wait makes no request.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import torch.distributed as dist

from .base import Fault
from .making import gather_early
from .store import PATIENCE, Store, StoreLostError

SLICE = timedelta(milliseconds=50)


class ReplicaFaults:
    """Publishes errors between the processes of ``group``, which are one rank in all replicas.

    All of them create theirs at the same time, within ``seconds``.
    """

    def __init__(self, group: dist.ProcessGroup, seconds: float) -> None:
        own = f"fault of {uuid4().hex}"  # unique among the pipelines of the group
        self._key = gather_early(own, group, seconds)[0]
        self._store, self._replica = Store(group.get_group_store(), seconds), group.rank()

    def publish(self, fault: Fault) -> None:
        """Publishes a fault to the other replicas, unless another one was published before."""
        own = self._replica if fault.replica is None else fault.replica
        self._store.allow(PATIENCE)
        with suppress(StoreLostError):
            self._store.told(self._key, replace(fault, replica=own))

    def found(self, seconds: float = PATIENCE) -> Fault | None:
        """Returns the first published fault; None if there is none or the store does not answer."""
        self._store.allow(seconds)
        with suppress(StoreLostError):
            if self._store.has(self._key):
                fault = self._store.told(self._key)
                return replace(fault, replica=None) if fault.replica == self._replica else fault
        return None

    def wait(self, work: dist.Work, timeout: timedelta) -> None:
        """Waits for a collective on a CPU.

        Raises RuntimeError like ``work.wait(timeout)``, and ConnectionError if a fault is published
        meanwhile.
        """
        end = time.monotonic() + timeout.total_seconds()
        while True:
            left = timedelta(seconds=max(end - time.monotonic(), 1e-3))
            try:
                work.wait(min(SLICE, left))
                return
            except RuntimeError:
                if left <= SLICE:
                    raise
            if work.is_completed():  # completed meanwhile, or failed: then wait raises its error
                work.wait()
                return
            fault = self.found(left.total_seconds())
            if fault is not None:
                raise ConnectionError(str(fault.raised()))


def wait_for(
    work: dist.Work, timeout: timedelta | None, what: str, faults: ReplicaFaults | None = None
) -> None:
    """Waits for ``work``.

    ``timeout``: the limit on a CPU. None on a GPU, where only the current stream waits. Raises
    ConnectionError after the limit, for an error of ``work``, and for a fault found in ``faults``.
    """
    if timeout is None:
        work.wait()
        return
    try:
        if faults is None:
            work.wait(timeout)
        else:
            faults.wait(work, timeout)
    except RuntimeError as error:
        patience = f"waited at most {timeout.total_seconds():g} s"
        raise ConnectionError(f"{what}, {patience}: {error}") from error
