"""Profiles say which stages share parameters; their programs are tied by that without being
told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_profile, dump_program, load_program, parse_profile, write_json
from pipeloom.ir.formats.profile_json import dump_layers, parse_layers
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.program import verify_program
from pipeloom.solver.families import build_family
from tests.support.command_line import layers_document, profile_document

TIED = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 4, 4, t_comm=0.1, tied=((0, 3), (1, 2)))
STAGES = "p.json: tied[0]: expected two or more different stages of 0..1, got "
LAYERS = "p.json: tied[0]: expected two or more different names of layers, got "


def reductions(family: str, profile: Profile, **options: Any) -> set[str]:
    program = compile_schedule(build_family(family, profile, 4), **options)
    lines = [str(line) for row in program.instructions for line in row]
    assert verify_program(dump_program(program)) == []
    return {line for line in lines if line.startswith("reduce")}


def test_a_profile_is_read_as_it_was_written() -> None:
    assert dump_profile(TIED)["tied"] == [[0, 3], [1, 2]]
    assert parse_profile(dump_profile(TIED), "p.json") == TIED
    assert "tied" not in dump_profile(replace(TIED, tied=()))


@pytest.mark.parametrize(
    ("tied", "line"),
    [
        ([[0, 2]], STAGES + "[0, 2]"),
        ([[0]], STAGES + "[0]"),
        ([[1, 1]], STAGES + "[1, 1]"),
        ([[0, True]], STAGES + "[0, true]"),
        ([[0, "head"]], STAGES + '[0, "head"]'),
        ([[0, [1]]], STAGES + "[0, [1]]"),
        ([0, 1], STAGES + "0"),
        ([[0, 1], [1, 0]], "p.json: tied[1]: expected each group once, got [1, 0]"),
        ("0,1", 'p.json: tied: expected a list, got "0,1"'),
    ],
)
def test_groups_that_are_none(tied: Any, line: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_profile(profile_document(tied=tied), "p.json")
    assert caught.value.errors[0] == line


@pytest.mark.parametrize(
    ("tied", "line"),
    [
        ([["emb", "head"]], LAYERS + '["emb", "head"]'),
        ([["emb"]], LAYERS + '["emb"]'),
        ([["emb", "emb"]], LAYERS + '["emb", "emb"]'),
        ([[0, 7]], LAYERS + "[0, 7]"),
    ],
)
def test_groups_of_layers_that_are_none(tied: Any, line: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layers(layers_document(tied=tied), "p.json")
    assert caught.value.errors == (line,)


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


@pytest.mark.parametrize("tied", [[[0, 4]], [[0]], [[0, 0]], [["a", "b"]]])
def test_the_verifier_reads_ties_itself(tied: Any) -> None:
    document = dump_program(compile_schedule(build_family("1f1b", TIED, 4)))
    document["schedule"]["profile"]["tied"] = tied
    with pytest.raises(InputError, match=r"tied\[0\]: expected two or more different stages of"):
        verify_program(document)


def test_a_program_file_keeps_them(tmp_path: Any) -> None:
    program = compile_schedule(build_family("1f1b", TIED, 4))
    write_json(dump_program(program), str(tmp_path / "program.json"))
    assert load_program(str(tmp_path / "program.json")).schedule.problem.profile.tied == TIED.tied
