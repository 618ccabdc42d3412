"""A Hugging Face model without its weights, and what it consists of.

The model is made on the ``meta`` device, where nothing is allocated, and run once on four tokens
with stand-ins for its decoder layers. That tells which of its modules come before and after them,
and whether the model may be cut there::

    tokens ─▶ embed_tokens, rotary_emb │ layers.0 │ layers.1 │ ... │ norm, lm_head ─▶ logits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from pipeloom.ir.errors import InputError

from .layer_calls import CutError, LayerCalls, StandIns, capture

CPU = torch.device("cpu")
TOKENS = 4  # of the run that tells what the model consists of
FORMS = range(4)  # of what a layer returns: a tensor, or a tuple of so many


@dataclass(frozen=True, eq=False)
class Frame:
    """``model``: a causal language model, on ``meta``; ``layers``: the name of its list of decoder
    layers; ``form``: of what they return (:class:`StandIns`)."""

    model: Any
    layers: str
    form: int

    @property
    def body(self) -> str:
        """The name of the module that has the layers."""
        return self.layers.rpartition(".")[0]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the decoder layers."""
        return tuple(
            f"{self.layers}.{i}" for i in range(len(self.model.get_submodule(self.layers)))
        )

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The names of the largest modules that are beside the layers."""
        path = self.layers.split(".")[:-1]
        around = [".".join(path[:depth]) for depth in range(len(path) + 1)]
        names = [
            f"{module}.{child}".lstrip(".")
            for module in around
            for child, _ in self.model.get_submodule(module).named_children()
        ]
        return tuple(name for name in names if name not in around and name != self.layers)

    def stand_ins(self) -> StandIns:
        """Stand-ins for the layers."""
        return StandIns(self.model.get_submodule(self.layers), self.form)

    def placeholder(
        self, value: float, dtype: torch.dtype, device: torch.device
    ) -> tuple[Any, StandIns]:
        """The model with stand-ins for its layers, and one number in place of each parameter."""
        stand_ins = self.stand_ins()
        made = _copied(
            self.model, {self.model.get_submodule(self.layers): stand_ins.modules}
        ).eval()
        number = torch.full((), value, dtype=dtype, device=device)
        for module in made.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    constant = nn.Parameter(number.expand(parameter.shape), requires_grad=False)
                    constant._is_hf_initialized = True  # type: ignore[attr-defined]
                    module._parameters[name] = constant
        initialise(made, device)
        return made, stand_ins

    def part(self, kept: Sequence[str]) -> Any:
        """A copy of the model that has these units and layers alone, still on ``meta``."""
        left = [name for name in (*self.units, *self.blocks) if name not in kept]
        return _copied(self.model, {self.model.get_submodule(x): nn.Identity() for x in left})


@dataclass(frozen=True, eq=False)
class Skeleton(Frame):
    """A model that may be cut between its layers. ``name``: what faults call it.

    ``before``, ``after``: the names of the modules that run before and after the layers; of the
    latter ``closing`` belong to the body, which returns an ``output``.
    """

    name: str
    before: tuple[str, ...]
    closing: tuple[str, ...]
    after: tuple[str, ...]
    output: type[Any]

    @classmethod
    def read(cls, path: Path, name: str, kernels: Mapping[str, str]) -> Skeleton:
        """That of a ``config.json``. ``kernels``: implementations, as ``from_config`` takes them.

        Raises InputError where the model cannot be cut."""
        config = _config(path, name)
        try:
            model = _on_meta(config, kernels)
            return _examined(name, model, _layer_list(model))
        except CutError as error:
            raise InputError(
                f"{name}: {error}; a model source cuts other models (docs/tutorials/own-model.md)"
            ) from error

    @property
    def config(self) -> Any:
        """The configuration of the model's decoder."""
        return self.model.config.get_text_config()

    @cached_property
    def calls(self) -> LayerCalls:
        """What each layer is called with."""
        return LayerCalls(self.placeholder)

    @cached_property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Names of parameters that are one, several each."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return tuple(tuple(group) for group in names.values() if len(group) > 1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What the model's own ``forward`` calls its loss."""
        return _loss(self.model, logits, labels)

    def closed(self, model: Any) -> Callable[[Tensor], Tensor]:
        """What comes after the layers of a copy of the model, which loses its body."""
        units = [model.get_submodule(name) for name in self.closing]
        parent, _, child = self.body.rpartition(".")
        setattr(model.get_submodule(parent), child, _Given(self.output))

        def run(hidden: Tensor) -> Tensor:
            for unit in units:
                hidden = unit(hidden)
            logits: Tensor = model(inputs_embeds=hidden, use_cache=False).logits
            return logits

        return run


