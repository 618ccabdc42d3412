"""A parity case: a choice on each axis, and the schedules that follow from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from random import Random
from typing import Any

import numpy as np
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    Link,
    Op,
    OpKind,
    Passing,
    PipeloomError,
    Placement,
    Problem,
    Profile,
    Program,
    Schedule,
    StageProfile,
    Transfer,
    TransferKind,
    timed,
)
from pipeloom.solver import FAMILIES, Route, Streaming, build_family, replicate, streamed
from tests.support.random_schedules import LEVERS, random_order, with_levers

PIECES = (
    *("sometimes", "running mean", "late mean", "batch norm", "dropout", "generator", "experts"),
    *("twice", "weight norm", "slices", "attention", "frozen", "in place", "idle", "hook"),
    *("all frozen", "empty", "table", "row", "neighbours", "positions"),
)
HUGGING = ("gemma2", "llama", "mixtral", "mamba", "gpt2")
REPLICAS = {"sharded": (1, 2), "hybrid": (2, 2), "sharded experts": (2, 2)}
"""The sizes of the two axes of replicas.

``fully_shard`` shards over the second axis, or in ``hybrid`` over both. ``sharded experts`` are
spread over the second axis and sharded over the first.
"""
RANDOM, ANYWHERE, ENDS = "any order", "any rank for any op", "replicated ends"
ROUTES = ("one way", "fanned out", "by way of a bystander", "no op waits for weights")
MANY = ("interleaved-1f1b:2", "wave:2")
AXES: dict[str, tuple[Any, ...]] = {
    "ranks": (2, 3, 4, 1),
    "plan": ("1f1b", *FAMILIES, *MANY, *(RANDOM, ANYWHERE, ENDS) * 4, *ROUTES),
    "microbatches": (4, 2, 3, 5, 6, 8),
    "model": ("parts", "parts", *HUGGING),
    "tensor parallel": ("none", "some", "all"),
    "sequence": (False, True),  # sequence parallel norms in tensor parallel stages
    "replicas": (1, 1, 1, 2, 2, *REPLICAS),
    "input": ("floats", "tokens"),
    "tied": ("none", "ends", "second name", "middle", "idle"),
    "skips": ("none", "one", "two"),
    "edges": (
        *("plain", "mask", "pair", "unused", "same", "as it came", "detached", "transposed"),
        *("number", "nothing", "expanded", "parameter"),
    ),
    "given": ("in microbatches", "whole"),
    "lengths": ("alike", "rows", "lengths", "each step"),
    "dtype": ("float64", "float64", "float32"),
    "param_dtype": (None, "float32", "bfloat16"),
    "reduce_dtype": (None, "float32"),
    "stages_as": ("eager", *("aten",) * 9, "inductor"),
    "compiled": ("no", *("whole", "in place", "parts") * 3, "inductor"),
    "remat": ("none", "R", "O", "some"),
    "loss": ("function", "weighted", "model"),
    "scale_grads": (True, False),
    "factor": (False, True),
    "optimizer": ("plain", "momentum", "adamw", "adam", "none"),
    "rates": ("same", "falling"),
    "clip": (None, 0.05, 1e6),
    "loss_scale": (None, 1024.0),
    "overflow": (False, True),  # gradients overflow in one step
    "ahead": (False, True),
    "adds_up": (False, True),
    "evaluates": (False, True),
    "restores": ("no", RANDOM, ANYWHERE),
    "exchange": ("no", "program"),
    "memory": (True, False),
    "thaws": (False, True),  # frozen parameters are trained from the second step on
    **dict.fromkeys(PIECES, ("none", "some", "all")),
    "all frozen": ("none", "some"),
}
PROFILED = StageProfile(*(2.0, 2.0, 1.5, 1.0, 0.5, 1e3, 1e6), t_fb=4.0, t_r=2.0, m_r=0.1, m_o=0.1)
OF_PARTS = {*PIECES, "edges", "skips", "factor", "loss", "tied", "input", "thaws", "overflow"}
LATER = ("adds_up", "ahead", "loss_scale", "overflow", "thaws")
UNCUT = {"hook", "lengths"}
"""Axes that Hugging Face models and tensor parallel stages do not have."""


DEVICE = torch.device(os.environ.get("PARITY_DEVICE", "cpu"))
"""The device of the pipeline and of plain PyTorch."""


class UnmadeError(Exception):
    """A case has no schedule."""


@dataclass(frozen=True)
class Step:
    """A step with ``count`` microbatches, which ends with an optimizer step if ``update``.

    ``resumes``: before this step, the state is saved, and restored in a pipeline with another
    schedule. ``resumed``: this step or an earlier one did so.
    """

    number: int
    count: int
    update: bool
    resumes: bool
    resumed: bool


@dataclass(frozen=True)
class Case:
    """A case; ``choices`` holds those that differ from the axis's default, its first value."""

    seed: int
    number: int
    choices: tuple[tuple[str, Any], ...]

    @classmethod
    def drawn(cls, seed: int, number: int) -> Case:
        """A random case, in which few or many axes differ from the default."""
        draw = Random(f"{seed} {number}")
        share = draw.choice([0.1, 0.2, 0.3])
        picked = {
            axis: draw.choice(values)
            for axis, values in AXES.items()
            if draw.random() < (1.0 if axis in ("plan", "ranks") else share)
        }
        if picked["ranks"] == 1:  # one rank tests no messages, ties or skips
            picked["ranks"] = 2
        if "thaws" in picked:
            picked |= {"frozen": "all", "restores": "no"}
            picked |= {"empty": "none", "all frozen": "none"}
        if picked.get("model", "parts") != "parts":
            picked = {axis: value for axis, value in picked.items() if axis not in OF_PARTS}
        if picked.get("model") == "mamba":  # torch cannot compile it with param_dtype
            picked.pop("compiled", None)
        if "compiled" in picked:  # split stages run uncompiled, and buffers' versions differ
            picked.pop("batch norm", None)
        if picked.get("tensor parallel", "none") != "none":
            picked = {axis: value for axis, value in picked.items() if axis not in UNCUT}
            picked |= {"ranks": 2} | ({"tied": "ends"} if "tied" in picked else {})
        if picked.get("tied") in ("ends", "second name"):
            picked["input"] = "tokens"
        return cls.of(seed, number, _for_replicas(picked))

    @classmethod
    def of(cls, seed: int, number: int, choices: dict[str, Any]) -> Case:
        kept = {k: v for k, v in choices.items() if v != AXES[k][0]}
        return cls(seed, number, tuple(kept.items()))

    def without(self, axis: str) -> Case:
        """The same case with the default on ``axis``."""
        return Case.of(self.seed, self.number, {k: v for k, v in self.choices if k != axis})

    def __getitem__(self, axis: str) -> Any:
        return dict(self.choices).get(axis, AXES[axis][0])

    def __str__(self) -> str:
        """The argument with which ``python -m tests.parity`` repeats the case."""
        numbers = [f"seed={self.seed}", f"number={self.number}"]
        return ", ".join(numbers + [f"{k}={v}" for k, v in self.choices])

    @classmethod
    def read(cls, text: str) -> Case:
        """The inverse of ``str``."""
        words = dict(part.split("=") for part in text.split(", "))
        seed, number = int(words.pop("seed")), int(words.pop("number"))
        known = {axis: {str(value): value for value in values} for axis, values in AXES.items()}
        return cls.of(seed, number, {axis: known[axis][word] for axis, word in words.items()})

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self["dtype"])
        return found

    @property
    def data_axes(self) -> tuple[int, int]:
        """The number of processes with different microbatches, on two axes."""
        ways: Any = self["replicas"]
        return REPLICAS[ways] if ways in REPLICAS else (1, int(ways))

    @property
    def replicas(self) -> int:
        return prod(self.data_axes)

    @property
    def sharded(self) -> bool:
        return self["replicas"] in ("sharded", "hybrid", "sharded experts")

    @property
    def spread(self) -> bool:
        """Whether experts are distributed over processes."""
        return bool(self["replicas"] == "sharded experts")

    @property
    def width(self) -> int:
        """The number of processes per rank (tensor parallelism)."""
        return 1 if self["tensor parallel"] == "none" else 2

    def cut(self, stage: int) -> bool:
        """Whether ``stage`` is tensor parallel."""
        if self["tensor parallel"] != "some":
            return bool(self["tensor parallel"] == "all")
        alike = {s for group in self.tied for s, _ in group}
        return stage == 0 or stage in alike or self._some("tensor parallel", stage)

    @property
    def in_processes(self) -> bool:
        """Whether ranks are processes, not threads.

        They are if there are several processes per rank or replicas, if Inductor compiles, or if
        they compute on a GPU.
        """
        inductor = "inductor" in (self["compiled"], self["stages_as"])
        return self.replicas * self.width > 1 or inductor or DEVICE.type != "cpu"

    @property
    def hugging(self) -> bool:
        return bool(self["model"] != "parts")

    @property
    def overflows(self) -> bool:
        """Whether gradients may overflow.

        Without a norm, which skips the step, all weights would become NaN.
        """
        return bool(self["overflow"] and (self["clip"] or self["loss_scale"]))

    @cached_property
    def stages(self) -> int:
        return self.schedule(self["microbatches"]).problem.stages

    def pieces(self, stage: int) -> set[str]:
        """The names of the pieces that ``stage`` contains."""
        ways = {piece: self[piece] for piece in PIECES}
        found = {piece for piece, way in ways.items() if way == "all"}
        found |= {p for p, way in ways.items() if way == "some" and self._some(p, stage)}
        if self["tied"] == "idle":
            found.add("idle")
        if stage == self.stages - 1:  # an optimizer needs at least one parameter
            found.discard("all frozen")
        unlike = {"none": set[str](), "middle": {"all frozen", "hook", "empty"}}
        return found - unlike.get(self["tied"], {"all frozen"})

    def _some(self, what: str, stage: int) -> bool:
        return Random(f"{self.seed} {self.number} {what} {stage}").random() < 0.5

    @property
    def tied(self) -> list[list[tuple[int, str]]]:
        last = self.stages - 1
        if self.hugging:
            from .models import source

            return [list(group) for group in source(self["model"], self.stages).tied(self.stages)]
        match self["tied"]:
            case "ends" | "second name":
                return [[(0, "embedding.weight"), (last, "head.weight")]]
            case "middle":
                ends = [0, last] if last else []
                some = [s for s in range(last) if self._some("middle", s)]
                return [[(s, "product.weight") for s in sorted({*ends, *some})]] if ends else []
            case "idle":
                return [[(s, "idle") for s in range(self.stages)]] if last else []
        return []

    @property
    def skips(self) -> list[tuple[int, int]]:
        last = self.stages - 1
        pairs = [(0, last), (0, 1), (last // 2, last)]
        found = [pair for pair in pairs if pair[0] < pair[1]]
        return found[: ("none", "one", "two").index(self["skips"])]

    def shape(self, step: int, microbatch: int) -> tuple[int, int]:
        """The number of rows and the length of a microbatch."""
        match self["lengths"]:
            case "rows":
                return 2 + microbatch % 2, 3
            case "lengths":
                return 2, 2 + microbatch % 3
            case "each step":
                return 2 + (step + microbatch) % 2, 2 + (step * microbatch) % 3
        return 2, 3

    @property
    def steps(self) -> list[Step]:
        """The steps: two, or more if a feature needs later ones.

        Some features take effect in the third step. The fourth repeats a number of microbatches
        after a resumption. If gradients are accumulated, only every second step and the last one
        update.
        """
        others, resumes = self["exchange"] != "no", self["restores"] != "no"
        steps = 3 if others or resumes or any(self[axis] for axis in LATER) else 2
        steps += others and resumes
        counts = [self["microbatches"] + (2 if others and i % 2 else 0) for i in range(steps)]
        return [
            Step(
                i,
                count,
                update=not self["adds_up"] or i % 2 == 1 or i == steps - 1,
                resumes=resumes and i == 2,
                resumed=resumes and i >= 2,
            )
            for i, count in enumerate(counts)
        ]

    @cache  # noqa: B019 (there are few cases, all of them kept)
    def program(self, count: int, *, resumed: bool = False) -> Program:
        """The program for ``count`` microbatches, before or after a resumption."""
        return compile_schedule(
            self.schedule(count, resumed=resumed),
            tied=[sorted({s for s, _ in group}) for group in self.tied],
            data_parallel=self.replicas > 1,
            post_validation=self["ahead"] and not (resumed and self["restores"] == ANYWHERE),
        )

    @cache  # noqa: B019
    def schedule(self, count: int, *, resumed: bool = False) -> Schedule:
        """The schedule for ``count`` microbatches; a resumption moves stages to other ranks."""
        if not resumed:
            try:
                return _made(self, count)
            except PipeloomError as error:
                raise UnmadeError(str(error)) from error
        made = _anywhere if self["restores"] == ANYWHERE else _any_order
        draw = Random(f"{self.number} resumed")
        return made(self._profile(self.stages), count, draw, self["microbatches"])

    def _profile(self, stages: int) -> Profile:
        link = Link(0.0, 0.05)
        return Profile((PROFILED,) * stages, self["ranks"], t_comm=0.1, host_link=link, shared_by=1)


def _for_replicas(picked: dict[str, Any]) -> dict[str, Any]:
    """Remove choices that replicas do not support.

    fully_shard calls no hooks, and experts need the same number of rows from each process.
    """
    if picked.get("replicas") in REPLICAS:
        picked = {axis: value for axis, value in picked.items() if axis not in UNCUT}
    if "experts" in str(picked.get("replicas")):
        picked |= {"experts": "all", "model": "parts", "compiled": "no"}
    return picked


def _made(case: Case, count: int) -> Schedule:
    plan, ranks = case["plan"], case["ranks"]
    draw = Random(f"{case.number} plan")
    if plan in (RANDOM, ANYWHERE):
        make = _any_order if plan == RANDOM else _anywhere
        profile = case._profile(draw.randint(2, 2 * ranks))
        found = make(profile, count, draw, case["microbatches"])
    elif plan == ENDS:
        found = build_family("weipipe-interleave", case._profile(ranks), count)
        found = replicate(found, [0, ranks - 1])
    elif plan in ROUTES:
        found = _routed(plan, case._profile(ranks), count)
    else:
        found = build_family(plan, case._profile(ranks), count)
    activations = found.problem.placement.passing is Passing.ACTIVATIONS
    return given_up(found, case["remat"], draw) if activations else found


def _any_order(profile: Profile, count: int, draw: Random, seed: int) -> Schedule:
    """A schedule with stages on random ranks and ops in a random order."""
    owners = [draw.randrange(profile.ranks) for _ in profile.stages]
    placement = Placement.of_stages(owners, ranks=profile.ranks)
    problem = Problem(profile, count, placement, profile.limit_from(None))
    order = random_order(problem, 0.5, Random(seed))
    return timed(Schedule.of(problem, order, "any order"))


def _anywhere(profile: Profile, count: int, draw: Random, seed: int) -> Schedule:
    """A schedule with each stage of each microbatch on a random rank, so weights are also sent.

    For any ``count``, a rank runs the same stages, as microbatches repeat after ``seed``.
    """
    owner = np.array(
        [
            [Random(f"{seed} {s} {j % seed}").randrange(profile.ranks) for j in range(count)]
            for s in range(profile.num_stages)
        ]
    )
    placement = Placement.of_ops(Passing.MIXED, profile.ranks, owner)
    problem = Problem(profile, count, placement, profile.limit_from(None))
    homes = [draw.randrange(profile.ranks) for _ in profile.stages]
    return _streamed(problem, random_order(problem, 0.5, Random(seed)), Streaming(), homes)


def _streamed(
    problem: Problem, order: Sequence[list[Op]], plan: Streaming, homes: Sequence[int] | None = None
) -> Schedule:
    return streamed(problem, Schedule.of(problem, order, "streamed").order, plan, homes)


def _routed(how: str, profile: Profile, count: int) -> Schedule:
    """Weight passing in a ring with routes that no family uses."""
    if how == "by way of a bystander":
        return _by_way(profile, count)
    family = build_family("weipipe-interleave", profile, count)
    if how == "no op waits for weights":
        return _without_waiting(family)
    one_way = Streaming(1, Route.ONE_WAY, 2, lead=0)
    plan = one_way if how == "one way" else Streaming(3, Route.FAN, home=Route.BOTH_WAYS)
    return streamed(family.problem, family.order, plan)


def _without_waiting(schedule: Schedule) -> Schedule:
    """Weights are forwarded as soon as they arrive, and no op waits for weight gradients (D)."""

    def change(transfer: Transfer) -> Transfer:
        if transfer.kind is TransferKind.WEIGHT:
            return replace(transfer, after=0, room=0)
        return replace(transfer, before=len(schedule.order[transfer.target]))

    return timed(replace(schedule, transfers=tuple(map(change, schedule.transfers))))


def _by_way(profile: Profile, count: int) -> Schedule:
    """All messages go through rank 1, which runs no ops and owns no stages."""
    others = [rank for rank in range(profile.ranks) if rank != 1]
    runs = np.array([[others[j % len(others)] for j in range(count)]])
    placement = Placement.of_ops(Passing.WEIGHTS, profile.ranks, runs)
    problem = Problem(profile, count, placement, profile.limit_from(None))
    order: list[list[Op]] = [[] for _ in range(profile.ranks)]
    for j, rank in enumerate(runs[0].tolist()):
        stages = range(profile.num_stages)
        order[rank] += [Op(OpKind.F, s, j) for s in stages]
        order[rank] += [Op(OpKind.BW, s, j) for s in reversed(stages)]
    owner = [others[s % len(others)] for s in range(profile.num_stages)]
    straight = _streamed(problem, order, Streaming(), owner)
    hops = [
        hop
        for t in straight.transfers
        for hop in (
            replace(t, target=1, before=0, room=0),
            replace(t, source=1, after=0, blocks=None),
        )
    ]
    return timed(replace(straight, transfers=tuple(hops)))


def given_up(schedule: Schedule, how: str, draw: Random) -> Schedule:
    """Recompute (R) or offload (O) activations between F and B, for all or some microbatches."""
    ways = {"none": LEVERS[:1], "R": LEVERS[1:2], "O": LEVERS[2:], "some": LEVERS}[how]
    if ways == LEVERS[:1]:
        return schedule
    ranks = range(schedule.problem.ranks)
    rows = [with_levers([*schedule.ops(rank)], draw, ways) for rank in ranks]
    made = Schedule.of(schedule.problem, rows, "custom")
    return timed(replace(made, updates=schedule.updates))
