"""An optimizer's state by the names of its parameters, flat: ``state.NAME.exp_avg``,
``param_groups.NAME.lr``.

So torch.distributed.checkpoint.state_dict has it (``flatten_optimizer_state_dict``): which
parameters an optimizer has, and in which groups, does not show in it, so it fits any cut of the
model. torch's own functions make what is missing by a step with gradients of 0, which is then
counted as one; here a parameter that was never stepped has :data:`BLANK` instead, and has no state
again once that is loaded.
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
# how an optimizer computes, which another device or program may want in another way
HOW = ("foreach", "fused", "capturable", "differentiable")

Names: TypeAlias = Mapping[int, str]  # of parameters, by id
_State: TypeAlias = dict[str, Any]  # of one parameter, by key


def flat_state(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, Any]:
    """The state of all that it steps; tensors are the optimizer's own, or :data:`BLANK`."""
    found: dict[str, Any] = {}
    for group, parameter, state in _entries(optimizer):
        name = names[id(parameter)]
        found |= {_key(name, key): value for key, value in state.items()}
        found |= {_option(name, key): v for key, v in group.items() if key != "params"}
    return found


@torch.no_grad()
def load_flat_state(
    optimizer: torch.optim.Optimizer, names: Names, values: Mapping[str, Any]
) -> None:
    """Makes ``values``, which have all keys of :func:`flat_state`, the optimizer's state.

    Tensors that it has stay the same objects. Raises InputError, and changes nothing, where
    parameters of one group are given unlike options.
    """
    options = group_options(optimizer, names, values)
    for _, parameter, state in _entries(optimizer):
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
    """The options of each group: those that ``values`` give, but for :data:`HOW`, else its own.

    Raises InputError where they say several things of one."""
    return [
        {key: _one(group, key, names, values) for key in group if key not in ("params", *HOW)}
        for group in optimizer.param_groups
    ]


def _entries(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], Tensor, _State]]:
    """Each parameter with its group and its state."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter) or _blank(optimizer, group, parameter)
            yield group, parameter, {key: v for key, v in state.items() if v is not None}


def _key(name: str, key: str) -> str:
    return f"state.{name}.{key}"


def _option(name: str, key: str) -> str:
    return f"param_groups.{name}.{key}"


def _one(group: Mapping[str, Any], key: str, names: Names, values: Mapping[str, Any]) -> Any:
    """The option ``key`` that all parameters of the group are given; its own where none is."""
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
    """Whether two values of an option are equal, tensors in all elements."""
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
    """The state that a first step gives the parameter of the group, filled with :data:`BLANK`.

    The step is that of a stand-in, in a copy of the group; the optimizer and the random numbers
    are afterwards as before, and no hook runs. Raises InputError where it takes more than that.
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
    """The class's ``step`` without the hooks, also global ones, that torch wraps it in."""
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