class _PlaceholderProducts(TorchFunctionMode):
    """Within: a product with a placeholder costs a sum, and not a matrix of one number."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is linear and not any(args[1].stride()):
            out = args[0].sum(-1, keepdim=True) * args[1][0, 0]
            return out.expand(*out.shape[:-1], len(args[1])).clone()
        return func(*args, **kwargs or {})


class _Given(nn.Module):
    """In place of the body: what it is given is what it returns."""

    def __init__(self, output: type[Any]) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_: Any, inputs_embeds: Tensor | None = None, **__: Any) -> Any:
        if inputs_embeds is None:
            raise CutError("what has its layers is not called with inputs_embeds")
        if issubclass(self._output, tuple):
            return (inputs_embeds,)
        return self._output(last_hidden_state=inputs_embeds)


def transformers() -> Any:
    """The library. Raises InputError where it is not installed."""
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        raise InputError(
            f"hf: needs {error.name}: pip install 'pipeloom[models]' "
            "(in a checkout: pip install '.[models]')"
        ) from None


def initialise(model: Any, device: torch.device | str) -> None:
    """Draws the parameters that the model has not been given, and computes its buffers."""
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    with torch.no_grad():
        model.initialize_weights()


def _copied(model: Any, replaced: Mapping[nn.Module, nn.Module]) -> Any:
    """A copy with other modules in places of some, which are not copied; nor are configurations."""
    memo: dict[int, Any] = {id(old): new for old, new in replaced.items()}
    for module in model.modules():
        config = getattr(module, "config", None)
        memo[id(config)] = config
    return deepcopy(model, memo)


def _config(path: Path, name: str) -> Any:
    library = transformers()
    try:
        return library.AutoConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:
        raise InputError(f"{name}: {path.name}: {_brief(error)}") from error


def _on_meta(config: Any, kernels: Mapping[str, str]) -> Any:
    """The causal language model of a configuration. Raises CutError for what cannot train."""
    kind, decoder = config.model_type, config.get_text_config()
    if config.is_encoder_decoder:
        raise CutError(f"{kind}: expected a decoder alone, found an encoder and a decoder")
    if getattr(config, "quantization_config", None) is not None:
        raise CutError(f"{kind}: expected weights to train, found quantization_config")
    if getattr(decoder, "output_router_logits", False):
        raise CutError(
            f"{kind}: expected output_router_logits false, got true: the routers' auxiliary loss, "
            "which is one of all layers together, would be lost"
        )
    if getattr(decoder, "layerdrop", 0):
        raise CutError(f"{kind}: expected layerdrop 0, got {decoder.layerdrop}")
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = transformers().AutoModelForCausalLM.from_config(config, **kernels).train()
    except Exception as error:
        raise CutError(f"{kind}: expected a causal language model: {_brief(error)}") from error
    model.loss_type = model.loss_type or "ForCausalLM"  # what it falls back to, with a warning
    return model


def _layer_list(model: Any) -> str:
    """The name of the list of decoder layers."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    fits = [name for name in outer if len(model.get_submodule(name)) == count]
    if len(fits) != 1:
        found = ", ".join(f"{name} ({len(model.get_submodule(name))})" for name in outer)
        raise CutError(
            f"{type(model).__name__}: expected one list of {count} decoder layers, found "
            f"{found or 'none'}"
        )
    return str(fits[0])


