"""What the failure tests run on every rank."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Program, timed
from pipeloom.runtime import Pipeline, defer
from tests.support.by_hand import by_hand
from tests.support.inside import LinearRule
from tests.support.processes import until
from tests.support.schedules import schedule

RANKS = 3
Hang = Callable[[], None]
SGD = partial(torch.optim.SGD, lr=0.1)
_MADE: list[Pipeline] = []  # keeps connections open until all ranks have ended


def in_turn(functions: Sequence[Callable[[Hang], object]], folder: str) -> list[str]:
    """The error that each function raises on this rank, after its type and the rank that it names.

    Each function gets a function in which this rank hangs until another one has ended, and which
    then raises. The next one begins when all have ended.
    """
    found, rank = [], dist.get_rank()
    for i, function in enumerate(functions):
        marks = [Path(folder, f"{i} of {other}") for other in range(dist.get_world_size())]
        try:
            function(partial(_hang, marks[:rank] + marks[rank + 1 :]))
            found.append("")
        except Exception as error:
            found.append(f"{type(error).__name__} {getattr(error, 'rank', None)}: {error}")
        marks[rank].touch()
        until(lambda marks=marks: all(mark.exists() for mark in marks))  # type: ignore[misc]
        _MADE.clear()
    return found


def _hang(others: Sequence[Path]) -> None:
    until(lambda: any(mark.exists() for mark in others))
    raise RuntimeError("another rank has ended")


class Odd(nn.Linear):
    """Applies ``odd`` to the output from the third forward on, that of microbatch 1; the first is
    for shapes."""

    def __init__(self, odd: Callable[[Tensor], Any]) -> None:
        super().__init__(4, 4)
        self.odd, self.calls = odd, 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        out = super().forward(x)
        return out if self.calls < 3 else self.odd(out)


class FailingRule(LinearRule):
    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        raise ValueError("a bad product")


def product(x: Tensor, weight: Tensor) -> Any:
    if has_torch_function((x, weight)):
        return handle_torch_function(product, (x, weight), x, weight)
    return nn.functional.linear(x, weight)


defer(product, lambda x, weight: (FailingRule(weight), x))


class FailingWeight(nn.Linear):
    """Raises when its weight's gradient is computed."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)

    def forward(self, x: Tensor) -> Any:
        return product(x, self.weight)


def throws(*_: object) -> Any:
    raise ValueError("a bad batch")


def throws_in_b(out: Tensor) -> Tensor:
    out.register_hook(throws)
    return out


def is_longer(out: Tensor) -> Tensor:
    return torch.cat([out, out])


def program(family: str = "1f1b", ranks: int = 2, **options: Any) -> Program:
    count = 4 if ranks == 2 else ranks
    return compile_schedule(schedule(family, ranks, count), **options)


def made() -> Program:
    return program(ranks=RANKS)


def linears(count: int = 2) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 4) for _ in range(count)]


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean()


def pipeline(plan: Program, stages: Sequence[nn.Module], **options: Any) -> Pipeline:
    found = Pipeline(plan, stages, **{"loss": squared, "timeout": 60.0} | options)
    _MADE.append(found)
    return found


def step(pipe: Pipeline, rows: int = 8) -> None:
    x = torch.ones(rows, 4, requires_grad=True)
    pipe.step(x, target=torch.zeros(rows, 4))


