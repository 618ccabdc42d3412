"""What a pipeline refuses before it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile

import torch

from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.formats import dump_program
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Updates
from pipeloom.ir.model.weight_versions import refuse_where_stale
from pipeloom.ir.verify.program import verify_program

from ..optim.optimizers import MakeOptimizer
from ..stages.tie_detection import Group, stages_of


def check_program(program: Program, verify: bool, **options: object) -> None:
    """Raises InputError for options that do not go with the program, InvalidScheduleError for a
    wrong one."""
    refuse_where_stale(program.schedule, **options)
    if not verify:
        return
    violations = verify_program(dump_program(program))
    if violations:
        raise InvalidScheduleError(violations)


def check_tied(program: Program, tied: Sequence[Group]) -> None:
    """Raises InputError where stages share a parameter whose gradients the program does not sum."""
    reduced = {i.stages for row in program.instructions for i in row if isinstance(i, ir.Reduce)}
    for group in tied:
        stages = stages_of(group)
        if len(stages) > 1 and not any(set(stages) <= set(summed) for summed in reduced):
            names = " and ".join(f"{name} of stage {stage}" for stage, name in group)
            raise InputError(
                f"tied: {names} are one parameter, whose gradients the program does not sum: "
                f"compile it with --tied {','.join(map(str, stages))}, or of a profile that has "
                "them "
                "as tied"
            )


def check_judged(program: Program, most: float | None, optimizer: MakeOptimizer | None) -> None:
    """Raises InputError where nothing can be judged, or too late."""
    name = "loss_scale" if most is None else "clip_grad_norm"
    if most is not None and not most > 0:
        raise InputError(f"clip_grad_norm: expected more than 0, got {most}")
    if optimizer is None:
        raise InputError(f"{name}: expected an optimizer, which steps after it, got None")
    for rank, row in enumerate(program.instructions):
        after = dropwhile(lambda i: not isinstance(i, ir.Step), row)
        early = [i for i in after if not isinstance(i, ir.Step | ir.WaitSend | ir.Free)]
        if early:
            raise InputError(
                f"{name}: expected a program that steps once all else is done, got '{early[0]}' "
                f"after a step on rank {rank}"
            )


def check_graph(
    program: Program,
    device: torch.device,
    optimizers: Mapping[int, torch.optim.Optimizer] | None,
    *,
    varying_shapes: bool,
    judged: bool,
    sharded: bool,
    replicated: bool,
) -> None:
    """Raises InputError where a step cannot be one CUDA graph.

    ``judged``: by the norm of its gradients; ``sharded``: some stages are wrapped in
    ``fully_shard``; ``replicated``: they are averaged over a ``data_group``.
    """
    ops = [i.op for row in program.instructions for i in row if isinstance(i, ir.Compute)]
    wanted = {
        f"a CUDA device, got {device}": device.type == "cuda",
        "shapes that are the same in each step, got varying_shapes": not varying_shapes,
        "neither clip_grad_norm nor loss_scale, whose norm the host waits for": not judged,
        "whole stages, got some wrapped in fully_shard, whose memory comes and goes": not sharded,
        "no data_group: averages over replicas are not recorded": not replicated,
        "an optimizer, which steps within the graph, got None": optimizers is not None,
        "a program that steps once an iteration, got one that steps after each microbatch": (
            program.schedule.updates is Updates.ITERATION
        ),
        "no recomputed forward, the state of whose random numbers the host reads, got an R": all(
            op.kind is not OpKind.R for op in ops
        ),
    }
    for what, there in wanted.items():
        if not there:
            raise InputError(f"cuda_graph: expected {what}")
    for stage, optimizer in (optimizers or {}).items():
        if any(group.get("capturable") is False for group in optimizer.param_groups):
            raise InputError(
                "cuda_graph: expected optimizers with capturable=True, got "
                f"{type(optimizer).__name__} "
                f"of stage {stage} without"
            )