@torch.no_grad()
def _examined(name: str, model: Any, layers: str) -> Skeleton:
    """Finds what its layers return and what is around them. Raises CutError where the model
    does not fit."""
    try:
        with _PlaceholderProducts():
            found = _cut(name, _formed(model, layers))
            found.calls.plan((1, TOKENS), torch.float32, CPU)
            return found
    except Exception as error:
        raise CutError(f"{type(model).__name__}: {_brief(error)}") from error


def _formed(model: Any, layers: str) -> Frame:
    """The first form of the layers' outputs with which the model runs as far as the last one."""
    first: Exception | None = None
    for form in FORMS:
        frame = Frame(model, layers, form)
        try:
            capture(*frame.placeholder(0.5, torch.float32, CPU), torch.zeros(1, TOKENS).long())
        except Exception as error:
            first = first or error
        else:
            return frame
    assert first is not None
    raise first


def _cut(name: str, frame: Frame) -> Skeleton:
    """Runs the model as a whole, and cut into its parts. Raises CutError where these differ."""
    whole, stand_ins = frame.placeholder(0.5, torch.float32, CPU)
    before, after, output = _watch(frame, whole, stand_ins)
    width = whole.config.get_text_config().hidden_size
    stand_ins.result = hidden = torch.linspace(-1, 1, TOKENS * width).view(1, TOKENS, width)
    tokens = torch.arange(TOKENS)[None] % 2
    found = whole(input_ids=tokens, labels=tokens, use_cache=False)
    stand_ins.check()
    skeleton = Skeleton(
        frame.model,
        frame.layers,
        frame.form,
        name=name,
        before=tuple(before),
        closing=tuple(unit for unit in after if unit.rpartition(".")[0] == frame.body),
        after=tuple(after),
        output=output[0],
    )
    _check_complete(skeleton)
    logits = skeleton.closed(whole)(hidden)
    if not torch.equal(logits, found.logits):
        raise CutError(f"from its layers to its logits there is more than {', '.join(after)}")
    if not torch.equal(_loss(whole, logits, tokens), found.loss):
        raise CutError("its loss is another than the next token's cross entropy")
    return skeleton


def _watch(
    frame: Frame, whole: Any, stand_ins: StandIns
) -> tuple[dict[str, None], dict[str, None], list[type]]:
    """The units that run before and after the layers, in order, and what the body returns: each
    filled when the model runs."""
    before: dict[str, None] = {}
    after: dict[str, None] = {}
    output: list[type] = []

    def note(unit: str) -> Callable[..., None]:
        return lambda *_: (after if stand_ins.calls else before).update({unit: None})

    for unit in frame.units:
        for part in whole.get_submodule(unit).modules():
            part.register_forward_pre_hook(note(unit))
    body = whole.get_submodule(frame.body)
    body.register_forward_hook(lambda _module, _args, out: output.append(type(out)))
    return before, after, output


def _check_complete(skeleton: Skeleton) -> None:
    """Raises CutError where a unit runs twice, or has weights and does not run."""
    both = [unit for unit in skeleton.before if unit in skeleton.after]
    if both:
        raise CutError(f"{both[0]} runs before its layers and after them")
    there = (*skeleton.before, *skeleton.after, *skeleton.blocks)
    model = skeleton.model
    for name, _ in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        if not any(name.startswith(f"{unit}.") for unit in there):
            raise CutError(f"{name} is in no module that tokens alone pass through")


def _loss(model: Any, logits: Tensor, labels: Tensor) -> Tensor:
    size = model.config.get_text_config().vocab_size
    loss: Tensor = model.loss_function(logits=logits, labels=labels, vocab_size=size)
    return loss


def _brief(error: Exception) -> str:
    """The first line of an error."""
    kind = "" if isinstance(error, CutError) else f"{type(error).__name__}: "
    return f"{kind}{error}".splitlines()[0]