# each ends a launch of two ranks, in the second microbatch of rank 0
def is_killed(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_stopped(_: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def drops_its_connections(_: object) -> None:
    drop(socket.AF_INET, socket.SOCK_STREAM)


def ends(odd: Callable[[Tensor], Any], timeout: float) -> None:
    step(pipeline(program(), [Odd(odd), nn.Linear(4, 4)], timeout=timeout))


def drop(family: socket.AddressFamily, kind: socket.SocketKind) -> None:
    """Shut down this process's connections of a kind, then hang."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as found:
            if found.family == family and found.type == kind:
                found.getpeername()  # raises for listening sockets
                found.shutdown(socket.SHUT_RDWR)
    time.sleep(60)


# two ranks run these one after the other; one of them fails
def trains(stages: Sequence[nn.Module], _: Hang) -> None:
    step(pipeline(program("zb-h1"), stages))


def differs_in_its_program(_: Hang) -> None:
    pipeline(program(("1f1b", "gpipe")[dist.get_rank()]), linears())


def differs_in_an_option(_: Hang) -> None:
    pipeline(program(), linears(), param_dtype=(None, torch.bfloat16)[dist.get_rank()])


def is_left_alone(hang: Hang) -> None:
    """Rank 1 constructs its pipeline and exchanges shapes, then runs one step too few."""
    a_step_too_few(pipeline(program(), linears(), timeout=2.0), hang)


def a_step_too_few(running: Pipeline, hang: Hang) -> None:
    """Rank 1 hangs before its second step."""
    step(running)
    if dist.get_rank() == 1:
        hang()
    step(running)


def gives_no_verdict(hang: Hang) -> None:
    """Rank 1 hangs in its first step, when rank 0 is at its next forwards."""
    running = stepping_ahead()
    if dist.get_rank() == 1:
        running.optimizers[1].register_step_pre_hook(lambda *_: hang())
    for _ in range(2):
        step(running)


def asks_for_a_state_alone(hang: Hang) -> None:
    running = stepping_ahead()
    step(running)
    if dist.get_rank() == 1:
        hang()
    running.modules[0].state_dict()


def stepping_ahead() -> Pipeline:
    plan = program(post_validation=True)
    return pipeline(plan, linears(), optimizer=SGD, clip_grad_norm=1.0, timeout=2.0)


def alone() -> Program:
    """Two stages on one rank."""
    text = "0F{0} 1F{0} 1B{0} 0B{0} 1W{0} 0W{0}"
    return compile_schedule(timed(by_hand(" ".join(map(text.format, range(4))))))


def waits_for_another_replica(hang: Hang) -> None:
    a_step_too_few(replicas(wraps=False, timeout=2.0), hang)


def gathers_shards_alone(hang: Hang) -> None:
    """Gather shards before a step."""
    a_step_too_few(replicas(wraps=True, timeout=2.0), hang)


def replicas(*, wraps: bool, **options: Any) -> Pipeline:
    """Two replicas of one rank, with whole stages or shards, whose group has a longer timeout."""
    from torch.distributed.device_mesh import DeviceMesh  # takes seconds, for few cases
    from torch.distributed.fsdp import fully_shard

    groups = [dist.new_group([rank]) for rank in range(2)]
    both, stages = dist.new_group([0, 1]), linears()
    mesh = DeviceMesh.from_group(both, "cpu")
    for stage in stages if wraps else ():
        fully_shard(stage, mesh=mesh)
    plan = compile_schedule(alone().schedule, data_parallel=True)
    own = groups[dist.get_rank()]
    return pipeline(plan, stages, group=own, data_group=both, **options)


Fault = Callable[[Pipeline, Tensor, Tensor], None]


def of_one_replica(fault: Fault, wraps: bool, _: Hang) -> None:
    """The fault of one replica, in the first step or the next; replicas continue after a refused
    first step."""
    x, y = torch.ones(8, 4), torch.zeros(8, 4)
    running = replicas(wraps=wraps, optimizer=SGD, timeout=5.0)
    with pytest.raises(InputError, match=r"^update: expected one value on all replicas, got"):
        running.step(x, target=y, update=dist.get_rank() == 0)
    fault(running, x, y)
    running.step(x, target=y)


def missing_target(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first replica has no target."""
    running.step(x, target=None if dist.get_rank() == 0 else y)


def evaluates_a_bad_target(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first replica's target cannot be cut."""
    running.eval(x, target=y[:-1] if dist.get_rank() == 0 else y)


def evaluates_a_bad_batch(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first replica's batch does not fit its stage, which only the ranks of its shapes
    notice."""
    running.eval(x[:, :3] if dist.get_rank() == 0 else x, target=y)


# three ranks run these one after the other; one fails, well before the message timeout
def of_one_rank(plan: str, fault: Fault, _: Hang) -> None:
    """``plan``: a family, and whether the next step waits for its norm."""
    x, y = torch.ones(6, 4), torch.zeros(6, 4)
    running = three(plan)
    if "ahead" in plan:  # a verdict is pending
        running.step(x, target=y)
    fault(running, x, y)


def three(plan: str = "1f1b") -> Pipeline:
    family, _, ahead = plan.partition(" ")
    made_of = program(family, RANKS, post_validation=bool(ahead))
    return pipeline(made_of, linears(RANKS), optimizer=SGD, clip_grad_norm=1.0, timeout=300.0)


def bad_target(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The last rank has no target."""
    running.step(x, target=None if running.rank == RANKS - 1 else y)


def other_shape(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first rank's batch is longer than in the step before."""
    running.step(x, target=y)
    running.step(torch.cat([x, x]) if running.rank == 0 else x, target=y)


def bad_option(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The middle stage does not accept this argument, in its second step."""
    running.step(x, target=y)
    running.step(x, target=y, **({"scale": 2.0} if running.rank == 1 else {}))


def bad_metric(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The loss does not accept this argument: an error in the middle of a step."""
    running.step(x, target=y)
    running.step(x, target=y, loss_kwargs={"weight": 2.0})


def updates_unlike(_: Hang) -> None:
    """In the first step, after which all ranks continue; not checked in later steps, or without
    ``check``."""
    x, y = torch.ones(6, 4), torch.zeros(6, 4)
    running = three()
    weights = [p.detach().clone() for p in running.modules[running.rank].parameters()]
    with pytest.raises(InputError, match=r"^update: expected one value on all ranks, got"):
        running.step(x, target=y, update=running.rank == 0)
    assert all(map(torch.equal, weights, running.modules[running.rank].parameters()))
    running.step(x, target=y)
    running._transport.gather = None  # type: ignore[method-assign, assignment]
    running.step(x, target=y)
    unasked = pipeline(made(), linears(RANKS), check=False)  # no norm waits for another's update
    unasked.step(x, target=y, update=running.rank == 0)


def steps_by_another_program(_: Hang) -> None:
    """Another program than rank 1's, which steps with the pipeline's own."""
    running, other = three(), program("gpipe", RANKS)
    given = None if running.rank == 1 else other
    running.step(torch.ones(6, 4), target=torch.zeros(6, 4), program=given)


# three ranks run these one after the other; rank 1 constructs no pipeline
def lacks_a_stage(_: Hang) -> None:
    whole = linears(RANKS)
    pipeline(made(), {0: whole[0]} if dist.get_rank() == 1 else whole)  # type: ignore[arg-type]


def has_a_bad_optimizer(_: Hang) -> None:
    pipeline(made(), linears(RANKS), optimizer=throws if dist.get_rank() == 1 else None)


def does_not_come(hang: Hang) -> None:
    if dist.get_rank() == 1:
        hang()
    pipeline(made(), linears(RANKS), timeout=1.0)
