"""Trains with a compiled program: one process per rank on this machine, or one rank under torchrun.

A program compiled with --data-parallel can run in several replicas, each with its own data.

--model names a model source such as examples.gpt:small, which is in the checkout. The module of a
source can also be in the current folder.

example:
  pipeloom run program.json --model examples.gpt:small --steps 10 --trace measured.json
  pipeloom run program.json --model examples.gpt:small --steps 4 --pace
  pipeloom run program.json --model examples.gpt:small --param-dtype bfloat16 \
--reduce-dtype float32 --clip-grad-norm 1
  pipeloom run program.json --model examples.gpt:small --param-dtype float16 --loss-scale 65536
  pipeloom run program.json --model examples.gpt:small --replicas 2
  pipeloom run program.json --model examples.gpt:small --steps 40 --save out/gpt --every 10
  pipeloom run other.json --model examples.gpt:small --steps 80 --save out/gpt --resume out/gpt
  torchrun --nproc-per-node 4 -m pipeloom run program.json --model examples.gpt:small
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeloom.ir.units import counted, duration
from pipeloom.planner.requests.fields import option, place
from pipeloom.planner.requests.kinds import AMOUNT, SECONDS, WHOLE
from pipeloom.planner.requests.kinds import MICROBATCHES as COUNT

from ...arguments import Command
from ...model_arguments import DTYPE, ModelRequest, interrupted, need_program
from ...output import check_apart, print_json, say_words

if TYPE_CHECKING:
    from pipeloom.runtime.train.train import RunResult

SHOWN = 100  # maximum number of losses in the text


@dataclass(frozen=True, kw_only=True)
class RunRequest(ModelRequest):
    """A request to train a model: the arguments of :func:`pipeloom.run`."""

    program: str = field(metadata=place("PROGRAM"))
    """program file, - for standard input"""
    model: str | None = option("MODULE:ATTRIBUTE|hf:FOLDER", required=True)
    steps: int = option("N", COUNT, default=1)
    """optimizer steps, 1 by default"""
    seed: int = option("N", WHOLE, default=0)
    """seed of dropout and of the initial weights, 0 by default (for hf: models, the setting seed=
    of --model is the seed of the weights)"""
    pace: bool = option(default=False)
    """sleep so that each op takes at least its planned time, as if ranks that share cores had a
    device each"""
    callbacks: Sequence[str] = option(
        "MODULE:ATTRIBUTE", default=(), names=("--callback",), action="append"
    )
    """function to call after each step, or class of such a callback; can be repeated"""
    timeout: float = option("S", SECONDS, default=300.0)
    """seconds to wait for a message, 300 by default; the run as a whole has no limit"""
    trace: str | None = option("FILE")
    """file for the median step: a schedule with measured times"""
    param_dtype: str | None = option(kind=DTYPE)
    """mixed precision: compute with parameters in this type, and send them in it; the optimizer
    keeps them in --dtype"""
    reduce_dtype: str | None = option(kind=DTYPE)
    """type in which gradients are sent or summed over ranks; --param-dtype by default"""
    clip_grad_norm: float | None = option("X", AMOUNT)
    """scale gradients down if their norm over the whole model exceeds X"""
    loss_scale: float | None = option("X", AMOUNT)
    """multiply losses by X and divide gradients by it; a step with NaN or Inf in its gradients is
    skipped and halves X, 2000 steps in a row without them double it"""
    no_post_validation: bool = option(default=False)
    """wait for the norm of all gradients before the optimizer step, even if the program was
    compiled with --post-validation"""
    check: bool = option(default=True, names=("--no-check",))
    """do not check in the first step that all ranks and replicas run the same job"""
    varying_shapes: bool = option(default=False)
    """allow the shapes of microbatches to change from step to step"""
    replicas: int | None = option("R", COUNT)
    """replicas of a program compiled with --data-parallel, each with its own ranks and
    microbatches; by default, the profile's data_parallel, or as many as torchrun starts"""
    save: str | None = option("DIR")
    """folder for checkpoints; one is written at the end and every --every steps"""
    every: int | None = option("N", COUNT)
    """steps between checkpoints"""
    resume: str | None = option("DIR")
    """continue from a checkpoint, or from the last complete one in a folder, until --steps steps
    are done in total; the program can be another one"""
    eval_every: int | None = option("N", COUNT)
    """steps between evaluations on the model source's eval_batch"""


