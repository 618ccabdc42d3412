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

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Program, timed
from pipeloom.ir.errors import in_words, of_rank
from pipeloom.runtime import Pipeline
from pipeloom.runtime.executor.deferred_ops import Linear, defer
from tests.support.by_hand import by_hand
from tests.support.schedules import schedule


class Failing(nn.Module):
    """Throws on its ``after``-th call."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.left = after

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise ValueError("a bad batch")
        out: Tensor = self.linear(x)
        return out


class Wider(nn.Module):
    """Gives more rows from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x if self.calls < 3 else torch.cat([x, x])


class _Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        raise ValueError("a bad gradient")


class FailingBackward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Broken.apply(super().forward(x))  # type: ignore[no-untyped-call]
        return out


class FailingProduct(Linear):
    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        raise ValueError("a bad product")


class FailingWeight(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight)


def product(x: Tensor, weight: Tensor) -> Tensor:
    if has_torch_function((x, weight)):
        out: Tensor = handle_torch_function(product, (x, weight), x, weight)
        return out
    return nn.functional.linear(x, weight)


defer(product, lambda x, weight: (FailingProduct(weight), x))


class Doing(nn.Linear):
    """Calls ``action`` in its third forward, that of microbatch 1."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(4, 4)
        self.action, self.calls = action, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 3:
            self.action()
        return super().forward(x)


def program(family: str = "1f1b") -> Program:
    return compile_schedule(schedule(family, 2, 4))


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean()


def pipeline(
    first: nn.Module, last: nn.Module, timeout: float = 60.0, family: str = "1f1b"
) -> Pipeline:
    return Pipeline(program(family), [first, last], loss=squared, timeout=timeout)


def step(pipe: Pipeline, rows: int = 8) -> None:
    x = torch.ones(rows, 4, requires_grad=True)
    pipe.step(x, target=torch.zeros(rows, 4))


def throws_in_a_forward() -> None:
    """The shape exchange runs the first stage once, so its third call is that of microbatch 1."""
    step(pipeline(Failing(after=3), nn.Linear(4, 4)))


def throws_in_b() -> None:
    step(pipeline(nn.Linear(4, 4), FailingBackward(4, 4), family="zb-h1"))


def throws_in_w() -> None:
    step(pipeline(nn.Linear(4, 4), FailingWeight(4, 4), family="zb-h1"))


def is_killed() -> None:
    kill = partial(os.kill, os.getpid(), signal.SIGKILL)
    step(pipeline(Doing(kill), nn.Linear(4, 4)))


def is_stopped() -> None:
    """Rank 0 sleeps for good in the middle of its second microbatch."""
    stop = partial(os.kill, os.getpid(), signal.SIGSTOP)
    step(pipeline(Doing(stop), nn.Linear(4, 4), timeout=2.0))


def drops_its_connections() -> None:
    shut = partial(drop, socket.AF_INET, socket.SOCK_STREAM)
    step(pipeline(Doing(shut), nn.Linear(4, 4), timeout=10.0))


def drop(family: socket.AddressFamily, kind: socket.SocketKind) -> None:
    """Shuts this process's connections of a kind, then hangs."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as found:
            if found.family == family and found.type == kind:
                found.getpeername()  # raises for what only listens
                found.shutdown(socket.SHUT_RDWR)
    time.sleep(60)


def differs_in_its_program() -> None:
    pipeline(nn.Linear(4, 4), nn.Linear(4, 4), family=("1f1b", "gpipe")[dist.get_rank()])


def differs_in_an_option() -> None:
    dtype = (None, torch.bfloat16)[dist.get_rank()]
    Pipeline(program(), [nn.Linear(4, 4)] * 2, loss=squared, param_dtype=dtype)


def in_turn(functions: Sequence[Callable[[], None]]) -> list[str]:
    """What this rank raises in each, as a launch would tell it."""
    said = []
    for function in functions:
        try:
            function()
            said.append("")
        except Exception as error:
            said.append(of_rank(getattr(error, "rank", dist.get_rank()), in_words(error)))
    return said


def is_left_alone() -> None:
    """Rank 1 makes its pipeline and takes part in the shapes, then runs a step too few."""
    a_step_too_few(pipeline(nn.Linear(4, 4), nn.Linear(4, 4), timeout=2.0))


def a_step_too_few(running: Pipeline) -> None:
    """Rank 1 hangs before its second step."""
    step(running)
    if dist.get_rank() == 1:
        time.sleep(60)
    step(running)


