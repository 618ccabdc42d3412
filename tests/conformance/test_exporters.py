"""Every exporter writes what it can, in the words of its system, and refuses the rest.

What can be read comes back as the same order; layouts read by their systems' own rules are the
layers of the cut.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import assume, given

from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.compiler.exporters.torch_csv import read, write
from pipeloom.ir import (
    DataParallel,
    InputError,
    LayeredProfile,
    LayerKind,
    Link,
    Placement,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    format_order,
)
from pipeloom.solver import build_family, one_at_a_time
from tests.support.by_hand import by_hand
from tests.support.layered_profiles import layer, model
from tests.support.random_schedules import schedules

# whatever an exporter writes and can read comes back as the same order ----------------------------


@pytest.mark.parametrize("name", [name for name, e in EXPORTERS.items() if e.read is not None])
@given(schedule=schedules())
def test_what_is_written_reads_back(name: str, schedule: Schedule) -> None:
    problem = schedule.problem
    assume(len(set(problem.placement.owners)) == problem.ranks)
    exporter = EXPORTERS[name]
    assert exporter.read is not None
    back = exporter.read(exporter.write(schedule), problem.profile, "text")
    assert back.problem.placement.owners == problem.placement.owners
    assert back.problem.microbatches == problem.microbatches
    for rank in range(problem.ranks):
        assert format_order(back.ops(rank)) == format_order(schedule.ops(rank))


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_exporter_writes_flags_and_refuses_what_travels(name: str) -> None:
    schedule = build_family("1f1b", model(6, Profile((), 2)).cut((0, 4)), 4)
    exporter = EXPORTERS[name]
    assert exporter.write(schedule)
    assert exporter.launch(schedule, 2).flags
    with pytest.raises(InputError, match=r"passing: |torch-csv keeps each stage on one rank"):
        exporter.write(build_family("fsdp", Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2), 2))


# the torch CSV: what it looks like, what reads back, and what is refused --------------------------


PROFILE = Profile((StageProfile(3.0, 4.0, 2.0), StageProfile(2.0, 5.0, 1.0)), 2, t_comm=0.5)
ROWS = ("0F0 0F1 0B0 0W0 0BW1", "1F0 1B0 1F1 1BW1 1W0")
CSV = """\
0F0,0F1,,0I0,0W0,,0B1
,1F0,1I0,1F1,1B1,,1W0
"""


def test_writes_b_as_i_and_bw_as_b() -> None:
    assert write(by_hand(*ROWS, profile=PROFILE)) == CSV


@pytest.mark.parametrize("text", [CSV, CSV.rstrip(), CSV + "\n", CSV.replace("\n", "\r\n")])
def test_reads_back_with_the_times_of_the_profile(text: str) -> None:
    schedule = read(text, PROFILE)
    assert tuple(format_order(schedule.ops(rank)) for rank in range(2)) == ROWS
    assert schedule.known_timing.end[0][0] == 3.0
    assert schedule.known_timing.start[1][0] == 3.5


# layouts for torchtitan and Megatron: read back by their own rules they are the layers of the c ---


CUT = (0, 3, 5, 6)


def scheduled(profile: LayeredProfile, cut: Sequence[int], placement: Placement) -> Schedule:
    stages = profile.cut(cut)
    problem = Problem(stages, 2, placement, stages.limit_from(None))
    return Schedule(problem, one_at_a_time(problem))


def linear(cut: Sequence[int] = CUT) -> Schedule:
    return scheduled(model(6, Profile((), len(cut))), cut, Placement.linear(len(cut)))


def export(name: str, schedule: Schedule) -> str:
    return EXPORTERS[name].write(schedule)


def expanded(layout: str) -> list[str]:
    """Each part's letters, as Megatron documents the string: commas mean nothing, x*3 is xxx."""
    plain = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), layout.strip().replace(",", ""))
    return plain.split("|")


def test_torchtitan_gets_the_modules_of_each_stage() -> None:
    parts = json.loads(export("torchtitan", linear()))
    assert parts == [
        ["emb", "layers.0", "layers.1"],
        ["layers.2", "layers.3"],
        ["layers.4"],
        ["layers.5", "out", "loss"],
    ]
    document = tomllib.loads(export("torchtitan-toml", linear()))
    assert document == {
        "parallelism": {"pipeline_parallel_degree": 4, "module_fqns_per_model_part": parts}
    }


