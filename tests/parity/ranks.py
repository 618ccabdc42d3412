"""Trains a case on each rank of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from pipeloom import LossScale, Pipeline
from pipeloom.ir import PipeloomError
from tests.support.hub import own

from .cases import DEVICE, Case, Step
from .models import (
    WORDS,
    Experts,
    batch,
    compiled,
    make_stage,
    mean_square,
    optimizer,
    parallel,
    source,
    thaw,
    weighted,
)
from .plain import Found, summed

SECONDS, AFTER = 120.0, "after the first step: "


def patience(case: Case) -> float:
    """Seconds that a message may take, as ranks may compile; with Inductor, minutes."""
    return SECONDS * (5 if "inductor" in (case["compiled"], case["stages_as"]) else 1)


def run_cases(
    cases: Sequence[Case], folder: str, tell: Callable[[tuple[int, Found | str]], object]
) -> None:
    """Run by each rank of a launch: train the cases, and report each result or refusal."""
    torch.set_num_threads(1)
    for i, case in enumerate(cases):
        ranked = Ranked(case, folder)
        try:
            pipeline = ranked.made(resumed=False)
        except PipeloomError as error:
            tell((i, str(error)))
            continue
        tell((i, ranked.run(pipeline)))


class Ranked:
    """One rank of a case."""

    def __init__(self, case: Case, folder: str) -> None:
        self.case, self.folder, self.found = case, folder, Found()
        self.mesh: DeviceMesh | None = None
        self.replica = 0
        if case.replicas * case.width > 1:
            size, names = (*case.data_axes, case["ranks"], case.width), ("rep", "dp", "pp", "tp")
            self.mesh = init_device_mesh(DEVICE.type, size, mesh_dim_names=names)
            self.data = self.mesh["rep", "dp"]._flatten("data")
            self.replica = self.data.get_local_rank()
        if case["compiled"] != "no":
            torch._dynamo.reset()

    def run(self, pipeline: Pipeline) -> Found:
        """Train all steps.

        A PipeloomError of the first step is raised unchanged; later ones do not count as refusals.
        """
        torch.manual_seed(pipeline.rank + self.replica * self.case["ranks"])
        for step in self.case.steps:
            try:
                if step.resumes:
                    pipeline = self._resumed(pipeline)
                if step.number == 1 and self.case["thaws"]:
                    self._thaw(pipeline)
                self._train(pipeline, step)
                if self.case["evaluates"]:
                    self._evaluate(pipeline, step)
            except PipeloomError as error:
                exchanged = str(error).startswith("program: ")
                if exchanged or step.number == 0 or (step.number == 1 and self.case["thaws"]):
                    raise
                raise RuntimeError(f"{AFTER}{type(error).__name__}: {error}") from error
        pipeline.finish()
        for s, module in pipeline.modules.items():
            for name, p in module.named_parameters(remove_duplicate=False):
                key = f"{s}.{name}".replace("_orig_mod.", "")
                self.found.gradients[key] = None if p.grad is None else self._whole(p.grad)
                self.found.parameters[key] = self._whole(p.detach()).clone()
        self.found.norm = pipeline.grad_norm
        scale = pipeline.loss_scale
        self.found.scale = None if scale is None else scale.scale
        pipeline.close()
        return self.found

    def _whole(self, value: Tensor) -> Tensor:
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return value.cpu()

    def made(self, *, resumed: bool) -> Pipeline:
        case, groups = self.case, dict[str, Any]()
        if self.mesh is not None:
            groups["group"] = self.mesh["pp"].get_group()
            if case.replicas > 1:
                groups["data_group"] = self.data.get_group()
        dtypes: dict[str, Any] = {
            name: None if case[name] is None else getattr(torch, case[name])
            for name in ("param_dtype", "reduce_dtype")
        }
        scale = case["loss_scale"]
        losses: Any = {"weighted": weighted, "model": lambda output, _: output["loss"]}
        loss = losses.get(case["loss"], mean_square)
        return Pipeline(
            case.program(case["microbatches"], resumed=resumed),
            [partial(self._stage, s) for s in range(case.stages)],
            loss=loss,
            scale_grads=case["scale_grads"],
            optimizer=None if case["optimizer"] == "none" else partial(optimizer, case),
            tied=case.tied,
            skips=case.skips,
            names=source(case["model"], case.stages).names(case.stages)
            if case.hugging
            else lambda stage, name: f"{stage}.{name}",
            varying_shapes=case["lengths"] == "each step",
            clip_grad_norm=case["clip"],
            loss_scale=None if scale is None else LossScale(scale, interval=2),
            stages_as=case["stages_as"],
            memory=case["memory"],
            timeout=patience(case),
            transport=own(),
            device=None if DEVICE.type == "cpu" else DEVICE,
            **dtypes,
            **groups,
        )

    def _stage(self, stage: int) -> nn.Module:
        module = make_stage(self.case, stage)
        if self.mesh is not None and self.case.cut(stage):
            module = parallel(module, self.mesh["tp"], sequence=self.case["sequence"])
        if self.case["compiled"] != "no":
            module = compiled(module, self.case["compiled"])
        if self.mesh is not None:
            self._spread(module, self.mesh)
        return module

    def _spread(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Distribute experts over processes, and shard the module with ``fully_shard``."""
        experts = [part for part in module.modules() if isinstance(part, Experts)]
        for part in experts if self.case.spread else ():
            part.spread(mesh["dp"])
            fully_shard(part.stack, mesh=mesh["rep"])
        over = {"hybrid": mesh["rep", "dp"], "sharded experts": self.data}
        if self.case.sharded:
            fully_shard(module, mesh=over.get(self.case["replicas"], mesh["dp"]))

    def _given(self, step: Step, count: int) -> tuple[Any, dict[str, Any]]:
        """The arguments of a step or an evaluation for this replica."""
        first = self.replica * count
        mine = slice(first, first + count)
        rows = batch(self.case, step.number, count * self.case.replicas)
        given: list[Any] = [row[mine] for row in rows]
        if self.case["given"] == "whole" and self.case["lengths"] == "alike":
            given = list(map(torch.cat, given))
        xs, ys, factors = given
        more: dict[str, Any] = {"target": ys}
        if self.case["loss"] == "model":
            more["labels"] = ys
        if self.case["loss"] == "weighted":
            more["loss_kwargs"] = {"weight": 1.0 + step.number}
        return xs, more | ({"factor": factors} if self.case["factor"] else {})

    def _train(self, pipeline: Pipeline, step: Step) -> None:
        case, count, losses = self.case, step.count, list[Tensor]()
        xs, given = self._given(step, count)
        if count != case["microbatches"]:
            given["program"] = case.program(count, resumed=step.resumed)
        output = pipeline.step(xs, losses=losses, update=step.update, **given)
        mine = self._ended(pipeline, step, count)
        self.found.losses |= {(step.number, j): x.item() for j, x in zip(mine, losses, strict=True)}
        output = output["out"] if isinstance(output, dict) else output
        if mine:
            sizes = [WORDS * prod(case.shape(step.number, j)) for j in mine]
            flat = torch.cat(
                [x.flatten() for x in (output if isinstance(output, list) else [output])]
            )
            parts = zip(mine, torch.split(flat, sizes), strict=True)
            self.found.outputs |= {(step.number, j): summed(x) for j, x in parts}
        if step.update and case["rates"] == "falling":
            for each in pipeline.optimizers.values():
                for group in each.param_groups:
                    group["lr"] *= 0.7

    def _thaw(self, pipeline: Pipeline) -> None:
        for stage, module in pipeline.modules.items():
            thawed = thaw(module)
            if stage in pipeline.optimizers:
                pipeline.optimizers[stage].add_param_group({"params": thawed})

    def _evaluate(self, pipeline: Pipeline, step: Step) -> None:
        count, losses = self.case["microbatches"], list[Tensor]()
        xs, given = self._given(step, count)
        before = pipeline.peak_memory, pipeline.marks()
        pipeline.eval(xs, losses=losses, **given)
        assert before == (pipeline.peak_memory, pipeline.marks())
        mine = self._ended(pipeline, step, count)
        found = {(step.number, j): x.item() for j, x in zip(mine, losses, strict=True)}
        self.found.evaluated |= found

    def _ended(self, pipeline: Pipeline, step: Step, count: int) -> list[int]:
        """The microbatches whose last stage is on this rank, ascending."""
        ends = self.case.schedule(count, resumed=step.resumed).problem.owner[-1].tolist()
        mine = [j for j in range(count) if ends[j] == pipeline.rank]
        return [j + self.replica * count for j in mine]

    def _resumed(self, before: Pipeline) -> Pipeline:
        """A new pipeline that continues from the saved state of ``before``."""
        path = Path(self.folder) / str(self.case.number)
        state: dict[str, Any] = {}
        if own() is None:
            save({"pipeline": before}, checkpoint_id=path)
        else:
            rows = before.gather(before.state_dict())
            state = {part: {k: v for row in rows for k, v in row[part].items()} for part in rows[0]}
        before.close()
        after = self.made(resumed=True)
        if own() is None:
            load({"pipeline": after}, checkpoint_id=path)
        else:
            after.load_state_dict(state)
        return after
