"""The layers of a Hugging Face model as modules: embedding, decoder layers and head.

Their parameters have the same names as in the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .skeleton import Skeleton, capture, hidden_of, with_hidden


class Part(nn.Module):
    """A module that contains some modules of ``model``, registered under their names in it.

    ``names``: the names of these modules, such as ``model.layers.0``.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        for name in names:
            place: nn.Module = self
            *path, last = name.split(".")
            for step in path:
                if step not in place._modules:
                    place.add_module(step, nn.Module())
                place = place.get_submodule(step)
            place.add_module(last, model.get_submodule(name))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Part:
        """Converts tensors by ``fn`` as any module does, but keeps non-persistent buffers' dtype.

        Such buffers, for example frequencies of rotary embeddings, are then as in a model that was
        created in the new dtype.
        """
        kept = [
            (module, name, module._buffers[name])
            for module in self.modules()
            for name in module._non_persistent_buffers_set
        ]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module, name, buffer in kept:
            moved = module._buffers[name]
            if buffer is not None and moved is not None and moved.dtype is not buffer.dtype:
                module._buffers[name] = buffer.to(moved.device)
        return self


class Around(Part):
    """The part before or after the decoder layers, run by the ``forward`` of the whole model.

    ``prepare``: a function that modifies ``model`` so that its ``forward`` runs only this part;
    :meth:`whole` returns its result. ``names``: the names of this part's modules.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], prepare: Callable[[Any], Any]
    ) -> None:
        super().__init__(model, names)
        self._whole = model, prepare(model)  # a tuple, so that its modules are not registered
        own = set(self.modules())
        self._others = tuple(module for module in model.modules() if module not in own)

    def whole(self) -> tuple[Any, Any]:
        """Returns the whole model, as ``prepare`` modified it, and the result of ``prepare``.

        First sets all modules of the model to training or evaluation mode as this part is, as the
        model itself may apply dropout.
        """
        for module in self._others:
            module.training = self.training
        return self._whole


class Embedding(Around):
    """The part before the decoder layers: maps tokens (batch, length) to hidden states.

    Hidden states are (batch, length, width).
    """

    def __init__(self, model: nn.Module, skeleton: Skeleton, names: Sequence[str]) -> None:
        super().__init__(model, names, skeleton.filled)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = hidden_of(capture(*self.whole(), tokens)[0])
        return hidden


class Block(Part):
    """A decoder layer: maps hidden states (batch, length, width) to hidden states.

    ``names``: a list with only the layer's name. ``again``: save only the layer's input in the
    forward, and recompute the layer in the backward.
    """

    def __init__(
        self, model: nn.Module, skeleton: Skeleton, names: Sequence[str], *, again: bool = False
    ) -> None:
        super().__init__(model, names)
        (name,) = names
        self._layer = (self.get_submodule(name),)
        self._skeleton, self._index = skeleton, skeleton.blocks.index(name)
        self._again = again
        self.fixed_tensors = skeleton.fixed_tensors

    def forward(self, hidden: Tensor) -> Tensor:
        if not (self._again and torch.is_grad_enabled()):
            return self._run(hidden)
        found: Tensor = checkpoint(self._run, hidden, use_reentrant=False)
        return found

    def _run(self, hidden: Tensor) -> Tensor:
        shape = (hidden.shape[0], hidden.shape[1])
        calls = self._skeleton.calls(shape, hidden.dtype, hidden.device)
        args, kwargs = with_hidden(calls[self._index], hidden)
        found = self._layer[0](*args, **kwargs)
        out: Tensor = found[0] if isinstance(found, tuple) else found  # the model ignores the rest
        return out


class Head(Around):
    """The part after the decoder layers: maps hidden states to logits.

    Logits are (batch, length, vocabulary).
    """

    def __init__(self, model: nn.Module, skeleton: Skeleton, names: Sequence[str]) -> None:
        super().__init__(model, names, skeleton.headed)

    def forward(self, hidden: Tensor) -> Tensor:
        model, units = self.whole()
        for unit in units:
            hidden = unit(hidden)
        found: Tensor = model(inputs_embeds=hidden, use_cache=False).logits
        return found
