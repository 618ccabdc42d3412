"""The same training in one process with plain PyTorch: one autograd graph and one optimizer.

From the schedule, it uses only which rank runs which forwards in which order, since this determines
the random numbers that a process draws and the updates of its stages' buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pipeloom.ir import OpKind, Schedule, Updates

from .cases import DEVICE, Case, Step
from .models import Noise, batch, make_stage, mean_square, optimizer, thaw, weighted

DIVERGED = 1e12
RANDOM: Any = torch if DEVICE.type == "cpu" else torch.get_device_module(DEVICE)
Losses: TypeAlias = dict[tuple[int, int], float]  # by step and microbatch


@dataclass
class Found:
    """The results of a training run.

    ``losses`` by step and microbatch, and ``evaluated`` those of evaluations; ``outputs``: a
    checksum of each output. ``gradients`` and ``norm`` of the last step and ``parameters`` after
    it, by stage and name.
    """

    losses: Losses = field(default_factory=dict)
    outputs: Losses = field(default_factory=dict)
    evaluated: Losses = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    norm: float | None = None
    scale: float | None = None


class Plain:
    """Does in one process what all ranks of all replicas do."""

    def __init__(self, case: Case) -> None:
        self.case, self.found = case, Found()
        self.wholes = [make_stage(case, s) for s in range(case.stages)]
        for (s, name), *others in case.tied:
            for other, path in others:
                shared, copy = self.wholes[s].get_parameter(name), self.wholes[other]
                own = copy.get_parameter(path)
                for each, p in [*copy.named_parameters(remove_duplicate=False)]:
                    if p is own:
                        owner, _, leaf = each.rpartition(".")
                        setattr(copy.get_submodule(owner), leaf, shared)
        named = (p for whole in self.wholes for p in whole.parameters())
        self.trained = [*{id(p): p for p in named if p.requires_grad}.values()]
        has = case["optimizer"] != "none"
        self.optimizer = optimizer(case, self.trained) if has else None
        self.copies: dict[tuple[int, int], nn.Module] = {}
        self.buffers: dict[int, dict[str, Tensor]] = {}
        self.drawn: dict[int, Tensor] = {}  # the state of each process's random generator
        self.stale: list[dict[str, Tensor]] = []  # by stage, weights used instead of the current
        self.scale, self.good = case["loss_scale"], 0

    def run(self) -> Found:
        for step in self.case.steps:
            if step.resumes:
                self._resume(self.case.schedule(self.case["microbatches"]))
            if step.number == 1 and self.case["thaws"]:
                thawed = [p for whole in self.wholes for p in thaw(whole)]
                self.trained += thawed
                if self.optimizer is not None:
                    self.optimizer.add_param_group({"params": thawed})
            self._train(step, self.case.schedule(step.count, resumed=step.resumed))
            if self.case["evaluates"]:
                schedule = self.case.schedule(self.case["microbatches"], resumed=step.resumed)
                with self._evaluating(), torch.no_grad():
                    losses = self._forwards(step, schedule)
                self.found.evaluated |= {(step.number, j): x.item() for j, x in losses.items()}
        for s, whole in enumerate(self.wholes):
            for name, p in whole.named_parameters(remove_duplicate=False):
                self.found.parameters[f"{s}.{name}"] = p.detach().cpu()
                self.found.gradients[f"{s}.{name}"] = None if p.grad is None else p.grad.cpu()
        self.found.scale = self.scale
        return self.found

    def _train(self, step: Step, schedule: Schedule) -> None:
        case = self.case
        if schedule.updates is not Updates.ITERATION:
            self._train_stale(step, schedule)
            return
        losses = self._forwards(step, schedule)
        self.found.losses |= {(step.number, j): loss.item() for j, loss in losses.items()}
        if not case.overflows and max(map(abs, self.found.losses.values())) > DIVERGED:
            raise FloatingPointError("it diverges")
        share = 1.0 / case.replicas / (step.count if case["scale_grads"] else 1)
        for _, loss in sorted(losses.items()):
            torch.autograd.backward(loss * share)
        if not step.update or self.optimizer is None:
            return
        if self._steps():
            self.optimizer.step()
        self._lower_rates()
        if step.number < len(case.steps) - 1:
            self.optimizer.zero_grad()

    def _train_stale(self, step: Step, schedule: Schedule) -> None:
        """Train with stale weights (PipeDream).

        Stage s uses the weights from as many updates ago as there are stages after it.
        """
        named = [dict(whole.named_parameters()) for whole in self.wholes]
        history = [[{n: p.detach().clone() for n, p in each.items()} for each in named]]
        for j in range(step.count):
            ages = [max(0, j - (len(named) - 1 - s)) for s in range(len(named))]
            self.stale = [
                {
                    n: x.clone().requires_grad_(named[s][n].requires_grad)
                    for n, x in history[v][s].items()
                }
                for s, v in enumerate(ages)
            ]
            (loss,) = self._forwards(step, schedule, only=j).values()
            torch.autograd.backward(loss)
            self.found.losses[step.number, j] = loss.item()
            for each, used in zip(named, self.stale, strict=True):
                for n, p in each.items():
                    if (grad := used[n].grad) is not None:
                        p.grad = grad if p.grad is None else p.grad + grad
            if self.optimizer is not None:
                self.optimizer.step()
                self.optimizer.zero_grad()
            history.append([{n: p.detach().clone() for n, p in each.items()} for each in named])
        self.stale = []
        self._lower_rates()

    def _lower_rates(self) -> None:
        if self.optimizer is not None and self.case["rates"] == "falling":
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.7

    def _steps(self) -> bool:
        """Clip the gradients; returns whether the optimizer may step."""
        most, scaled = self.case["clip"], self.scale is not None
        if most is None and not scaled:
            return True
        norm = float(nn.utils.get_total_norm([p.grad for p in self.trained if p.grad is not None]))
        self.found.norm = norm
        if isfinite(norm) and most is not None:
            nn.utils.clip_grad_norm_(self.trained, most)
        if scaled:
            self.good = self.good + 1 if isfinite(norm) else 0
            self.scale *= 1.0 if isfinite(norm) else 0.5
            if self.good == 2:
                self.scale, self.good = self.scale * 2, 0
        return isfinite(norm)

    def _forwards(
        self, step: Step, schedule: Schedule, only: int | None = None
    ) -> dict[int, Tensor]:
        """The loss of each microbatch of all replicas.

        Each process runs forwards in the order of the schedule.
        """
        case, ranks, count = self.case, schedule.problem.ranks, schedule.problem.microbatches
        xs, ys, factors = batch(case, step.number, count * case.replicas)
        carried: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        skipped: dict[tuple[int, int], list[Tensor]] = {}
        losses: dict[int, Tensor] = {}
        rows = {
            replica * ranks + rank: [
                (op.stage, op.microbatch + replica * count)
                for op in schedule.ops(rank)
                if op.kind is OpKind.F and only in (None, op.microbatch)
            ]
            for replica in range(case.replicas)
            for rank in range(ranks)
        }
        while any(rows.values()):
            process = next(p for p, row in rows.items() if row and _ready(row[0], carried))
            s, j = rows[process].pop(0)
            inputs = (xs[j],) if s == 0 else carried[s - 1, j]
            ending = [k for k, (_, end) in enumerate(case.skips) if end == s]
            inputs = (*inputs, *(skipped[j, k].pop() for k in ending))
            options: dict[str, Any] = {"factor": factors[j]} if case["factor"] else {}
            if case["loss"] == "model" and s == case.stages - 1:
                options["labels"] = ys[j]
            output = self._computed(process, s, inputs, options)
            if s == case.stages - 1:
                losses[j] = self._loss(output, ys[j], step)
                if self.wholes[0].training:
                    found = output["out"] if case["loss"] == "model" else output
                    self.found.outputs[step.number, j] = summed(found)
                continue
            outputs = output if isinstance(output, tuple) else (output,)
            starting = [k for k, (start, _) in enumerate(case.skips) if start == s]
            cut = len(outputs) - len(starting)
            carried[s, j] = outputs[:cut]
            skipped |= {(j, k): [x] for k, x in zip(starting, outputs[cut:], strict=True)}
        return losses

    def _loss(self, output: Any, target: Tensor, step: Step) -> Tensor:
        if self.case["loss"] == "model":
            found: Tensor = output["loss"]
            return found
        output = output.to(self.case.dtype)
        if self.case["loss"] == "weighted":
            return weighted(output, target, weight=1.0 + step.number)
        return mean_square(output, target)

    def _computed(
        self, process: int, stage: int, inputs: tuple[Tensor, ...], options: Mapping[str, Tensor]
    ) -> Any:
        """The output of a process's copy of a stage, with the process's random numbers."""
        if process not in self.drawn:
            torch.manual_seed(process)
            self.drawn[process] = RANDOM.get_rng_state()
        RANDOM.set_rng_state(self.drawn[process])
        module, given, more = self._copy(process, stage), inputs, dict(options)
        own: dict[str, Tensor] = dict(self.wholes[stage].named_parameters(remove_duplicate=False))
        if self.case["param_dtype"] is not None:
            dtype = getattr(torch, self.case["param_dtype"])
            own = {name: p.to(dtype) for name, p in own.items()}
            given = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
            more = {name: x.to(dtype) for name, x in options.items()}
        for name, value in (own | (self.stale[stage] if self.stale else {})).items():
            _put(module, name, value)
        output = module(*given, **more)
        self.drawn[process] = RANDOM.get_rng_state()
        return output

    def _copy(self, process: int, stage: int) -> nn.Module:
        if (process, stage) not in self.copies:
            made = make_stage(self.case, stage)
            made.load_state_dict(self.buffers.get(stage, {}), strict=False)
            made.train(self.wholes[0].training)
            self.copies[process, stage] = made
        return self.copies[process, stage]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode; afterwards, all state is as before."""
        drawn = dict(self.drawn)
        kept = {key: _state(module) for key, module in self.copies.items()}
        for module in (*self.wholes, *self.copies.values()):
            module.eval()
        yield
        self.drawn = drawn
        self.copies = {key: self.copies[key] for key in kept}
        for key, (buffers, generators) in kept.items():
            self.copies[key].load_state_dict(buffers, strict=False)
            for noise, state in zip(_noises(self.copies[key]), generators, strict=True):
                noise.generator.set_state(state)
        for module in (*self.wholes, *self.copies.values()):
            module.train()

    def _resume(self, schedule: Schedule) -> None:
        """Restore as a checkpoint does.

        The buffers of all copies are those of the first rank that ran the stage. Stages are new,
        and gradients are dropped.
        """
        for s in range(self.case.stages):
            first = min(schedule.problem.owner[s].tolist())
            self.buffers[s] = _state(self._copy(first, s))[0]
        self.copies.clear()
        for p in self.trained:
            p.grad = None


def summed(output: Tensor) -> float:
    """A checksum of an output that changes if two elements are exchanged."""
    found = output.detach().double().flatten()
    return float(
        found @ torch.linspace(0.5, 1.5, len(found), dtype=found.dtype, device=found.device)
    )


def _ready(op: tuple[int, int], carried: Mapping[tuple[int, int], Any]) -> bool:
    return op[0] == 0 or (op[0] - 1, op[1]) in carried


def _state(module: nn.Module) -> tuple[dict[str, Tensor], list[Tensor]]:
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    return buffers, [part.generator.get_state() for part in _noises(module)]


def _noises(module: nn.Module) -> list[Noise]:
    return [part for part in module.modules() if isinstance(part, Noise)]


def _put(module: nn.Module, path: str, value: Tensor) -> None:
    """Replace a parameter until the next call, as a checkpoint also uses it in its backward."""
    owner, _, leaf = path.rpartition(".")
    part = module.get_submodule(owner)
    part._parameters.pop(leaf, None)
    part.__dict__[leaf] = value
