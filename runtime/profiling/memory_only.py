"""Bytes of a model's stages by calculation: nothing is computed, and no memory taken.

Stages run one after the other in this process, as in a measurement, on fake tensors: what autograd
saves and what waits for W is counted as there. Times are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.ops import OpKind

from ..fake_tensors import fake_module, faked, really
from ..pipeline.model_source import ModelSource
from ..probes.measuring import LinkParts, StagePart, measurement
from ..probes.stage_probe import KINDS, Asked
from ..rank.options import StagesAs
from ..stages.store import Stage, StageStore, made
from ..transport import Routes, connect
from .source_probe import SourceStages

UNIT = 1.0
"""Milliseconds of each op, which nobody knows."""


def calculate_memory(
    source: ModelSource,
    stages: int,
    ranks: int,
    asked: Asked,
    *,
    dtype: torch.dtype | None,
    name: str = "",
    stages_as: StagesAs = "eager",
) -> Measurement:
    """The profile of so many stages of ``source``, with all bytes and without times: each op takes
    1 ms. Compiled graphs hold what graphs do.

    Raises InputError where a stage does something that depends on values in tensors.
    """
    device, tied = torch.device("cpu"), source.tied(stages)
    with _told(source), faked():
        made_here = _FakeStages(
            source,
            [0] * stages,
            connect(Routes(), device),
            dtype=dtype,
            device=device,
            tied=tied,
            stages_as="eager" if stages_as == "eager" else "aten",
        )
        probe = made_here.probe(asked)
        sizes = [probe.sizes(s) for s in range(stages)]
    with _told(source):
        held = [made_here.held(s) for s in range(stages)]
    times = dict.fromkeys((*KINDS, *([OpKind.R] if asked.recompute else [])), (UNIT,))
    parts = [
        StagePart(s, times, (), sizes[s], held[s], probe.coverage.get(s), probe.eager.get(s))
        for s in range(stages)
    ]
    found = measurement(
        parts,
        LinkParts(),
        ranks=ranks,
        together=False,
        name=name,
        tied=made_here.tied,
        micro_batch=made_here.micro_batch,
    )
    return replace(found, times=({},) * stages)


class _FakeStages(SourceStages):
    """Stages of fake tensors."""

    def _made(self, build: Stage, stage: int) -> nn.Module:
        with really(), torch.device("meta"):
            return made(build, stage)

    def _stored(
        self, modules: Mapping[int, nn.Module], group: dist.ProcessGroup | None, timeout: float
    ) -> StageStore:
        return StageStore(
            {s: fake_module(module, self._device, self._dtype) for s, module in modules.items()}
        )


@contextmanager
def _told(source: ModelSource) -> Iterator[None]:
    """A context whose errors are one line that says what to do instead."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"memory_only: {type(source).__name__}: expected stages and an optimizer that run "
            f"without values, as these are measured otherwise: {type(error).__name__}: {words}"
        ) from error
