"""The first error of any replica, where the replicas look while they wait for each other.

::

    replica 0   rank 1 raises; its ranks end together, each tells the store of its data group
    replica 1   rank 1 waits for an average, longer than SLICE: finds it there, ends its replica

A wait that is over sooner asks nothing of anyone.
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
    """Errors that the processes of ``group``, one rank's place in all replicas, tell each other.

    All of them make theirs at the same time, within ``seconds``.
    """

    def __init__(self, group: dist.ProcessGroup, seconds: float) -> None:
        own = f"fault of {uuid4().hex}"  # other pipelines of the group have others
        self._key = gather_early(own, group, seconds)[0]
        self._store, self._replica = Store(group.get_group_store(), seconds), group.rank()

    def publish(self, fault: Fault) -> None:
        """Tells the other replicas, unless another fault was told before."""
        own = self._replica if fault.replica is None else fault.replica
        self._store.allow(PATIENCE)
        with suppress(StoreLostError):
            self._store.told(self._key, replace(fault, replica=own))

    def found(self, seconds: float = PATIENCE) -> Fault | None:
        """The fault that was told first, if there is one and the store says so in time."""
        self._store.allow(seconds)
        with suppress(StoreLostError):
            if self._store.has(self._key):
                fault = self._store.told(self._key)
                return replace(fault, replica=None) if fault.replica == self._replica else fault
        return None

    def wait(self, work: dist.Work, timeout: timedelta) -> None:
        """Waits for a collective on a CPU. Raises RuntimeError as ``work.wait(timeout)`` does,
        ConnectionError with a fault that is told meanwhile."""
        end = time.monotonic() + timeout.total_seconds()
        while True:
            left = timedelta(seconds=max(end - time.monotonic(), 1e-3))
            try:
                work.wait(min(SLICE, left))
                return
            except RuntimeError:
                if left <= SLICE:
                    raise
            if work.is_completed():  # meanwhile, or with an error, which it raises again
                work.wait()
                return
            fault = self.found(left.total_seconds())
            if fault is not None:
                raise ConnectionError(str(fault.raised()))


def wait_for(
    work: dist.Work, timeout: timedelta | None, what: str, faults: ReplicaFaults | None = None
) -> None:
    """Waits for ``work`` on a CPU. Raises ConnectionError where it takes longer, or fails, and with
    what is found of ``faults``. ``timeout``: None on a GPU, where the current stream waits."""
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
