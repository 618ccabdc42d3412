"""Messages of all sizes arrive whole and in order on every transport; what goes wrong is said."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pipeloom import compile_schedule
from pipeloom.runtime import LaunchError, Routes, Transport, connect, launch_ranks
from tests.support.hub import on_threads, own
from tests.support.inside import SHORT, StagedGlooTransport
from tests.support.models import TinyTransformer, named, reference, trained, worst
from tests.support.schedules import schedule

CPU = torch.device("cpu")
Opened: TypeAlias = Callable[[Routes], Transport]

SIZES = (1, SHORT - 1, SHORT, SHORT + 1, 7)
MANY = 64  # messages under way


def gloo(routes: Routes) -> Transport:
    return connect(routes, CPU)


def in_hub(routes: Routes) -> Transport:
    between = own()
    assert between is not None
    return between.beside(routes)


def staged(routes: Routes) -> Transport:
    assert dist.group.WORLD is not None
    return StagedGlooTransport(routes, CPU, dist.group.WORLD)


def both_ways(seconds: float = 60.0) -> Routes:
    return Routes.of({(0, 1), (1, 0)}, (), seconds)


def message(number: int, size: int) -> Tensor:
    return torch.full((size,), number, dtype=torch.uint8)


def messages(opened: Opened) -> tuple[list[bool], bool]:
    """Of ranks 0 and 1; others meet them where all do."""
    between = opened(both_ways())
    beside = between.beside(both_ways())
    if between.rank > 1:
        between.barrier()
        return [], True
    found = mixed_sizes(beside), many_under_way(between)
    between.close()
    return found


def mixed_sizes(between: Transport) -> list[bool]:
    """Both ranks send to each other, wait for the last message first."""
    peer = 1 - between.rank
    wanted = [message(n, size) for n, size in enumerate(SIZES)]
    buffers = [torch.empty_like(m) for m in wanted]
    posted = [between.recv(buffer, peer) for buffer in buffers]
    sent = [between.send(m, peer) for m in wanted]
    for handle in (*reversed(posted), *reversed(sent)):
        handle.wait()
    between.close()
    return [torch.equal(a, b) for a, b in zip(buffers, wanted, strict=True)]


def many_under_way(between: Transport) -> bool:
    """Rank 0 posts all its sends and rank 1 its receives only then; a later one keeps its place."""
    if between.rank == 0:
        sent = [between.send(message(n, SHORT), 1) for n in range(MANY)]
        sent.append(between.send(message(MANY, 1), 1))
        between.barrier()
        for handle in sent:
            handle.wait()
        return True
    between.barrier()
    buffers = [message(255, SHORT if n < MANY else 1) for n in range(MANY + 1)]
    for handle in [between.recv(buffer, 0) for buffer in buffers]:
        handle.wait()
    return all(torch.equal(b, message(n, len(b))) for n, b in enumerate(buffers))


def collectives(opened: Opened) -> tuple[list[float], list[str], str]:
    """Ranks 0 and 2 sum among themselves; all gather, and get what rank 2 has."""
    between = opened(Routes.of((), {(0, 2)}, 60.0))
    tensor = torch.tensor([float(between.rank), 1.0])
    if between.rank != 1:
        between.all_reduce(tensor, (0, 2))
        between.all_reduce(tensor[:1], (0, 2))
        tensor[0] -= 1.0
    mine = f"rank {between.rank}"
    result = tensor.tolist(), between.gather(mine), between.share(mine, 2)
    between.close()
    return result


def exchanged(opened: Opened) -> tuple[Any, Any]:
    return messages(opened), collectives(opened)


def ends_halfway(opened: Opened) -> None:
    between = opened(both_ways())
    if between.rank == 1:
        os._exit(3)
    between.recv(message(0, 9), 1).wait()


def is_kept_waiting(opened: Opened) -> None:
    between = opened(both_ways(seconds=0.5))
    if between.rank == 1:
        time.sleep(1.5)
    between.recv(message(0, 9), 1).wait()


def is_sent_another_size(opened: Opened) -> None:
    between = opened(both_ways())
    if between.rank == 1:
        between.send(message(0, 8), 0).wait()
        between.barrier()
    between.recv(message(0, 9), 1).wait()


WAYS: dict[str, tuple[Callable[..., dict[int, Any]], Opened]] = {
    "gloo": (launch_ranks, gloo),
    "staged": (launch_ranks, staged),
    "hub": (on_threads, in_hub),
}


on_each = pytest.mark.parametrize("way", WAYS)


def over(way: str, function: Callable[..., Any], ranks: int, timeout: float = 60) -> dict[int, Any]:
    """Each rank calls it with what opens such a transport."""
    launch, opened = WAYS[way]
    return launch(function, ranks, (opened,), timeout=timeout)


@on_each
def test_messages_arrive_in_any_order_of_waits_many_in_order_and_collectives_meet(way: str) -> None:
    names = [f"rank {rank}" for rank in range(3)]
    arrived = [True] * len(SIZES), True
    ends, middle = ([3.0, 2.0], names, "rank 2"), ([1.0, 1.0], names, "rank 2")
    found = over(way, exchanged, 3, timeout=120)
    assert found == {0: (arrived, ends), 1: (arrived, middle), 2: (([], True), ends)}


def test_a_peer_that_ends_is_named() -> None:
    with pytest.raises(LaunchError, match=r"rank 1 died with exit code 3"):
        over("gloo", ends_halfway, 2)


@on_each
def test_a_late_message_ends_the_wait(way: str) -> None:
    with pytest.raises(
        LaunchError, match=r"^rank 0: TimeoutError: Timed out waiting 500ms for recv"
    ):
        over(way, is_kept_waiting, 2)


def trains(opened: Opened) -> float:
    """How far parameters of a pipeline over a transport that it is given are from one process's."""
    between, source = opened(Routes()), TinyTransformer()
    program = compile_schedule(schedule("zb-h1", 2, 4), tied=[(0, 1)])
    pipeline = trained(program, source, 3, transport=between)
    between.barrier()  # it stays open
    between.close()
    return worst(named(pipeline.modules), reference(source, 2, 4, steps=3, train=True)[1])


def test_a_pipeline_trains_as_one_process_over_a_transport_that_it_is_given() -> None:
    """Over Gloo and on threads: `tests/parity`."""
    assert max(over("staged", trains, 2, timeout=120).values()) <= 1e-12


def test_a_message_of_another_size_is_refused() -> None:
    for by in ("gloo", "staged"):
        with pytest.raises(LaunchError, match=r"rank [01]: \w+Error: .*[Cc]onnection"):
            over(by, is_sent_another_size, 2)