def test_torchtitan_gets_its_own_names_of_hugging_face_models_and_rotations_in_every_part() -> None:
    whole = model(4, Profile((), 2))
    blocks = [(f"model.layers.{i}",) for i in range(4)]
    names = [("model.embed_tokens", "model.rotary_emb"), *blocks, ("lm_head",), ()]
    named = tuple(
        replace(each, layers=(replace(each.layers[0], modules=found),))
        for each, found in zip(whole.layers, names, strict=True)
    )
    schedule = scheduled(replace(whole, layers=named), (0, 3), Placement.linear(2))
    assert json.loads(export("torchtitan", schedule)) == [
        ["tok_embeddings", "rotary_emb", "layers.0", "layers.1"],
        ["layers.2", "layers.3", "lm_head", "rotary_emb"],
    ]
    (_, note, *_) = EXPORTERS["torchtitan"].launch(schedule, 1).notes
    assert note.startswith("names are those of torchtitan's transformers_modeling_backend")


@pytest.mark.parametrize("cut", [(0, 1, 4, 7), (0, 2, 4, 6), (0, 5, 6, 7), (0, 1, 2, 3)])
def test_no_layer_is_lost_or_moved(cut: tuple[int, ...]) -> None:
    schedule = linear(cut)
    stages = schedule.problem.profile.stages
    modules = json.loads(export("torchtitan", schedule))
    assert modules == [[m for layer in stage.layers for m in layer.modules] for stage in stages]
    assert list(chain.from_iterable(modules)) == [
        "emb",
        *(f"layers.{i}" for i in range(6)),
        "out",
        "loss",
    ]
    parts = expanded(export("megatron-layout", schedule))
    assert "".join(parts) == "E" + "t" * 6 + "L"
    for part, stage in zip(parts, stages, strict=True):
        assert part.count("t") == sum(layer.kind is LayerKind.BLOCK for layer in stage.layers)


# the flags that go with each exported file, as torchtitan 0.3 and Megatron-LM spell them ----------


def built(family: str, cut: tuple[int, ...], microbatches: int = 4, **changes: object) -> Schedule:
    profile = replace(model(6, Profile((), 2)).cut(cut), **changes)  # type: ignore[arg-type]
    return build_family(family, profile, microbatches)


def multi_token() -> Schedule:
    whole = model(2, Profile((), 2))
    mtp = layer("mtp.0", LayerKind.MTP, 1.0, 1.0, 1.0, 1.0, 0.5)
    more = LayeredProfile((*whole.layers[:3], mtp, *whole.layers[3:]), (False,) * 6, whole.cluster)
    return build_family("1f1b", more.cut((0, 2)), 2)


REPLICAS = DataParallel(3, Link(0.0, 1.0))
TIED = built("1f1b", (0, 4), tied=((0, 1),))
LAUNCHED = {
    "torch-csv, one stage a rank": built("zb-h1", (0, 4)),
    "torch-csv, two": built("interleaved-1f1b:2", (0, 2, 4, 6)),
    "torch-csv, a V": built("zb-v", (0, 2, 4, 6)),
    "torch-csv, waves": built("wave:2", (0, 1, 2, 3, 4, 5, 6, 7)),
    **{f"{name}, tied ends": TIED for name in EXPORTERS},
    "megatron-layout, replicas": built("1f1b", (0, 4), tied=((0, 1),), data_parallel=REPLICAS),
    "megatron-layout, loose ends": built("1f1b", (0, 4)),
    "megatron-layout, one rank": build_family("1f1b", model(6, Profile((), 1)).cut((0,)), 4),
    "megatron-layout, multi-token prediction": multi_token(),
    "megatron-layout, another family": built("zb-h1", (0, 4)),
    "megatron-layout, an odd number": built("interleaved-1f1b:2", (0, 2, 4, 6), 5),
    "megatron-layout, tied middle": built("interleaved-1f1b:2", (0, 2, 4, 6), tied=((0, 2),)),
}
LAUNCHES = Path(__file__).with_name("launches.txt").read_text(encoding="utf-8").split("\n\n")
BLOCKS = [block.splitlines() for block in LAUNCHES]


@pytest.mark.parametrize("lines", BLOCKS, ids=lambda lines: lines[0])
def test_flags_and_notes_are_those_of_the_system(lines: list[str]) -> None:
    """Each block: a name of ``LAUNCHED``, then its flags, then its notes."""
    name = lines[0]
    launch = EXPORTERS[name.partition(",")[0]].launch(LAUNCHED[name], 2)
    assert [*launch.flags, *launch.notes] == lines[1:]


def test_every_launch_is_written() -> None:
    assert [name for name, *_ in BLOCKS] == [*LAUNCHED]
