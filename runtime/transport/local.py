"""One process alone: nobody to send to."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

from .message import PostedMessages


class LocalTransport:
    """The transport of a program with one rank, without ``torch.distributed``."""

    rank = 0
    size = 1

    def send(self, tensor: Tensor, peer: int) -> NoReturn:
        raise ValueError(f"one process has no rank {peer} to send to")

    def recv(self, buffer: Tensor, peer: int) -> NoReturn:
        raise ValueError(f"one process has no rank {peer} to receive from")

    def messages(self) -> PostedMessages:
        return PostedMessages(self)

    def releasing(self, buffer: Tensor) -> None:
        return None

    def renew(self) -> None:
        pass

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        pass

    def share(self, value: Any, source: int) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass

    def clock_offset(self) -> float:
        return 0.0

    def close(self) -> None:
        pass
