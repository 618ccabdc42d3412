"""Other systems' formats read back, and module names compared with the model."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

import pipeloom
from pipeloom import InputError, Layer, Profile, Schedule, StageProfile
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


def module(*names: str, extra: tuple[str, ...] = ()) -> SimpleNamespace:
    """A mock of an ``nn.Module`` with these names."""
    return SimpleNamespace(
        named_modules=lambda: [("", None), *((name, None) for name in names)],
        named_parameters=lambda: [(f"{name}.weight", None) for name in (*names, *extra)],
    )


def test_names_of_modules_are_held_against_the_model() -> None:
    schedule = built("1f1b", (0, 4))
    exported = pipeloom.export(schedule, "torchtitan", model=module(*NAMES))
    assert list(chain.from_iterable(json.loads(exported.text))) == NAMES
    assert pipeloom.export(schedule, "torchtitan", model=NAMES).text == exported.text
    deeper = [(Layer(name, modules=(name,)), None) for name in (*NAMES, "more")]
    for other, line in (
        (module(*NAMES[:-2], "output", "loss"), r"stages\[1\].*'out': expected a mod.* as output"),
        (module(*NAMES, extra=("positions",)), r"positions\.weight is in no stage"),
        (SimpleNamespace(named_layers=lambda: deeper), "model: more is in no stage"),
    ):
        with pytest.raises(InputError, match=line):
            pipeloom.export(schedule, "torchtitan", model=other)
