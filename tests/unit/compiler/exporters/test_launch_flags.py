"""The flags that go with each exported file, as torchtitan 0.3 and Megatron-LM spell them."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.layers import LayerKind
from pipeloom.ir.model.profile import DataParallel, Link, Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import build_family
from tests.support.layered_profiles import layer, model


def built(family: str, cut: tuple[int, ...], microbatches: int = 4, **changes: object) -> Schedule:
    profile = replace(model(6, Profile((), 2)).cut(cut), **changes)  # type: ignore[arg-type]
    return build_family(family, profile, microbatches)


def flags(name: str, schedule: Schedule, size: int = 2) -> list[str]:
    return list(EXPORTERS[name].launch(schedule, size).flags)


def notes(name: str, schedule: Schedule) -> str:
    return "; ".join(EXPORTERS[name].launch(schedule, 1).notes)


def test_a_csv_comes_with_the_schedule_that_places_its_stages() -> None:
    assert flags("torch-csv", built("zb-h1", (0, 4))) == [
        "--parallelism.pipeline_parallel_degree 2",
        "--parallelism.pipeline_parallel_schedule PipelineScheduleSingle",
        "--parallelism.pipeline_parallel_schedule_csv FILE",
        "--parallelism.pipeline_parallel_microbatch_size 2",
        "--training.local_batch_size 8",
    ]
    names = {"interleaved-1f1b:2": "PipelineScheduleMulti", "zb-v": "ZBVZeroBubble"}
    for family, name in names.items():
        found = flags("torch-csv", built(family, (0, 2, 4, 6)))
        assert f"--parallelism.pipeline_parallel_schedule {name}" in found
    assert "not wave:2" in notes("torch-csv", built("wave:2", (0, 1, 2, 3, 4, 5, 6, 7)))


def test_torchtitan_is_told_its_own_schedule_or_of_the_csv() -> None:
    own = built("interleaved-1f1b:2", (0, 2, 4, 6))
    assert "--parallelism.pipeline_parallel_schedule Interleaved1F1B" in flags("torchtitan", own)
    assert "the CSV that --to torch-csv writes" in notes("torchtitan", built("zb-h1", (0, 4)))


def test_megatron_is_told_layers_sizes_and_ties() -> None:
    replicas = DataParallel(3, Link(0.0, 1.0))
    schedule = built("1f1b", (0, 4), tied=((0, 1),), data_parallel=replicas)
    assert flags("megatron-layout", schedule) == [
        "--pipeline-model-parallel-size 2",
        "--pipeline-model-parallel-layout 'FILE'",
        "--num-layers 6",
        "--micro-batch-size 2",
        "--global-batch-size 24",
    ]
    assert notes("megatron-layout", schedule) == ""
    loose = built("1f1b", (0, 4))
    assert flags("megatron-layout", loose)[-1] == "--untie-embeddings-and-output-weights"
    whole = build_family("1f1b", model(6, Profile((), 1)).cut((0,)), 4)
    assert "untie" not in str(flags("megatron-layout", whole))
    assert "a profile of one stage never says" in notes("megatron-layout", whole)


def test_multi_token_prediction_is_counted_apart() -> None:
    whole = model(2, Profile((), 2))
    mtp = layer("mtp.0", LayerKind.MTP, 1.0, 1.0, 1.0, 1.0, 0.5)
    more = LayeredProfile((*whole.layers[:3], mtp, *whole.layers[3:]), (False,) * 6, whole.cluster)
    found = flags("megatron-layout", build_family("1f1b", more.cut((0, 2)), 2))
    assert {"--num-layers 2", "--mtp-num-layers 1"} <= set(found)


def test_what_a_system_does_otherwise_is_said() -> None:
    assert "Megatron runs 1f1b on this layout" in notes("megatron-layout", built("zb-h1", (0, 4)))
    uneven = built("interleaved-1f1b:2", (0, 2, 4, 6), 5)
    assert "a multiple of 2 microbatches alone, got 5" in notes("megatron-layout", uneven)
    tied = built("1f1b", (0, 4), tied=((0, 1),))
    for name in ("torch-csv", "torchtitan", "torchtitan-toml"):
        assert "stages 0 and 1 share parameters (tied)" in notes(name, tied)
    middle = built("interleaved-1f1b:2", (0, 2, 4, 6), tied=((0, 2),))
    assert "ties embedding and head alone: stages 0 and 2" in notes("megatron-layout", middle)
