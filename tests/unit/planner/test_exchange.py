"""Other systems' formats, written and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pipeloom
from pipeloom import Profile, Schedule, StageProfile
from tests.support.layered_profiles import model

RANKS, MICROBATCHES = 2, 4
LAYERS = model(6, Profile((), RANKS))
NAMES = [stage.layers[0].name for stage in LAYERS.layers]


def built(family: str, cut: tuple[int, ...]) -> Schedule:
    return pipeloom.build_family(family, LAYERS.cut(cut), MICROBATCHES)


def test_a_family_that_splits_stages_is_read_with_the_profile_it_was_made_from(
    tmp_path: Path,
) -> None:
    profile = Profile((StageProfile(3.0, 3.0, 3.0),) * RANKS, RANKS)
    for family in ("interleaved-1f1b:2", "zb-v", "wave:2"):
        made, file = pipeloom.build(family, profile, MICROBATCHES), tmp_path / "a.csv"
        file.write_text(pipeloom.export(made, "torch-csv").text)
        assert pipeloom.import_(file, "torch-csv", profile).problem.profile == made.problem.profile


def test_torchtitan_gets_the_modules_of_each_stage() -> None:
    exported = pipeloom.export(built("1f1b", (0, 4)), "torchtitan")
    assert json.loads(exported.text) == [NAMES[:4], NAMES[4:]]
