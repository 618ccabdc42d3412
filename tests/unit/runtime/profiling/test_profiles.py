"""Profiles measured in one process: bytes equal those computed by hand and those calculated without
running, and times become links."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from examples import gpt
from pipeloom import HuggingFace, measure
from pipeloom.ir import InputError, Link, Measurement, OpKind, StageProfile
from pipeloom.runtime import ModelSource, StagesAs, measure_profile
from tests.support.delayed_linear import Delayed
from tests.support.inside import LinkSamples, links_of, probe_host
from tests.support.models import Squares, TinyTransformer
from tests.support.one_rank import Of

pytestmark = pytest.mark.usefixtures("here")
ROWS, NARROW, WIDE, MEGABYTE = 3, 8, 16, 1_000_000
WEIGHTS = NARROW * WIDE + WIDE + WIDE * NARROW


@dataclass(frozen=True)
class Stack(Squares):
    """Stages of Linear, two GELUs, Linear."""

    frozen: bool = False
    shape: ClassVar[tuple[int, ...]] = (ROWS, NARROW)

    def stage(self, number: int) -> nn.Module:
        first, narrow = nn.Linear(NARROW, WIDE), nn.Linear(WIDE, NARROW, bias=False)
        first.weight.requires_grad_(not self.frozen)
        return nn.Sequential(first, nn.GELU(), nn.GELU(), narrow)


class Whole(Stack):
    """Its batch cannot be cut."""

    def batch(self, step: int, microbatches: int) -> Any:
        return torch.ones(2, microbatches * ROWS, NARROW).unbind()


class Choosing(Stack):
    """It depends on values."""

    def stage(self, number: int) -> nn.Module:
        return nn.Sequential(super().stage(number), Of(lambda _, x: x if x.sum() > 0 else -x))


def calculated(source: ModelSource, stages: int = 3, **options: Any) -> Measurement:
    options = {"recompute": True, "offload": True} | options
    return measure_profile(source, stages=stages, ranks=stages, memory_only=True, **options)


def measured(source: ModelSource, stages: int = 3, **options: Any) -> Measurement:
    """All stages, measured in one process."""
    options = {"recompute": True, "offload": True, "repeats": 1, "warmup": 0} | options
    return measure_profile(source, stages=stages, ranks=stages, together=False, **options)


@pytest.mark.parametrize(("dtype", "size"), [(None, 4), (torch.float64, 8), (torch.bfloat16, 2)])
def test_sizes_are_those_by_hand(dtype: torch.dtype | None, size: int) -> None:
    """::

    numbers a row  x   wide   gelu1   gelu2   dy   dwide
    after F        8 + 16   + 16    + 16                  x: received, read by the first product
    B's beginning  8 + 16   + 16    + 16    + 8           wide, gelu1: saved by the GELUs
    B's end        8                + 16    + 8  + 16     gelu2: read by the second product

    The first stage's batch is kept for W all the same; the last one's dy comes from the loss, which
    has let go of its own when dy is there. What is recomputed holds x and dy until then, and so
    does what is offloaded; the first stage receives no x, the last no dy.
    """
    stages = calculated(Stack(), dtype=dtype).profile.stages
    row = ROWS * size
    for stage in stages:
        assert stage.m_b == (8 + 16 + 16 + 16 + 8) * row
        assert stage.m_w == (8 + 16 + 8 + 16) * row
        assert stage.activation_bytes == ROWS * NARROW * size
        assert stage.weight_bytes == stage.grad_bytes == stage.optimizer_bytes == WEIGHTS * size
    # the loss saves the last stage's output, too
    assert [stage.offload_bytes for stage in stages] == [n * row for n in (48, 48, 48 + 8)]
    assert [stage.m_r for stage in stages] == [8 * n * row for n in (1, 2, 1)]
    assert [stage.m_o for stage in stages] == [stage.m_r for stage in stages]


def test_a_frozen_parameter_has_no_gradient_and_no_state() -> None:
    (stage,) = calculated(Stack(frozen=True), 1).profile.stages
    assert stage.weight_bytes is not None
    assert stage.grad_bytes == stage.optimizer_bytes == stage.weight_bytes - NARROW * WIDE * 4
    assert stage.activation_bytes is None


GROUPED = {"num_key_value_heads": 2, "intermediate_size": 48}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mixtral": GROUPED | {"num_local_experts": 4},
    "gpt2": {},
    "qwen3": GROUPED | {"tie_word_embeddings": True},
}
SMALL = {
    **{"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"head_dim": 8, "pad_token_id": 0},
}
LLAMA_70B: dict[str, Any] = {
    **{"vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "head_dim": 128},
    **{"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8},
    **{"max_position_embeddings": 8192, "dtype": "bfloat16"},
}


def configured(kind: str, folder: Path, **changes: Any) -> Path:
    pytest.importorskip("transformers")
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **SMALL, **CONFIGS[kind], **changes}))
    return path


def hugging(kind: str, folder: Path) -> ModelSource:
    return HuggingFace(str(configured(kind, folder)), seq=12, micro_batch=2)


SOURCES: dict[str, Callable[[Path], ModelSource]] = {
    "stack": lambda folder: Stack(),
    "transformer": lambda folder: TinyTransformer(),
    "gpt": lambda folder: gpt.small(),
    "delayed": lambda folder: Delayed(),
    **{kind: partial(hugging, kind) for kind in CONFIGS},
}


def sizes(stage: StageProfile) -> dict[str, object]:
    names = ("m_b", "m_w", "m_r", "m_o", "offload_bytes", "activation_bytes")
    held = ("weight_bytes", "grad_bytes", "optimizer_bytes")
    return {name: getattr(stage, name) for name in (*names, *held)}


def slow(stages_as: StagesAs, *names: str) -> list[Any]:
    return [pytest.param(n, None, stages_as, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize(
    ("name", "dtype", "stages_as"),
    [
        ("delayed", None, "eager"),
        ("transformer", torch.bfloat16, "eager"),
        ("mixtral", torch.bfloat16, "eager"),
        ("stack", None, "aten"),
        *slow("eager", "stack", "gpt", "gpt2", "qwen3"),
        *slow("aten", "transformer", "gpt", "llama", "qwen3"),
    ],
)
def test_calculated_bytes_are_those_of_steps_and_products_wait_for_w(
    name: str, dtype: torch.dtype | None, stages_as: StagesAs, tmp_path: Path
) -> None:
    source = SOURCES[name](tmp_path)
    options: dict[str, Any] = {"dtype": dtype, "stages_as": stages_as}
    found, real = calculated(source, **options), measured(source, **options)
    for one, other in zip(found.profile.stages, real.profile.stages, strict=True):
        assert sizes(one) == sizes(other)
    assert found.coverage == real.coverage
    assert found.profile.tied == real.profile.tied
    in_b = [parameter for one in found.coverage if one for parameter in one.in_b]
    kinds = ("norm", "ln_", "positions")
    assert all(any(kind in parameter for kind in kinds) for parameter in in_b)


def test_rounds_of_all_kinds_are_timed() -> None:
    found = measured(Stack(), repeats=3, in_flight=2, pairs=True)
    for stage, times in zip(found.profile.stages, found.times, strict=True):
        assert {*times} == {OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R}
        assert {figure.samples for figure in times.values()} == {2 * 3}
        assert min(figure.median for figure in times.values()) > 0
        assert (stage.t_fb or 0) > 0
    sized = calculated(Stack()).profile.stages
    assert [sizes(stage) for stage in found.profile.stages] == [sizes(stage) for stage in sized]


def test_a_model_that_is_there_is_left_as_it_is() -> None:
    source = Stack()
    modules = [source.stage(s) for s in range(2)]
    object.__setattr__(source, "stages", lambda count: modules)
    before = [p for module in modules for p in module.parameters()]
    found = calculated(source, 2, dtype=torch.bfloat16)
    assert [p for module in modules for p in module.parameters()] == before
    assert all(type(p) is nn.Parameter and p.grad is None for p in before)
    assert found.profile.stages[0].weight_bytes == sum(p.nbytes for p in before) / 4
    assert found.profile.stages == calculated(Stack(), 2, dtype=torch.bfloat16).profile.stages


def test_times_are_those_of_another_profile() -> None:
    like = measured(Stack(), 2).profile
    found = measure(Stack(), stages=2, memory_only=True, like=like).profile
    assert [stage.t_b for stage in found.stages] == [stage.t_b for stage in like.stages]
    assert found.stages[0].m_b == like.stages[0].m_b
    unit = calculated(Stack(), 2)
    assert {(s.t_f, s.t_b, s.t_w, s.t_r) for s in unit.profile.stages} == {(1, 1, 1, 1)}
    assert unit.times == ({}, {})
    with pytest.raises(InputError, match="like: expected a profile of 3 stages, got 2"):
        measure(Stack(), stages=3, memory_only=True, like=like)
    with pytest.raises(InputError, match="like: expected none without memory_only"):
        measure(Stack(), stages=2, like=like)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (Choosing(), "memory_only: Choosing: expected stages and an optimizer that run"),
        (Whole(), "Whole.batch(0, 3): inputs: expected a list of 3"),
    ],
)
def test_what_cannot_be_calculated_is_one_line(source: ModelSource, line: str) -> None:
    with pytest.raises(InputError) as error:
        calculated(source)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def samples(ranks: tuple[int, int], small: float, large: float) -> LinkSamples:
    return LinkSamples(ranks, MEGABYTE, [small] * 5, [large / 2, large, large, large, large * 9])


def test_times_of_messages_are_links() -> None:
    """Latency from small messages, bandwidth from the additional time of large ones; a much slower
    pair is reported."""
    alike = [samples(pair, 0.1, 1.1) for pair in ((0, 1), (2, 3), (0, 3))]
    links = links_of([samples(pair, 0.5, 1.5) for pair in ((0, 1), (1, 2))])
    assert (links.default, links.pairs) == (Link(0.5, pytest.approx(1.0)), ())
    assert links.default.delay(MEGABYTE) == pytest.approx(1.5)
    ((a, b, slow),) = links_of([*alike, samples((1, 2), 2.0, 4.0)]).pairs
    assert (a, b, slow) == (1, 2, Link(2.0, pytest.approx(0.5)))
    faster = links_of([samples((0, 1), 2.0, 1.0)]).default  # than a small one
    assert faster.delay(MEGABYTE) == pytest.approx(1.0)
    assert 0.99 < faster.latency < 1.0
    bounded = links_of([samples((0, 1), 1.0, 2.0)], most=0.25).default  # by an activation
    assert (bounded.latency, bounded.delay(MEGABYTE)) == (0.25, pytest.approx(2.0))
    copies = probe_host(torch.device("cpu"), 3, rank=1)
    assert (copies.ranks, copies.size, len(copies.small)) == ((1, 1), 1 << 23, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_stages_of_70_billion_parameters_take_no_memory(tmp_path: Path) -> None:
    """A child process reports its peak memory."""
    path = configured("llama", tmp_path, **LLAMA_70B)
    script = (
        "import resource, sys\n"
        "from pipeloom.training import measure\n"
        "found = measure(sys.argv[1], stages=8, memory_only=True).profile.stages\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(used.ru_maxrss, sum(s.weight_bytes for s in found), found[1].m_b)\n"
    )
    command = [sys.executable, "-c", script, f"hf:{path},seq=4096"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kibibytes, weights, held = map(float, done.stdout.split())
    assert kibibytes < 8 * 2**20
    assert weights == 2 * 70_553_706_496  # in bfloat16
    tokens, block, stage = 4096, 8192 * 2, 10
    assert held > tokens * block * stage  # at least each layer's input
