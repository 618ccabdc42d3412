"""Shape inference: runs each stage once before the first step, to find the shapes of its outputs.

Microbatches whose arguments have the same shapes on all ranks are of one *kind*. For each kind, a
stage is run once, on the rank that runs the first microbatch of that kind there. The shapes and
dtypes of its outputs (:class:`StageInterface`) are sent to all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pipeloom.ir.model.ops import IntArray

from ...errors import ShapeError, advice
from ...executor.outputs import as_tuple
from ...executor.skip_connections import Skips
from ...executor.stage_runner import Cell
from ...rank.context import RankContext
from ...tensors.forward_state import undisturbed
from ...tensors.packed_message import Spec
from ...tensors.rng_state import devices_of
from ...tensors.stage_interface import StageInterface
from ...tensors.trees import Form, form, mapped, shown
from ...transport import agreed
from ..step_inputs import Cells

Kind: TypeAlias = tuple[object, ...]  # shapes of a microbatch's arguments, on all stages
Interfaces: TypeAlias = list[list[StageInterface]]  # [stage, except the last][microbatch]


def given(stage: int, cell: Cell) -> tuple[Form, ...]:
    """Returns a hashable description of the shapes of a microbatch's arguments on ``stage``.

    It covers the stage's keyword arguments and, on the first stage, its inputs. Tensors are
    described by shape and dtype, other values as by :func:`~...tensors.trees.form`.
    """
    inputs = cell.inputs if stage == 0 else ()
    options = [(name, form(value)) for name, value in sorted(cell.options.items())]
    return (*map(form, inputs), *options)


class ShapeInference:
    """Infers the interfaces between stages (shapes and dtypes of outputs) for a program.

    ``known``: for each kind of microbatch so far, the interfaces of all stages except the last; the
    same on all ranks. ``grad``: whether gradients are enabled when stages are run, to find which
    outputs require one.
    """

    def __init__(self, context: RankContext, skips: Skips, *, grad: bool = True) -> None:
        self._placed: IntArray = context.program.schedule.problem.owner
        self._store, self._skips, self._grad = context.store, skips, grad
        self._transport, self._device = context.transport, context.device
        self.known: dict[Kind, list[StageInterface]] = {}

    def interfaces(self, cells: Cells) -> Interfaces:
        """Returns ``[stage][microbatch]``, the interfaces of all stages except the last.

        ``cells``: those of this rank, which contain the arguments of all microbatches. All ranks
        call it. Raises ShapeError on all ranks if a stage does not run. Random states, buffers of
        modules and the arguments are then as before.
        """
        if len(self._placed) == 1:
            return []
        kinds = self._kinds(cells)
        new = {kind: j for j, kind in reversed([*enumerate(kinds)]) if kind not in self.known}
        before: dict[Kind, list[StageInterface]] = {kind: [] for kind in new}
        for stage in range(len(self._placed) - 1):
            for kind, found in self._found(stage, new, cells, before).items():
                before[kind].append(found)
        self.known |= before
        return [
            [self.known[kind][stage] for kind in kinds] for stage in range(len(self._placed) - 1)
        ]

    def _kinds(self, cells: Cells) -> list[Kind]:
        """Returns the kind of each microbatch; all ranks call it."""
        mine = {(s, j): given(s, cell) for (s, j), cell in cells.items()}
        rows = self._transport.gather({key: value for key, value in mine.items() if value})
        kinds: list[list[object]] = [[] for _ in range(self._placed.shape[1])]
        for (s, j), value in sorted(
            (item for row in rows for item in row.items()), key=lambda item: item[0]
        ):
            kinds[j].append((s, value))
        return list(map(tuple, kinds))

    def _found(
        self,
        stage: int,
        new: Mapping[Kind, int],
        cells: Cells,
        before: Mapping[Kind, Sequence[StageInterface]],
    ) -> dict[Kind, StageInterface]:
        """Returns the stage's interface for each kind of microbatch in ``new``.

        ``new``: maps each kind to the index of the first microbatch of this kind. ``before``: for
        each kind, the interfaces of the earlier stages. All ranks call it. Raises ShapeError on all
        ranks if the stage does not run.
        """
        mine: dict[Kind, StageInterface | ShapeError] = {}
        for kind, j in new.items():
            if self._placed[stage, j] == self._transport.rank:
                with self._store.trying(stage):
                    mine[kind] = self._try(stage, cells[stage, j], before[kind])
        found = {
            kind: interface
            for row in self._transport.gather(mine)
            for kind, interface in row.items()
        }
        for interface in found.values():
            if isinstance(interface, ShapeError):
                raise agreed(interface)
        return found

    def _try(
        self, stage: int, cell: Cell, before: Sequence[StageInterface]
    ) -> StageInterface | ShapeError:
        """Returns the stage's interface for the arguments in ``cell``.

        If the stage fails, returns the error, which all ranks will raise. ``before``: the
        interfaces of the earlier stages.
        """
        inputs = made_up(before[-1], self._device) if stage > 0 else cell.inputs
        module = self._store.module(stage)
        try:
            with undisturbed([module], devices_of(inputs)):
                # clones, as a forward may modify the caller's tensors
                args, options = tuple(inputs), mapped(torch.clone, dict(cell.options))
                args = args if stage > 0 else mapped(torch.clone, args)
                return self._run(stage, module, args, options)
        except Exception as error:
            given = ", ".join(map(shown, inputs))
            kind_of = "" if isinstance(error, ShapeError) else f"{type(error).__name__}: "
            return ShapeError(
                f"stage {stage} does not run on {given}: {kind_of}{error}{advice(error)}"
            )

    def _run(
        self, stage: int, module: nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> StageInterface:
        with torch.set_grad_enabled(self._grad):
            handed_on = as_tuple(self._skips.around(stage, module)(*inputs, **options))
        if not any(x.is_floating_point() for x in handed_on):
            texts = ", ".join(str(Spec.of(x)) for x in handed_on)
            raise ShapeError(f"expected a tensor of a floating dtype, got {texts or 'none'}")
        return StageInterface.of(handed_on)


def made_up(interface: StageInterface, device: torch.device) -> tuple[Tensor, ...]:
    """Returns tensors of zeros with the shapes and dtypes of ``interface``, on ``device``.

    They stand for what the next stage receives, and require gradients where the outputs do.
    """
    return tuple(
        torch.zeros(spec.shape, dtype=spec.dtype, device=device, requires_grad=needs_grad)
        for spec, needs_grad in zip(interface.specs, interface.needs_grad, strict=True)
    )
