"""An optimizer's state as a flat dict, by parameter names.

Keys are like ``state.NAME.exp_avg`` and ``param_groups.NAME.lr``, as in
torch.distributed.checkpoint.state_dict with ``flatten_optimizer_state_dict``. They are independent
of which parameters an optimizer has, and in which groups, so a saved state can be loaded into any
cut of the model. torch's own functions create missing state by a step with gradients of 0, which
then counts as a step. Here, the state of a parameter that was never stepped is saved as
:data:`BLANK` values; if these are loaded, the parameter has no state again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import nan
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError, in_brief

from ..tensors.rng_state import RandomState

BLANK = nan
# options that select an implementation; they may differ when a state is loaded, and are not loaded
HOW = ("foreach", "fused", "capturable", "differentiable")

Names: TypeAlias = Mapping[int, str]  # a parameter's id -> its name
_State: TypeAlias = dict[str, Any]  # the optimizer's state of one parameter, such as exp_avg


def flat_state(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, Any]:
    """Returns state and options of the optimizer's parameters as a flat dict.

    ``names``: the parameters' names, by their ``id``. Tensors are the optimizer's own, not copies;
    for parameters that were never stepped, new ones filled with :data:`BLANK`. Raises InputError if
    the optimizer has no state per parameter.
    """
    found: dict[str, Any] = {}
    for group, parameter, state in entries(optimizer):
        name = names[id(parameter)]
        found |= {_key(name, key): value for key, value in state.items()}
        found |= {_option(name, key): v for key, v in group.items() if key != "params"}
    return found


@torch.no_grad()
def load_flat_state(
    optimizer: torch.optim.Optimizer, names: Names, values: Mapping[str, Any]
) -> None:
    """Loads ``values``, which have all keys of :func:`flat_state`, into the optimizer.

    ``names``: the parameters' names, by their ``id``. Existing tensors stay the same objects.
    Raises InputError, without any change, if ``values`` contain different options for parameters of
    the same group.
    """
    options = group_options(optimizer, names, values)
    for _, parameter, state in entries(optimizer):
        name = names[id(parameter)]
        for key, own in state.items():
            state[key] = _taken(own, values[_key(name, key)])
        if _is_blank(state):
            optimizer.state.pop(parameter, None)
        elif state:
            optimizer.state[parameter] = state
    for group, chosen in zip(optimizer.param_groups, options, strict=True):
        group.update({key: _taken(group[key], value) for key, value in chosen.items()})


def group_options(
    optimizer: torch.optim.Optimizer, names: Names, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns the options (``lr`` etc.) to load, as one dict for each of the optimizer's groups.

    The value of an option is from ``values`` (see :func:`flat_state`) or, if missing there, the
    group's own; the options in :data:`HOW` are left out. ``names``: the parameters' names, by their
    ``id``. Raises InputError if ``values`` contain different options for parameters of the same
    group.
    """
    return [
        {key: _one(group, key, names, values) for key in group if key not in ("params", *HOW)}
        for group in optimizer.param_groups
    ]


def entries(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], Tensor, _State]]:
    """Yields each of the optimizer's parameters as (its group, the parameter, its state).

    The state of a parameter that was never stepped is :data:`BLANK`. Raises InputError if the
    optimizer has no state per parameter.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter) or _blank(optimizer, group, parameter)
            yield group, parameter, {key: v for key, v in state.items() if v is not None}


def _key(name: str, key: str) -> str:
    return f"state.{name}.{key}"


def _option(name: str, key: str) -> str:
    return f"param_groups.{name}.{key}"


def _one(group: Mapping[str, Any], key: str, names: Names, values: Mapping[str, Any]) -> Any:
    """Returns the value to load for the option ``key`` of a group of parameters.

    This is the value in ``values`` for parameters of the group or, if there is none, the group's
    own value. Raises InputError if ``values`` contain different ones for parameters of the group.
    """
    keys = [_option(names[id(parameter)], key) for parameter in group["params"]]
    first, *others = [(k, values[k]) for k in keys if k in values] or [("", group[key])]
    for other, value in others:
        if not equal(value, first[1]):
            raise InputError(
                f"optimizer.{other}: expected that of {first[0]}, {first[1]}, which is in one "
                f"group with it, got {value}"
            )
    return first[1]


def equal(one: Any, other: Any) -> bool:
    """Whether two values of an option are equal; tensors are equal if all their elements are."""
    return bool(torch.as_tensor(one == other).all())


def _taken(own: Any, value: Any) -> Any:
    if isinstance(own, Tensor):
        return own.copy_(value) if own is not value else own
    return value.item() if isinstance(value, Tensor) else value


def _is_blank(state: _State) -> bool:
    floating = [v for v in state.values() if isinstance(v, Tensor) and v.is_floating_point()]
    return bool(floating) and all(bool(v.isnan().all()) for v in floating)


@torch.no_grad()
def _blank(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: Tensor) -> _State:
    """Returns the state that ``parameter`` would have after a step, filled with :data:`BLANK`.

    To find its keys and shapes, the optimizer steps a substitute parameter in a copy of the group.
    Afterwards, optimizer and random state are as before; no hook runs. Raises InputError if the
    optimizer cannot step a single parameter.
    """
    stand_in = torch.zeros_like(parameter, requires_grad=True)
    stand_in.grad = torch.zeros_like(stand_in)
    groups = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": [stand_in]}]
    try:
        with RandomState([stand_in.device]).again():
            _step_of(optimizer)(optimizer)
        return _filled(optimizer.state.get(stand_in) or {})
    except Exception as error:
        raise _whole(optimizer, f": {in_brief(error)}") from error
    finally:
        optimizer.param_groups = groups
        optimizer.state.pop(stand_in, None)


def _step_of(optimizer: torch.optim.Optimizer) -> Callable[[torch.optim.Optimizer], object]:
    """Returns the optimizer's method ``step`` without torch's wrapper, which would call hooks."""
    step: Any = type(optimizer).step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def _whole(optimizer: torch.optim.Optimizer, why: str) -> InputError:
    return InputError(
        "optimizer: expected one that steps each parameter by itself, as its state is saved by "
        f"their names, got {type(optimizer).__name__}{why}"
    )


def _filled(state: _State) -> _State:
    tensors = [v for v in state.values() if isinstance(v, Tensor)]
    for tensor in tensors:
        tensor.fill_(BLANK if tensor.is_floating_point() else 0)
    return state
