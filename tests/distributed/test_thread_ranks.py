"""Thread ranks: pipelines on threads of one process."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.gpt import small
from pipeloom.cli import main
from pipeloom.cli.failures import INTERRUPTED
from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.runtime.errors import LaunchError
from pipeloom.runtime.launch.threads import INTERRUPT_GRACE, launch_local
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.profiling.profiler import measure_profile
from pipeloom.runtime.train.settings import RunSettings
from pipeloom.runtime.train.train import run_program
from pipeloom.runtime.transport import Routes, connect, store
from pipeloom.solver.families import build_family
from tests.distributed.cases.gradients import schedule
from tests.distributed.cases.remat import given_up
from tests.support.models import TinyTransformer

RANKS = 3


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(1)


def test_a_slowed_link_carries_one_message_at_a_time() -> None:
    took = launch_local(_three_messages, 2, link_time=lambda s, t, size: 20.0 * (size == 1000))
    assert took[1][0] >= 0.06
    assert took[1][1] == [0.0, 1.0, 2.0]


def _three_messages() -> tuple[float, list[float]]:
    between = connect(Routes.of({(0, 1)}, (), 30.0), torch.device("cpu"))
    between.barrier()
    begin = time.perf_counter()
    tensors = [torch.full((250,), float(i)) for i in range(3)]
    if between.rank == 0:
        handles = [between.send(t, 1) for t in tensors]
    else:
        tensors = [torch.empty(250) for _ in range(3)]
        handles = [between.recv(t, 0) for t in tensors]
    for handle in handles:
        handle.wait()
    return time.perf_counter() - begin, [t[-1].item() for t in tensors]


def test_what_draws_random_numbers_is_not_recomputed() -> None:
    with pytest.raises(LaunchError, match="'0F0': stage 0: expected no dropout") as failed:
        launch_local(_recomputes_dropout, 2, timeout=60)
    assert failed.value.exit_code == 2  # what was given is wrong


def _recomputes_dropout() -> None:
    stages = (StageProfile(1.0, 1.0, 1.0, t_r=1.0, m_r=0.1),) * 2
    plan = given_up(build_family("1f1b", Profile(stages, 2), 2), "R")
    modules = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.Linear(4, 4)]
    pipeline = Pipeline(compile_schedule(plan), modules, loss=nn.functional.mse_loss)
    pipeline.step(torch.randn(4, 4), target=torch.randn(4, 4))


@pytest.mark.parametrize("stages_as", ["eager", "aten"])
def test_a_stage_whose_output_had_no_gradient_says_what_was_frozen(stages_as: str) -> None:
    line = r"^rank 0: .*was float32\[2, 4\] without gradient when it was tried: requires_grad of"
    with pytest.raises(LaunchError, match=line):
        launch_local(_thaws_a_stage, 2, (stages_as,), timeout=60)


def _thaws_a_stage(stages_as: Any) -> None:
    pipeline = Pipeline(
        compile_schedule(schedule("1f1b", 2, 2)),
        [nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)],
        loss=nn.functional.mse_loss,
        stages_as=stages_as,
    )
    for _ in range(2):
        pipeline.step(torch.randn(4, 4), target=torch.randn(4, 4))
        for module in pipeline.modules.values():
            module.requires_grad_(True)


def test_the_first_failure_ends_the_others_waits() -> None:
    with pytest.raises(LaunchError, match=r"^rank 1: .*ZeroDivisionError") as failed:
        launch_local(_one_throws, RANKS, timeout=60)
    assert failed.value.rank == 1


def _one_throws() -> None:
    program = compile_schedule(schedule("1f1b", RANKS, 4), tied=[(0, RANKS - 1)])
    pipeline = Pipeline.from_source(program, TinyTransformer())
    inputs, targets = TinyTransformer().batch(0, 4)
    pipeline.step(inputs, target=targets)
    if pipeline.rank == 1:
        raise ZeroDivisionError
    pipeline.step(inputs, target=targets)


def test_a_rank_that_never_ends_is_named() -> None:
    with pytest.raises(LaunchError, match="no answer in time from rank 1"):
        launch_local(_one_sleeps, 2, timeout=0.5)


def _one_sleeps() -> None:
    if connect(Routes.of((), (), 30.0), torch.device("cpu")).rank == 1:
        time.sleep(10)


@dataclass(frozen=True)
class Growing(TinyTransformer):
    """One row more in each step."""

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return replace(TinyTransformer(), rows=1 + step).batch(step, microbatches)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_ends_the_ranks_before_it_goes_on() -> None:
    """Threads that computed on while Python ended aborted the process (-6)."""
    ended: list[int] = []
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch_local(_interrupted, 2, (ended,), timeout=60)
    assert sorted(ended) == [0, 1]
    assert time.monotonic() - began < INTERRUPT_GRACE


def _interrupted(ended: list[int]) -> None:
    """Both ranks wait for each other for ever; rank 1 has the process interrupted."""
    transport = connect(Routes.of((), (), 30.0), torch.device("cpu"))
    try:
        for count in itertools.count():
            transport.barrier()
            if transport.rank == 1 and count == 20:
                signal.raise_signal(signal.SIGINT)
    finally:
        time.sleep(0.3)  # as one that writes a checkpoint
        ended.append(transport.rank)


@pytest.mark.usefixtures("ctrl_c")
def test_a_rank_that_computes_on_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, by the command's exit code: Python's own end waits for it, or aborts."""
    done = threading.Event()
    with pytest.raises(LaunchError, match="no answer in time from rank 0"):
        launch_local(done.wait, 1, (30.0,), timeout=0.1)
    _ends_at_once(monkeypatch, done)


