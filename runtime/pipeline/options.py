"""The options of a pipeline that its stages do not say themselves."""

from __future__ import annotations

from typing import TypedDict

import torch
import torch.distributed as dist

from ..optim.loss_scale import LossScale
from ..optim.norm_groups import NormGroups


class Options(TypedDict, total=False):
    """Keyword arguments of :class:`~pipeloom.runtime.pipeline.pipeline.Pipeline`, explained
    there."""

    varying_shapes: bool
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    clip_grad_norm: float | None
    norm_groups: NormGroups | None
    loss_scale: LossScale | None
    post_validation: bool
    cuda_graph: bool
    group: dist.ProcessGroup | None
    data_group: dist.ProcessGroup | None
    device: torch.device | str | None
    timeout: float
    memory: bool
    pace: bool
    verify: bool
