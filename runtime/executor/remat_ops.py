"""Ops of microbatches that are recomputed or offloaded between F and B."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind

from ..tensors.forward_state import in_place_of_buffers, kept_buffers
from ..tensors.rng_state import RandomState, devices_of
from ..tensors.trees import tensors
from .stage_runner import Cell, Run, StageRunner


def calls(runner: StageRunner, kind: OpKind, cell: Cell) -> Run:
    """Returns the function that runs an op of this ``kind`` on ``cell``, its only argument.

    Which function this is depends on ``cell``: on whether its microbatch is recomputed or
    offloaded.
    """
    if kind is OpKind.R or (kind is OpKind.F and cell.recomputed):
        return partial(_forward_again if kind is OpKind.R else _forward_alone, runner)
    offloaded = cell.offloaded
    if offloaded is None or kind is OpKind.W:  # BW is a B on a cell without a queue
        return {OpKind.F: runner.forward, OpKind.W: runner.weight}.get(kind, runner.backward)
    if kind is OpKind.O:
        return lambda _: offloaded.gone()
    if kind is OpKind.L:
        return lambda _: offloaded.load()
    return partial(_forward_out if kind is OpKind.F else _backward_loaded, runner)


def _forward_alone(runner: StageRunner, cell: Cell) -> None:
    """Runs F without autograd, for a microbatch whose forward R will repeat.

    Keeps what R needs: the inputs, the random state from before F, and the previous values of
    buffers that F modifies. Raises InputError if F modifies its arguments in place.
    """
    cell.state = RandomState(devices_of(cell.inputs), runner.generators)
    if runner.stage > 0:
        cell.held = runner.memory.hold(*cell.inputs)
    given = tensors((cell.inputs, cell.options))
    versions = _versions(given)
    target = cell.target
    with torch.no_grad(), kept_buffers(runner.buffers) as cell.buffers:
        runner.bare(cell)
    if versions != _versions(given):
        raise InputError(
            f"stage {runner.stage}: expected a forward that leaves its input as it is where it is "
            "recomputed: this one changes it in place, and would run again on what it made of it"
        )
    cell.held += runner.memory.hold(*(kept.value for kept in cell.buffers))
    cell.target = target


def _forward_again(runner: StageRunner, cell: Cell) -> None:
    """Runs R: F with autograd, from the random state and the buffers with which the first F began.

    Output, result and loss remain those of the first F. The ledger stops counting the inputs that
    were kept for R.
    """
    assert cell.state is not None
    sent, result, loss = cell.output, cell.result, cell.loss
    with cell.state.again(), in_place_of_buffers(cell.buffers):
        runner.forward(cell)
    cell.output, cell.result, cell.loss = sent, result, loss
    cell.state, cell.buffers = None, ()
    runner.memory.release(cell.held)
    cell.held = ()


def _versions(given: list[Tensor]) -> list[int]:
    """Returns the version counter of each tensor; 0 for inference tensors, which have none."""
    return [0 if x.is_inference() else x._version for x in given]


def _forward_out(runner: StageRunner, cell: Cell) -> None:
    """Runs F, then starts to copy the tensors that autograd has saved in it to the host."""
    assert cell.offloaded is not None
    module, inputs = runner.module, tensors(cell.inputs)
    with cell.offloaded.packing((*module.parameters(), *module.buffers(), *inputs)):
        runner.bare(cell)
    cell.offloaded.leave()


def _backward_loaded(runner: StageRunner, cell: Cell) -> None:
    """Runs B or BW of an offloaded microbatch, after the copies that L has started."""
    assert cell.offloaded is not None
    cell.offloaded.back()
    runner.backward(cell)