@pytest.mark.usefixtures("ctrl_c")
def test_what_a_rank_asks_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that missed another one aborted (-6) after its line."""
    done = threading.Event()
    with pytest.raises(store.StoreLostError):
        store.within(0.01, done.wait)
    _ends_at_once(monkeypatch, done)


def _ends_at_once(monkeypatch: pytest.MonkeyPatch, done: threading.Event) -> None:
    monkeypatch.setattr(main, "main", lambda told: INTERRUPTED)
    monkeypatch.setattr(os, "_exit", _leave)
    try:
        with pytest.raises(_Left, match=r"^130$"):
            main.command()
    finally:
        done.set()


class _Left(BaseException):
    """The process's end without Python's."""


def _leave(code: int) -> None:
    raise _Left(code)


def test_a_run_whose_shapes_vary() -> None:
    program = compile_schedule(schedule("1f1b", 2, 3), tied=[(0, 1)])
    settings = RunSettings(steps=3, local=True, varying_shapes=True)
    result = run_program(program, Growing(), settings)
    assert result is not None
    assert len(result.losses) == 3
    with pytest.raises(LaunchError, match="varying_shapes=True lets it"):
        run_program(program, Growing(), replace(settings, varying_shapes=False))


def test_a_profile_measured_on_threads() -> None:
    found = measure_profile(small(), stages=2, ranks=2, repeats=2, warmup=0, local=True)
    assert found.profile.ranks == 2
    assert found.profile.t_comm is not None
    assert found.profile.stages[0].m_b >= found.profile.stages[0].m_w > 0


def test_a_closed_pipeline_is_kept_by_neither_its_modules_nor_its_optimizers() -> None:
    """Their hooks that wait for a verdict before a state dict."""
    plan = compile_schedule(schedule("1f1b", 2, 2), tied=[(0, 1)], post_validation=True)
    for states in launch_local(_closed, 2, (plan,), timeout=60).values():
        assert states == (True, False)


def _closed(plan: Program) -> tuple[bool, bool]:
    """Whether the pipeline is there before and after it is closed and let go."""
    source = TinyTransformer()
    pipeline = Pipeline.from_source(plan, source, clip_grad_norm=1.0)
    inputs, targets = source.batch(0, 2)
    pipeline.step(inputs, target=targets)
    kept, there = (pipeline.modules, pipeline.optimizers), weakref.ref(pipeline)
    pipeline.close()
    before = there() is not None
    del pipeline
    gc.collect()
    assert all(kept)
    return before, there() is not None
