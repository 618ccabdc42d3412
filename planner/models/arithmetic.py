""":func:`arithmetic`: a model's parameters, FLOPs and bytes, for each layer and in total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.units import amount, counted
from pipeloom.report.text_table import table

from ..requests.fields import takes
from ..requests.plans import PredictRequest
from .layers import work_of
from .model import Model
from .reading import read_model
from .run import TrainingRun, usual
from .work import LayerWork, ModelWork, States, WorkKind, different, states_of

_OPS = (OpKind.F, OpKind.R, OpKind.B, OpKind.W)
_SIZES = {"m_b": "M_B", "m_w": "M_W", "m_r": "back in R", "message_bytes": "sent on"}
_KEPT = (
    *("micro_batch", "seq", "layers", "precision", "recompute", "attention"),
    *("gradients", "fused_cross_entropy"),
)
"""The settings of a run that are kept when the model's totals are counted without parallelism."""


@dataclass(frozen=True)
class Arithmetic:
    """A model's parameters, FLOPs and bytes in a training run.

    ``parameters``: number of parameters of the whole model; ``active``: number of those that a
    token uses. ``totals``: bytes of the whole model and one microbatch without any parallelism, by
    kind (``parameters``, ``gradients``, ``optimizer``, ``activations`` and their sum, ``all``).
    ``work``: FLOPs and bytes of each layer on one rank, for one microbatch, with the run's
    parallelism.
    """

    model: Model
    run: TrainingRun
    parameters: int
    active: int
    totals: Mapping[str, float]
    work: ModelWork

    @property
    def most_stages(self) -> int:
        """The maximum number of stages: one for each decoder layer."""
        return self.run.layers

    def to_dict(self) -> dict[str, Any]:
        """The dictionary that ``predict --json`` prints if no cluster is given."""
        return {
            "model": self.model.name,
            "parameters": self.parameters,
            "active_parameters": self.active,
            "most_stages": self.most_stages,
            "totals": dict(self.totals),
            "layers": self._layers(),
        }

    def _layers(self) -> list[dict[str, Any]]:
        """One dictionary per kind of layer, with the number of layers of this kind as ``count``."""
        return [
            {
                "layer": layer.name,
                "count": count,
                "parameters": asdict(layer.parameters),
                "flops": {op.name: layer.flops(op) for op in _OPS},
                "bytes_moved": {op.name: layer.bytes_moved(op) for op in _OPS},
                **{key: getattr(layer, key) for key in _SIZES},
            }
            for layer, count in different(self.work.layers)
        ]

    def __str__(self) -> str:
        return "\n\n".join([self._title(), self._totals(), self._layer_table()])

    def _title(self) -> str:
        active = f", {amount(self.active)} of them for a token" if self.model.experts else ""
        batch = f"{counted(self.run.micro_batch, 'sequence')} of {self.run.seq} tokens"
        return (
            f"{self.model.name}: {self.parameters} parameters{active}; "
            f"{counted(self.run.layers, 'layer')}, so at most as many stages\n"
            f"a microbatch is {batch}, in {self.run.precision}"
        )

    def _totals(self) -> str:
        rows = [[key, amount(value)] for key, value in self.totals.items()]
        return table(["bytes", "of all layers"], rows)

    def _layer_table(self) -> str:
        header = ["layer", "of", "parameters", *(f"{op.name} FLOPs" for op in _OPS)]
        header += ["bytes moved", *_SIZES.values()]
        rows = []
        for row in self._layers():
            held = row["parameters"]["dense"] + row["parameters"]["expert"]
            figures = [held, *row["flops"].values(), sum(row["bytes_moved"].values())]
            figures += [row[key] for key in _SIZES]
            rows.append([row["layer"], str(row["count"]), *map(amount, figures)])
        return "on one rank, for a microbatch\n" + table(header, rows)


@takes(PredictRequest)
def arithmetic(request: PredictRequest) -> Arithmetic:
    """The parameters, FLOPs, and bytes held and moved by a model in a training run, by layer.

    ``model``: a preset's name, a ``config.json``, the folder of one, or its content as a mapping.
    The other arguments are those of :func:`pipeloom.predict`. The cluster is ignored, and gradients
    are in the run's precision unless ``gradients`` is given. Raises InputError with one line per
    fault.
    """
    found, run = read_model(request.model), request.given
    checked = TrainingRun.of(usual(found) | run, found)
    if "gradients" not in run:
        checked = replace(checked, gradients=checked.precision)
    kept = {key: getattr(checked, key) for key in _KEPT}
    one = TrainingRun(**kept, global_batch=checked.micro_batch)
    alone = work_of(found, one).layers
    # the published size of a model does not include multi-token prediction
    count = sum(x.parameters.total for x in alone if x.kind is not WorkKind.MTP)
    return Arithmetic(
        model=found,
        run=checked,
        parameters=count,
        active=count - _idle(found, alone),
        totals=_totals_of(alone, one),
        work=work_of(found, checked),
    )


def _idle(model: Model, layers: tuple[LayerWork, ...]) -> int:
    """The number of parameters, over all layers, in the experts that a given token does not use; 0
    if there are no experts."""
    if model.experts is None:
        return 0
    expert = sum(layer.parameters.expert for layer in layers if layer.kind is WorkKind.MOE)
    return round(expert * (1 - model.experts.chosen / model.experts.count))


def _totals_of(layers: tuple[LayerWork, ...], run: TrainingRun) -> dict[str, float]:
    """The bytes on a rank that holds all ``layers``, by kind, and their sum as ``all``.

    Tied parameters count once.
    """
    states = reduce(States.plus, (states_of(layer.parameters, run) for layer in layers))
    found = {
        "parameters": states.weights,
        "gradients": states.gradients,
        "optimizer": states.optimizer,
        "activations": sum(layer.m_b for layer in layers),
    }
    return found | {"all": sum(found.values())}