@dataclass(frozen=True, kw_only=True)
class RunCommand(Command, RunRequest):
    """The command ``pipeloom run``: calls :func:`pipeloom.run`, and prints losses, times and
    memory."""

    def run(self) -> int:
        need_program(self.program)
        self.load_torch()
        from pipeloom.ir.formats import check_writable
        from pipeloom.training import run as train

        if self.trace is not None:
            check_apart(self, "trace", self.trace)
            check_writable(self.trace)
        with interrupted(self.save) as told:
            callbacks = [told, *self.callbacks]
            result = train(**self.arguments(RunRequest) | {"callbacks": callbacks})
        if result is None:  # under torchrun, only rank 0 prints
            return 0
        if self.json:
            print_json(result.to_dict() | {"trace": self.trace})
            return 0
        for name, words in _lines(result):
            say_words(f"{name:<14}{words}")
        if self.trace is not None:
            say_words(f"written to {self.trace}")
        return 0


def _lines(result: RunResult) -> list[tuple[str, str]]:
    from pipeloom.ir.units import amount
    from pipeloom.report.summaries import summary

    steps = len(result.losses)
    settled = result.seconds[1:] or result.seconds
    taken = f"median {duration(statistics.median_high(settled) * 1e3)}"
    taken += " after the first" * (steps > 1)
    before = f" after the {result.first_step} of the checkpoint" if result.first_step else ""
    taken_in = counted(steps, "step") + before
    return [
        ("loss", f"{result.losses[0]:.4f} to {result.losses[-1]:.4f} in {taken_in}"),
        ("losses", _losses(result.losses)),
        *([("evaluations", _evaluations(result))] if result.evaluations else []),
        ("step", f"{taken}, fastest {duration(min(result.seconds) * 1e3)}"),
        ("planned", summary(result.planned)),
        ("measured", f"{summary(result.measured)} (step {result.measured_step})"),
        ("outside ops", f"{_outside(result)} of step {result.measured_step}: inputs, optimizer"),
        *([("replicas", _replicas(result))] if result.replicas > 1 else []),
        ("peak memory", f"{', '.join(map(amount, result.peak_memory))} (bytes, rank by rank)"),
        *(("note", note) for note in result.notes),
    ]


def _outside(result: RunResult) -> str:
    """The time of the measured step that is before its first op or after its last op, as text."""
    step = result.seconds[result.measured_step - result.first_step] * 1e3
    return duration(max(0.0, step - result.measured.known_timing.makespan))


def _evaluations(result: RunResult) -> str:
    (_, first), (step, last) = result.evaluations[0], result.evaluations[-1]
    if len(result.evaluations) == 1:
        return f"1, {last:.4f} after step {step}"
    return f"{len(result.evaluations)}, {first:.4f} to {last:.4f} after step {step}"


def _replicas(result: RunResult) -> str:
    count, ranks = result.replicas, result.planned.problem.ranks
    return (
        f"{count} of {ranks} ranks; losses, steps and peaks are over all of them, measured is the "
        "first"
    )


def _losses(losses: Sequence[float]) -> str:
    """The losses of all steps as text, or only the last ``SHOWN`` if there are more."""
    if len(losses) <= SHOWN:
        words = " ".join(f"{loss:.4f}" for loss in losses)
    else:
        last = " ".join(f"{loss:.4f}" for loss in losses[-SHOWN:])
        words = f"... {last} (--json has all)"
    return textwrap.fill(words, 86).replace("\n", "\n" + " " * 14)
