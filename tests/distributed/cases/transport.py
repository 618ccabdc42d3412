"""What the tests of the Gloo transport run on both of two ranks."""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor

from pipeloom.runtime.transport import Routes, Transport, connect
from pipeloom.runtime.transport.gloo import SHORT

SIZES = (1, SHORT - 1, SHORT, SHORT + 1, 7)
MANY = 64  # messages under way


def transport(seconds: float = 60.0) -> Transport:
    return connect(Routes.of({(0, 1), (1, 0)}, (), seconds), torch.device("cpu"))


def message(number: int, size: int) -> Tensor:
    return torch.full((size,), number, dtype=torch.uint8)


def messages() -> tuple[list[bool], bool]:
    return mixed_sizes(), many_under_way()


def mixed_sizes() -> list[bool]:
    """Both ranks send to each other, wait for the last message first."""
    between = transport()
    peer = 1 - between.rank
    wanted = [message(n, size) for n, size in enumerate(SIZES)]
    buffers = [torch.empty_like(m) for m in wanted]
    posted = [between.recv(buffer, peer) for buffer in buffers]
    sent = [between.send(m, peer) for m in wanted]
    for handle in (*reversed(posted), *reversed(sent)):
        handle.wait()
    between.close()
    return [torch.equal(a, b) for a, b in zip(buffers, wanted, strict=True)]


def many_under_way() -> bool:
    """Rank 0 posts all its sends and rank 1 its receives only then; a later one keeps its place."""
    between = transport()
    if between.rank == 0:
        sent = [between.send(message(n, SHORT), 1) for n in range(MANY)]
        sent.append(between.send(message(MANY, 1), 1))
        between.barrier()
        for handle in sent:
            handle.wait()
        between.close()
        return True
    between.barrier()
    buffers = [message(255, SHORT if n < MANY else 1) for n in range(MANY + 1)]
    for handle in [between.recv(buffer, 0) for buffer in buffers]:
        handle.wait()
    between.close()
    return all(torch.equal(b, message(n, len(b))) for n, b in enumerate(buffers))


def collectives() -> tuple[list[float], list[str], str]:
    """Ranks 0 and 2 sum among themselves; all gather, and get what rank 2 has."""
    between = connect(Routes.of((), {(0, 2)}, 60.0), torch.device("cpu"))
    tensor = torch.tensor([float(between.rank), 1.0])
    if between.rank != 1:
        between.all_reduce(tensor, (0, 2))
        between.all_reduce(tensor[:1], (0, 2))
        tensor[0] -= 1.0
    mine = f"rank {between.rank}"
    result = tensor.tolist(), between.gather(mine), between.share(mine, 2)
    between.close()
    return result


def ends_halfway() -> None:
    between = transport()
    if between.rank == 1:
        os._exit(3)
    between.recv(message(0, 9), 1).wait()


def is_kept_waiting() -> None:
    between = transport(seconds=0.5)
    if between.rank == 1:
        time.sleep(60)
    between.recv(message(0, 9), 1).wait()


def is_sent_another_size() -> None:
    between = transport()
    if between.rank == 1:
        between.send(message(0, 8), 0).wait()
        between.barrier()
    between.recv(message(0, 9), 1).wait()