def changes_a_shape() -> None:
    step(pipeline(nn.Sequential(nn.Linear(4, 4), Wider()), nn.Linear(4, 4)))


def alone(microbatches: int = 4) -> Program:
    """Two stages, both on one rank."""
    text = "0F{0} 1F{0} 1B{0} 0B{0} 1W{0} 0W{0}"
    return compile_schedule(timed(by_hand(" ".join(map(text.format, range(microbatches))))))


def gives_no_verdict() -> None:
    """Rank 1 hangs in its first step, when rank 0 is at its next forwards."""
    running = stepping_ahead()
    if dist.get_rank() == 1:
        running.optimizers[1].register_step_pre_hook(lambda *_: time.sleep(60))
    for _ in range(2):
        step(running)


def waits_for_another_replica() -> None:
    a_step_too_few(replicas([nn.Linear(4, 4) for _ in range(2)], dist.group.WORLD, 2.0))


def gathers_shards_alone() -> None:
    """Before a step."""
    a_step_too_few(sharded())


def sharded() -> Pipeline:
    """Two replicas of one rank, whose group has more patience than the pipeline."""
    from torch.distributed.device_mesh import init_device_mesh  # seconds, for two cases
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    stages = [fully_shard(nn.Linear(4, 4), mesh=mesh) for _ in range(2)]
    return replicas(stages, mesh.get_group(), 2.0)


def asks_for_a_state_alone() -> None:
    running = stepping_ahead()
    step(running)
    if dist.get_rank() == 0:
        running.modules[0].state_dict()
    time.sleep(60)


def stepping_ahead() -> Pipeline:
    return Pipeline(
        compile_schedule(schedule("1f1b", 2, 4), post_validation=True),
        [nn.Linear(4, 4), nn.Linear(4, 4)],
        loss=squared,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        clip_grad_norm=1.0,
        timeout=2.0,
    )


RANKS = 3


