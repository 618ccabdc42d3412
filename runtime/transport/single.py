"""The transport of a program with one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .base import Handle, Routes

if TYPE_CHECKING:
    from .faults import Faults, RankFault


class SingleTransport:
    """Collectives over one rank; sends and receives are impossible."""

    rank, size = 0, 1
    replicated = False
    faults: Faults | None = None

    def send(self, tensor: Tensor, peer: int) -> Handle:
        raise ValueError(f"the only rank cannot send to rank {peer}")

    def recv(self, buffer: Tensor, peer: int) -> Handle:
        raise ValueError(f"the only rank cannot receive from rank {peer}")

    def releasing(self, buffer: Tensor) -> None:
        return None

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        pass

    def share(self, value: Any, source: int) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass

    def fail(self, fault: RankFault, *, asks: bool) -> RankFault:
        return fault

    def beside(self, routes: Routes) -> SingleTransport:
        return SingleTransport()

    def close(self) -> None:
        pass
