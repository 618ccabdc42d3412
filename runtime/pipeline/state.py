"""A pipeline's state to save and load, by the names of parameters in the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from torch import Tensor

from pipeloom.ir.errors import InputError

from ..dtensors import is_dtensor
from ..optim.optimizer_state import flat_state, group_options, load_flat_state
from ..optim.shared_buffers import share_buffers
from ..optim.step_end import StepEnd
from ..rank.context import RankContext
from ..rank.loss_scale import LossScale
from ..stages.tie_detection import Member
from ..transport import agreed, gathered
from .state_names import state_names

MODEL, OPTIMIZER, LOSS_SCALE = SECTIONS = ("model", "optimizer", "loss_scale")


class PipelineState:
    """Gets and sets one rank's state; all ranks call the methods at the same time."""

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        self._context, self._step_end = context, step_end
        self._role = context.role
        self._modules, self._optimizers = step_end.modules, step_end.optimizers
        self._names: dict[Member, tuple[str, ...]] | None = None
        self._known: frozenset[str] = frozenset()  # names in the model on all ranks

    def get(self) -> dict[str, Any]:
        """Returns the result of :meth:`~.rank_pipeline.RankPipeline.state_dict`.

        Before that, sets all copies of each buffer to the first one. Raises InputError if two
        parameters have the same name, an optimizer has no state per parameter, or gradients are
        accumulated, which the state does not include.
        """
        if self._step_end.adds_up and self._context.options.optimizer is not None:
            line = "state_dict: expected it after a step that updates, got update=False in the last"
            raise agreed(InputError(line), everywhere=True)
        self._all_names()
        pairs = zip(self._role.users, self._role.holders, strict=True)
        share_buffers(self._context, [min(users or homes) for users, homes in pairs])
        return self._own()

    def loss_scale(self) -> LossScale | None:
        """Returns the loss scale of the next step, or None without loss scaling.

        A rank that owns no stage receives it from a rank that owns one, as it does not update the
        loss scale itself.
        """
        own, homes = self._step_end.loss_scale, self._role.holders
        if own is not None and len(set().union(*homes)) < self._context.transport.size:
            self._step_end.rescaled(self._context.transport.share(own, homes[0][0]))
        return self._step_end.loss_scale

    def _own(self) -> dict[str, Any]:
        """Returns this rank's state by section (see :data:`SECTIONS`), without changing buffers.

        If it cannot be created on one rank, raises InputError on all ranks.
        """
        self._all_names()
        self.loss_scale()
        state = dict[str, Any]()
        gathered(self._context.transport, lambda: state.update(self._sections()))
        return state

    def _sections(self) -> dict[str, Any]:
        names, state = self._all_names(), dict[str, Any]()
        state[MODEL] = {
            name: value
            for s, module in self._modules.items()
            for key, value in module.state_dict().items()
            for name in names[s, key]
        }
        state[OPTIMIZER] = {}
        for optimizer in self._optimizers.values():
            state[OPTIMIZER] |= flat_state(optimizer, self._by_parameter())
        scale = self._step_end.loss_scale
        if scale is not None:
            state[LOSS_SCALE] = {"scale": scale.scale, "good": scale.good}
        return state

    def put(self, state: Mapping[str, Any]) -> None:
        """Loads the sections of ``state``, a result of :meth:`get`; drops accumulated gradients.

        Sections that ``state`` lacks remain unchanged. Raises InputError on all ranks, before any
        change, if names or shapes in ``state`` do not match those of the pipeline.
        """
        own = self._own()
        gathered(self._context.transport, lambda: self._check(state, own))
        if MODEL in state:
            self._put_model(state[MODEL])
            share_buffers(self._context, [min(homes) for homes in self._role.holders])
        if OPTIMIZER in state:
            for optimizer in self._optimizers.values():
                load_flat_state(optimizer, self._by_parameter(), state[OPTIMIZER])
        self._step_end.rescaled(self._loss_scale(state))
        self._step_end.adds_up = False

    def _loss_scale(self, state: Mapping[str, Any]) -> LossScale | None:
        scale, values = self._step_end.loss_scale, state.get(LOSS_SCALE, {})
        return scale and replace(scale, **{k: values[k] for k in ("scale", "good") if k in values})

    def _put_model(self, values: Mapping[str, Any]) -> None:
        names = self._all_names()
        for s, module in self._modules.items():
            module.load_state_dict({key: values[names[s, key][0]] for key in module.state_dict()})

    def _all_names(self) -> dict[Member, tuple[str, ...]]:
        if self._names is None:
            options, transport = self._context.options, self._context.transport
            self._check_shards()
            found = state_names(self._modules, options.tied, options.names, transport)
            rows = transport.gather([name for names in found.values() for name in names])
            self._known = frozenset(name for row in rows for name in row)
            self._names = found
        return self._names

    def _by_parameter(self) -> dict[int, str]:
        """Returns the name in the model of each parameter, by its ``id``.

        It is the name under which the optimizer's state of the parameter is saved.
        """
        names, found = self._all_names(), dict[int, str]()
        for s, module in self._modules.items():
            for key, value in module.state_dict(keep_vars=True).items():
                found.setdefault(id(value), names[s, key][0])
        return found

    def _check_shards(self) -> None:
        """Raises InputError if parameters that are plain tensors are, or may be, shards.

        Several shards would be saved under one name, and only one of them would be kept.
        """
        if self._step_end.may_be_shards:
            line = (
                "norm_groups: expected the process groups over which parameters are shards, as "
                "there are pipelines side by side that data_group does not join; or {}, where "
                "they have nothing to do with each other"
            )
            raise agreed(InputError(line))
        gathered(self._context.transport, self._check_plain)

    def _check_plain(self) -> None:
        named = [pair for module in self._modules.values() for pair in module.named_parameters()]
        for pattern, (name, parameter) in product(self._context.options.norm_groups or (), named):
            if fnmatchcase(name, pattern) and not is_dtensor(parameter):
                raise InputError(
                    f"norm_groups: {pattern!r}: expected a DTensor, whose shards have one name "
                    f"in a state_dict, got {name}, a plain tensor"
                )

    def _check(self, state: Any, own: Mapping[str, Any]) -> None:
        """Raises InputError for the first difference between ``state`` and ``own``.

        ``own``: this rank's state.
        """
        for line in self._faults(state, own):
            raise InputError(f"state_dict: {line}")

    def _faults(self, state: Any, own: Mapping[str, Any]) -> Iterator[str]:
        yield from _unlike_sections(state)
        loaded = {names[0] for names in self._all_names().values()}
        model = {name: value for name, value in own[MODEL].items() if name in loaded}
        # optimizer options may be missing
        stepped = {k: x for k, x in own[OPTIMIZER].items() if not k.startswith("param_groups.")}
        for section, mine in ((MODEL, model), (OPTIMIZER, stepped)):
            yield from _differences(section, state.get(section, mine), mine)
        try:
            self._loss_scale(state)
            for optimizer in self._optimizers.values():
                group_options(optimizer, self._by_parameter(), state.get(OPTIMIZER, {}))
        except InputError as error:
            yield str(error)
        for name in state.get(MODEL, ()):
            if name not in self._known:
                yield f"{MODEL}.{name}: expected only names of the model's parameters and buffers"


def _unlike_sections(state: Any) -> Iterator[str]:
    names = list(state) if isinstance(state, Mapping) else [type(state).__name__]
    wrong = [str(name) for name in names if name not in SECTIONS]
    if wrong or not names:
        yield f"expected {', '.join(SECTIONS)}, got {', '.join(wrong) or 'nothing'}"
    for section, values in state.items():
        if not isinstance(values, Mapping):
            kind = type(values).__name__
            yield f"{section}: expected a mapping of names to values, got {kind}"


def _differences(section: str, values: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yields an error message for each entry of ``own`` that is missing or different in ``values``.

    Only tensors are compared: their shapes, and whether they are DTensors.
    """
    for key, mine in own.items():
        if key not in values:
            yield f"{section}.{key}: missing"
        elif isinstance(mine, Tensor) and (got := _kind(values[key])) != _kind(mine):
            yield f"{section}.{key}: expected {_kind(mine)}, got {got}"


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"a {'DTensor' if is_dtensor(value) else 'tensor'} of shape {list(value.shape)}"