def bad_target(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The last rank has none."""
    running.step(x, target=None if running.rank == RANKS - 1 else y)


def bad_batch(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first rank's cannot be cut into microbatches."""
    running.step(x[:-1] if running.rank == 0 else x, target=y)


def other_shape(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first rank's is longer than in the step before."""
    running.step(x, target=y)
    running.step(torch.cat([x, x]) if running.rank == 0 else x, target=y)


def bad_option(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The stage in between takes no such argument, in its second step."""
    running.step(x, target=y)
    running.step(x, target=y, **({"scale": 2.0} if running.rank == 1 else {}))


def bad_metric(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The loss takes no such argument: an error in the midst of a step."""
    running.step(x, target=y)
    running.step(x, target=y, loss_kwargs={"weight": 2.0})


# in activations' messages, in the norm's, in weights'
TRIED = [
    *(("1f1b", fault) for fault in (bad_target, bad_batch, other_shape, bad_option, bad_metric)),
    ("zb-h1 ahead", bad_target),
    ("zb-h1 ahead", other_shape),
    ("weipipe-interleave", other_shape),
]


def ends_with_its_peers(patience: float) -> list[tuple[str, str, int | None]]:
    """Of each plan and fault, this rank's error: its kind, its text and whose it is."""
    x, y = torch.ones(6, 4), torch.zeros(6, 4)
    found = []
    for plan, fault in TRIED:
        running = _three(plan, patience)
        if "ahead" in plan:  # a verdict is to come
            running.step(x, target=y)
        try:
            fault(running, x, y)
        except Exception as error:
            rank = getattr(error, "rank", None)
            found.append((type(error).__name__, str(error), rank))
    return found


def _three(plan: str, patience: float) -> Pipeline:
    family, _, ahead = plan.partition(" ")
    made_of = schedule(family, RANKS, RANKS)
    torch.manual_seed(0)
    return Pipeline(
        compile_schedule(made_of, post_validation=bool(ahead)),
        [nn.Linear(4, 4) for _ in range(RANKS)],
        loss=squared,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        clip_grad_norm=1.0,
        timeout=patience,
    )


def missing_target(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first replica has none."""
    running.step(x, target=None if dist.get_rank() == 0 else y)


def evaluates_a_bad_target(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first replica's cannot be cut."""
    running.eval(x, target=y[:-1] if dist.get_rank() == 0 else y)


def evaluates_a_bad_batch(running: Pipeline, x: Tensor, y: Tensor) -> None:
    """The first replica's does not go into its stage, which only its shapes' ranks see."""
    running.eval(x[:, :3] if dist.get_rank() == 0 else x, target=y)


def updates_in_one_replica(running: Pipeline, x: Tensor, y: Tensor) -> None:
    running.step(x, target=y, update=dist.get_rank() == 0)


def ends_with_its_replicas(patience: float, wraps: bool, name: str) -> list[tuple[str, str, float]]:
    """With whole stages or shards: the error of replicas that update unlike, then of a fault, in it
    or in the step after it, and its seconds."""
    from torch.distributed.device_mesh import DeviceMesh  # seconds, for two cases
    from torch.distributed.fsdp import fully_shard

    x, y = torch.ones(8, 4), torch.zeros(8, 4)
    group = dist.new_group([0, 1])
    mesh = DeviceMesh.from_group(group, "cpu")
    wrap: Callable[..., nn.Module] = partial(fully_shard, mesh=mesh) if wraps else lambda m: m
    sgd = partial(torch.optim.SGD, lr=0.1)
    running = replicas([wrap(nn.Linear(4, 4)) for _ in range(2)], group, patience, optimizer=sgd)
    fault: Callable[[Pipeline, Tensor, Tensor], None] = globals()[name]
    found = []
    for each in (updates_in_one_replica, fault):
        began = time.monotonic()
        try:
            each(running, x, y)
            running.step(x, target=y)
        except Exception as error:
            found.append((type(error).__name__, str(error), time.monotonic() - began))
    dist.barrier()  # nobody's connections are closed before all have ended
    return found


def replicas(
    stages: Sequence[nn.Module], data_group: Any, patience: float, **options: Any
) -> Pipeline:
    """Two replicas of one rank."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    return Pipeline(
        compile_schedule(alone().schedule, data_parallel=True),
        stages,
        loss=squared,
        group=groups[dist.get_rank()],
        data_group=data_group,
        timeout=patience,
        **options,
    )


def steps_unlike() -> tuple[list[str], list[str]]:
    return updates_unlike(60.0), programs_unlike()


def updates_unlike(patience: float) -> list[str]:
    """In the first step, after which all can go on; nobody asks in a later one, or without
    ``check``."""
    x, y = torch.ones(6, 4), torch.zeros(6, 4)
    found = []
    running = _three("1f1b", patience)
    weights = [p.detach().clone() for p in running.modules[running.rank].parameters()]
    try:
        running.step(x, target=y, update=running.rank == 0)
    except InputError as error:
        found.append(str(error))
    assert all(map(torch.equal, weights, running.modules[running.rank].parameters()))
    running.step(x, target=y)
    running._transport.gather = None  # type: ignore[method-assign, assignment]
    running.step(x, target=y)
    stages = [nn.Linear(4, 4) for _ in range(RANKS)]  # no norm, so none waits for another's update
    unasked = Pipeline(made(), stages, loss=squared, check=False)
    unasked.step(x, target=y, update=running.rank == 0)
    return found


def programs_unlike() -> list[str]:
    """What is said in the first step where rank 1 steps by the pipeline's own program, and the
    others by another one."""
    x, y = torch.ones(6, 4), torch.zeros(6, 4)
    other = compile_schedule(schedule("gpipe", RANKS, RANKS))
    tried: list[dict[str, Any]] = [{"program": other}, {"microbatches": 2}]
    found = []
    for given in tried:
        running = _three("1f1b", 300.0)
        try:
            running.step(x, target=y, **({} if running.rank == 1 else given))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


class BadOptimizer:
    def __init__(self, parameters: object) -> None:
        raise ValueError("a bad optimizer")


def makes_no_pipeline(patience: float) -> list[tuple[str, str, int | None]]:
    """Of each fault of rank 1 while all make their pipelines, this rank's error: its kind, its text
    and whose it is."""
    culprit = dist.get_rank() == 1
    whole = [nn.Linear(4, 4) for _ in range(RANKS)]
    one: dict[int, nn.Module] = {0: whole[0]}
    makes: list[Callable[[], object]] = [
        lambda: Pipeline(made(), one if culprit else whole, loss=squared),
        lambda: Pipeline(made(), whole, optimizer=BadOptimizer if culprit else None, loss=squared),  # type: ignore[arg-type]
        lambda: (
            time.sleep(3 * patience)
            if culprit
            else Pipeline(made(), whole, loss=squared, timeout=patience)
        ),
    ]
    found = []
    for make in makes:
        try:
            make()
        except Exception as error:
            rank = getattr(error, "rank", None)
            found.append((type(error).__name__, str(error), rank))
    return found


def made() -> Program:
    return compile_schedule(schedule("1f1b", RANKS, RANKS))
