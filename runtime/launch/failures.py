"""Names of launched processes in error messages, and the choice of the failure to report."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from pipeloom.ir.errors import InputError, PipeloomError, in_words

from ..errors import LaunchError


@dataclass(frozen=True, slots=True)
class Names:
    """The names of processes in error messages, such as "rank 2" or "replica 1, rank 2".

    There are ``ranks`` processes in each of ``replicas`` replicas, numbered replica by replica.
    """

    ranks: int
    replicas: int

    @property
    def count(self) -> int:
        return self.ranks * self.replicas

    def check(self, size: int) -> None:
        """Raises InputError if torchrun has not started ``count`` processes.

        ``size``: the number of processes that it has started.
        """
        if size != self.count:
            times = f" times {self.replicas} replicas" if self.replicas > 1 else ""
            raise InputError(
                f"WORLD_SIZE: expected {self.count}, the program's ranks{times}, got {size}"
            )

    def of(self, *processes: int) -> str:
        if self.replicas == 1:
            return f"rank {', '.join(map(str, processes))}"
        places = (divmod(process, self.ranks) for process in processes)
        return "; ".join(f"replica {replica}, rank {rank}" for replica, rank in places)

    def told(self, process: int, text: str) -> str:
        """Returns the message ``text`` prefixed by the name of ``process``.

        If ``text`` already begins with this name, or with the rank within the replica, that is
        replaced.
        """
        of = self.of(process)
        own = text.removeprefix(f"{of}: ").removeprefix(f"process {process}, ")
        own = own.removeprefix(f"rank {process % self.ranks}: ")
        return f"{of}: {own}"


def failure_of(rank: int, names: Names, error: BaseException) -> LaunchError:
    """Returns the LaunchError to report for the ``error`` that process ``rank`` raised.

    If ``error`` was caused by another rank, the LaunchError names that rank. Must be called while
    the exception is handled, as the result includes the traceback.
    """
    replica, own = divmod(rank, names.ranks)
    process: int | None = getattr(error, "process", None)
    rank = replica * names.ranks + getattr(error, "rank", own) if process is None else process
    return LaunchError(
        names.told(rank, in_words(error)),
        rank=rank,
        details=traceback.format_exc(),
        exit_code=error.exit_code if isinstance(error, PipeloomError) else 1,
        moment=time.monotonic(),
        ours=isinstance(error, PipeloomError),
    )


def earliest(failures: Sequence[LaunchError]) -> LaunchError:
    """Returns the failure to report: of several ``failures``, the one that happened first.

    If its process died without a message, the first error of pipeloom's that another process
    reported is appended.
    """
    first = min(failures, key=lambda failure: failure.moment)
    peers = [f for f in failures if f.ours]
    if first.moment > 0.0 or not peers:
        return first
    peer = min(peers, key=lambda failure: failure.moment)
    return LaunchError(f"{first}; {peer}", rank=first.rank)
