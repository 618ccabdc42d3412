"""Bytes by calculation are those that the ledger counts of steps, to the last one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples import gpt
from pipeloom.ir import InputError, Measurement, StageProfile
from pipeloom.runtime import (
    HuggingFace,
    ModelSource,
    Routes,
    StagesAs,
    calculate_memory,
    connect,
    measure_profile,
)
from pipeloom.runtime.probes.measuring import LinkParts, measurement, probed
from pipeloom.runtime.probes.stage_probe import Asked
from pipeloom.runtime.profiling.source_probe import SourceStages
from pipeloom.training import measure
from tests.support.delayed_linear import Delayed
from tests.support.models import TinyTransformer
from tests.unit.runtime.probes.test_stage_probe import Stack

ASKED = Asked(1, recompute=True, offload=True)
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "intermediate_size": 48},
    "mixtral": {"num_key_value_heads": 2, "intermediate_size": 48, "num_local_experts": 4},
    "gpt2": {},
    "qwen3": {"num_key_value_heads": 2, "intermediate_size": 48, "tie_word_embeddings": True},
}


def hugging(kind: str, folder: Path) -> ModelSource:
    pytest.importorskip("transformers")
    path = folder / "config.json"
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8}
    config = {"model_type": kind, "vocab_size": 61, "pad_token_id": 0, **shape, **CONFIGS[kind]}
    path.write_text(json.dumps(config))
    return HuggingFace(str(path), seq=12, micro_batch=2)


def measured(
    source: ModelSource, stages: int, dtype: torch.dtype | None, stages_as: StagesAs = "eager"
) -> Measurement:
    """All stages on one rank, in this process."""
    device = torch.device("cpu")
    made = SourceStages(
        source,
        [0] * stages,
        connect(Routes(), device),
        dtype=dtype,
        device=device,
        tied=source.tied(stages),
        stages_as=stages_as,
    )
    parts = probed(made.probe(ASKED), made.held, repeats=1, warmup=0)
    return measurement(parts, LinkParts(), ranks=stages, tied=made.tied)


def sizes(stage: StageProfile) -> dict[str, object]:
    names = ("m_b", "m_w", "m_r", "m_o", "offload_bytes", "activation_bytes")
    held = ("weight_bytes", "grad_bytes", "optimizer_bytes")
    return {name: getattr(stage, name) for name in (*names, *held)}


def slow(stages_as: StagesAs, *names: str) -> list[Any]:
    return [pytest.param(n, None, stages_as, marks=pytest.mark.slow) for n in names]


SOURCES: dict[str, Callable[[Path], ModelSource]] = {
    "stack": lambda folder: Stack(),
    "transformer": lambda folder: TinyTransformer(),
    "gpt": lambda folder: gpt.small(),
    "delayed": lambda folder: Delayed(),
    **{kind: partial(hugging, kind) for kind in CONFIGS},
}


@pytest.mark.parametrize(
    ("name", "dtype", "stages_as"),
    [
        *((name, None, "eager") for name in ("transformer", "delayed", "llama")),
        *((name, torch.bfloat16, "eager") for name in ("transformer", "mixtral")),
        *((name, None, "aten") for name in ("stack",)),
        *slow("eager", "stack", "gpt", "gpt2", "qwen3"),
        *slow("aten", "transformer", "gpt", "llama", "qwen3"),
    ],
)
def test_bytes_are_those_of_steps(
    name: str, dtype: torch.dtype | None, stages_as: StagesAs, tmp_path: Path
) -> None:
    source = SOURCES[name](tmp_path)
    found = calculate_memory(source, 3, 3, ASKED, dtype=dtype, stages_as=stages_as)
    real = measured(source, 3, dtype, stages_as)
    for one, other in zip(found.profile.stages, real.profile.stages, strict=True):
        assert sizes(one) == sizes(other)
    assert found.coverage == real.coverage
    assert found.profile.tied == real.profile.tied


def test_a_model_that_is_there_is_left_as_it_is() -> None:
    source = Given([stage() for stage in Stack().stages(2)])
    before = [p for module in source.modules for p in module.parameters()]
    found = calculate_memory(source, 2, 2, Asked(1), dtype=torch.bfloat16)
    assert [p for module in source.modules for p in module.parameters()] == before
    assert all(type(p) is nn.Parameter and p.grad is None for p in before)
    assert found.profile.stages[0].weight_bytes == sum(p.nbytes for p in before) / 4


@dataclass(frozen=True)
class Given(Stack):
    modules: Sequence[nn.Module] = ()

    def stages(self, count: int) -> Sequence[Any]:
        return self.modules


def test_times_are_those_of_another_profile() -> None:
    like = measured(Stack(), 2, None).profile
    found = measure(Stack(), stages=2, memory_only=True, like=like).profile
    assert [stage.t_b for stage in found.stages] == [stage.t_b for stage in like.stages]
    assert found.stages[0].m_b == like.stages[0].m_b
    unit = measure(Stack(), stages=2, memory_only=True, recompute=True)
    assert {(s.t_f, s.t_b, s.t_w, s.t_r) for s in unit.profile.stages} == {(1, 1, 1, 1)}
    assert unit.times == ({}, {})


class Chosen(nn.Module):
    """It looks at values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Choosing(Stack):
    def stage(self) -> nn.Module:
        return nn.Sequential(super().stage(), Chosen())


@pytest.mark.parametrize(
    ("source", "options", "line"),
    [
        (Choosing(), {}, "memory_only: Choosing: expected stages and an optimizer that run"),
        (Stack(), {"pairs": True}, "pairs: expected none beside memory_only"),
        (Stack(), {"device": "cuda"}, "device: expected cpu beside memory_only, got cuda"),
    ],
)
def test_what_cannot_be_calculated_is_one_line(
    source: ModelSource, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(InputError) as error:
        measure_profile(source, stages=2, ranks=2, memory_only=True, **options)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_a_profile_of_other_stages_has_no_times_for_these() -> None:
    like = measured(Stack(), 3, None).profile
    with pytest.raises(InputError, match="like: expected a profile of 2 stages, got 3"):
        measure(Stack(), stages=2, memory_only=True, like=like)
    with pytest.raises(InputError, match="like: expected none without memory_only"):
        measure(Stack(), stages=2, like=like)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_stages_of_70_billion_parameters_take_no_memory(tmp_path: Path) -> None:
    """A child says how much it took at most, and seconds of a core."""
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_70B))
    words = f"hf:{path},seq=4096"
    script = (
        "import resource, sys\n"
        "from pipeloom.training import measure\n"
        "found = measure(sys.argv[1], stages=8, memory_only=True).profile.stages\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(used.ru_maxrss, used.ru_utime, sum(s.weight_bytes for s in found), found[1].m_b)\n"
    )
    command = [sys.executable, "-c", script, words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kibibytes, seconds, weights, held = map(float, done.stdout.split())
    assert kibibytes < 8 * 2**20
    assert seconds < 60
    assert weights == 2 * 70_553_706_496  # bfloat16
    tokens, block, stage = 4096, 8192 * 2, 10
    assert held > tokens * block * stage  # at least each layer's input


LLAMA_70B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
