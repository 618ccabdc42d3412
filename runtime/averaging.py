"""Data parallelism beside the pipeline: gradients averaged over its replicas while others compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.program import Program

from .roles import averaged


class Averaging:
    """The replicas' gradients, one message a stage, begun by ``average`` and waited for before ``step``.

    ``modules``: this rank's stages, in the order in which the program averages them; a parameter of
    several is averaged with the last one. ``group``: the processes that have this rank in the
    replicas, whose parameters and buffers start as the first replica's. ``dtype``: that in which
    gradients travel; by default their own.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        group: dist.ProcessGroup,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._group, self._dtype = group, dtype
        home = {id(p): s for s, module in modules.items() for p in module.parameters()}
        self._trained = {
            s: [p for p in module.parameters() if p.requires_grad and home[id(p)] == s]
            for s, module in modules.items()
        }
        self._under_way: dict[int, tuple[Tensor, dist.Work]] = {}
        for module in modules.values():
            self._start_equal([*module.parameters(), *module.buffers()])

    @torch.no_grad()
    def begin(self, stage: int) -> None:
        """Sends the stage's gradients, all of which are there; returns at once."""
        gradients = [_gradient(parameter).flatten() for parameter in self._trained[stage]]
        if not gradients:
            return
        flat = torch.cat(gradients).to(self._dtype or gradients[0].dtype)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        assert work is not None
        self._under_way[stage] = flat, work

    @torch.no_grad()
    def finish(self) -> None:
        """Returns once every gradient that was sent is the average."""
        for stage, (flat, work) in self._under_way.items():
            work.wait()
            flat.div_(self._group.size())
            trained = self._trained[stage]
            parts = torch.split(flat, [parameter.numel() for parameter in trained])
            for parameter, part in zip(trained, parts, strict=True):
                _gradient(parameter).copy_(part.view_as(parameter))
        self._under_way.clear()

    @torch.no_grad()
    def _start_equal(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            value = tensor.detach().contiguous()
            dist.broadcast(value, group=self._group, group_src=0)
            tensor.copy_(value)


def make_averaging(
    program: Program,
    rank: int,
    modules: Mapping[int, nn.Module],
    group: dist.ProcessGroup | None,
    dtype: torch.dtype | None,
) -> Averaging | None:
    """What ``rank`` averages of ``modules`` over the replicas in ``group``; None: there are none.

    Raises InputError where a program that averages has no replicas, or replicas none that does.
    """
    stages = averaged(program, rank)
    if group is None and stages:
        raise InputError("data_group: expected a process group: the program averages, got None")
    if group is None:
        return None
    if not any(averaged(program, r) for r in range(len(program.instructions))):
        raise InputError(
            "program: expected one compiled with data_parallel, as data_group is given"
        )
    return Averaging({s: modules[s] for s in stages}, group, dtype)


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient, zeros where nothing was added: another replica may have some."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
    return parameter.grad
