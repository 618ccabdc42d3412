"""Profiles say which stages share parameters; their programs are tied by that without being
told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_profile, dump_program, parse_profile
from pipeloom.ir.formats.profile_json import dump_layers, parse_layers
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.program import verify_program
from pipeloom.solver.families import build_family
from tests.support.command_line import layers_document

TIED = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 4, 4, t_comm=0.1, tied=((0, 3), (1, 2)))


def reductions(family: str, profile: Profile, **options: Any) -> set[str]:
    program = compile_schedule(build_family(family, profile, 4), **options)
    lines = [str(line) for row in program.instructions for line in row]
    assert verify_program(dump_program(program)) == []
    return {line for line in lines if line.startswith("reduce")}


def test_tied_layers_become_tied_stages() -> None:
    document = layers_document(tied=[["norm", "emb"], ["layers.0", "layers.1"]])
    profile = parse_layers(document, "p.json")
    assert dump_layers(profile)["tied"] == [["emb", "norm"], ["layers.0", "layers.1"]]
    assert parse_layers(dump_layers(profile), "p.json") == profile
    assert profile.cut((0, 3)).tied == ((0, 1),)
    assert profile.cut((0, 2, 5)).tied == ((0, 1), (0, 2))
    assert profile.cut((0,)).tied == ()


def test_a_profile_with_stages_beside_its_layers_names_those() -> None:
    """``tied`` is read by whoever reads the stages, and by whoever cuts the layers."""
    document = layers_document(tied=[["emb", "norm"], ["emb", "layers.0"]])
    both = document | {"stages": dump_profile(parse_layers(document, "p").cut((0, 3)))["stages"]}
    assert parse_profile(both, "p.json").tied == ((0, 1),)


def test_a_program_is_tied_by_its_profile() -> None:
    assert reductions("1f1b", TIED) == {"reduce 0 3", "reduce 1 2"}
    assert reductions("zb-h1", TIED, tied=[(0, 3)]) == {"reduce 0 3", "reduce 1 2"}
    assert reductions("zb-h1", TIED, tied=[(0, 1)]) == {"reduce 0 1", "reduce 0 3", "reduce 1 2"}


def test_all_chunks_of_tied_stages_are_tied() -> None:
    whole = replace(TIED, tied=((0, 3),))
    assert reductions("zb-v", whole) == {"reduce 0 1 6 7"}


def test_what_steps_after_each_microbatch_cannot_be_tied() -> None:
    with pytest.raises(InputError, match=r"^profile: tied: expected none where updates come after"):
        compile_schedule(build_family("pipedream", TIED, 4))
