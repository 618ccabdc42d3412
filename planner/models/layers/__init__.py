"""The work of each layer of a model: its matrix products, other kernels, memory and parameters."""

from __future__ import annotations

from ..model import Model
from ..run import TrainingRun
from ..work import LayerWork, ModelWork, WorkKind
from .attention import write_attention
from .ends import write_embedding, write_head, write_prediction
from .every_second import keep_every_second
from .feed_forward import write_feed_forward
from .sheet import Sheet


def work_of(model: Model, run: TrainingRun) -> ModelWork:
    """The work of each layer of ``model`` in ``run``, in forward order.

    Decoder layers with equal work are one and the same object.
    """
    kinds = [(model.is_moe(index), model.window_of(index)) for index in range(run.layers)]
    made = {kind: _decoder(model, run, *kind) for kind in dict.fromkeys(kinds)}
    ends = [*[_prediction(model, run)] * model.mtp, _head(model, run)]
    layers = (_embedding(model, run), *(made[kind] for kind in kinds), *ends)
    return ModelWork(layers, run.layers_by_stage)


def _embedding(model: Model, run: TrainingRun) -> LayerWork:
    sheet = Sheet(run, recomputes=False)
    write_embedding(sheet, model)
    return sheet.work(WorkKind.EMBEDDING, "embedding", sheet.spread * model.hidden)


def _decoder(model: Model, run: TrainingRun, moe: bool, window: int | None) -> LayerWork:
    sheet = Sheet(run)
    write_attention(sheet, model, window)
    write_feed_forward(sheet, model, model.experts if moe else None)
    kind = WorkKind.MOE if moe else WorkKind.DENSE
    name = f"{kind} layer" + (f" of window {window}" if window else "")
    work = sheet.work(kind, name, sheet.spread * model.hidden)
    return keep_every_second(work) if run.torch_selects else work


def _prediction(model: Model, run: TrainingRun) -> LayerWork:
    sheet = Sheet(run)
    write_prediction(sheet, model)
    write_attention(sheet, model, None)
    write_feed_forward(sheet, model, model.experts)
    write_head(sheet, model, owns=False)
    return sheet.work(WorkKind.MTP, "multi-token prediction", sheet.spread * model.hidden)


def _head(model: Model, run: TrainingRun) -> LayerWork:
    sheet = Sheet(run, recomputes=False)
    write_head(sheet, model, owns=not model.tied)
    return sheet.work(WorkKind.HEAD, "head", 0.0)
