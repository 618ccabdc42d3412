"""Profiles: delays, cuts, limits, links and shared wires, ties, layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    Layer,
    LayerKind,
    Link,
    Links,
    Profile,
    Sharing,
    StageProfile,
    UnsupportedError,
    dump_layers,
    dump_profile,
    dump_program,
    dump_schedule,
    over_wires,
    parse_layers,
    parse_profile,
    verify_program,
    verify_schedule,
)
from pipeloom.solver import build_family
from tests.support.command_line import layers_document

# profiles: delays between ranks, cuts of stages, limits; and the problem made from them
# -------------


STAGE = StageProfile(4.0, 6.0, 2.0, m_b=8.0, m_w=4.0, activation_bytes=1e6, weight_bytes=10.0)


def test_of_two_links_for_one_pair_the_first_counts_whoever_asks() -> None:
    """Regression: the simulator and the transfers used the last link, the verifier the first."""
    pairs = ((1, 0, Link(1.0, 1.0)), (0, 1, Link(7.0, 1.0)))
    links = Links(Link(0.1, 10.0), pairs)
    profile = Profile((STAGE,) * 2, 2, links=links)
    assert profile.link_delays(0.0)[0, 1] == links.matrices(2)[0][0, 1] == 1.0
    for family in ("1f1b", "weipipe-interleave"):
        assert verify_schedule(dump_schedule(build_family(family, profile, 2))) == []


def test_a_cut_stage_shares_out_all_but_what_it_sends() -> None:
    first, second, *_ = Profile((STAGE, STAGE), 2).split(2).stages
    assert first == second == StageProfile(2.0, 3.0, 1.0, 4.0, 2.0, 1e6, 5.0)
    assert Profile((STAGE, STAGE), 2).split(3).num_stages == 6


@pytest.mark.parametrize("sent", [0.0, None, 9e6])
def test_chunks_of_the_last_stage_send_what_it_receives(sent: float | None) -> None:
    """Regression: if the last stage sends nothing, its chunks sent nothing, and bounds were too
    high."""
    last = replace(STAGE, activation_bytes=sent)
    unlike = StageProfile.of([replace(STAGE, activation_bytes=size) for size in (1e6, 3e6)])
    sizes = [stage.activation_bytes for stage in Profile((STAGE, last), 2).split(3).stages]
    assert sizes == [1e6] * 6
    last_chunk = Profile((unlike, last), 2).split(2).stages[3]
    assert [last_chunk.at(j).activation_bytes for j in range(2)] == [1e6, 3e6]


# links: delays and shared wires, the same for all readers of a profile
# ------------------------------


RING = Sharing.RING


def test_bytes_over_a_ring_add_up_on_each_wire() -> None:
    amounts = np.array([[0.0, 1.0, 10.0], [0.0, 0.0, 0.0], [0.0, 100.0, 0.0]])
    stage = (StageProfile(1, 1, 1),)
    ring = Profile(stage, 3, links=Links(Link(0, 1), shared=RING))
    assert over_wires(ring, amounts) == {"0 to 1": 1.0, "0 to 2": 10.0, "2 to 1": 100.0}
    ports = Profile(stage, 3, links=Links(Link(0, 1), shared=Sharing.PORTS))
    assert over_wires(ports, amounts) == {
        "out of 0": 11.0, "into 1": 101.0, "into 2": 10.0, "out of 2": 100.0
    }  # fmt: skip
    assert over_wires(Profile(stage, 3), amounts) == {}
    wide = np.zeros((4, 4))
    wide[0, 2], wide[1, 2] = 5.0, 7.0
    four = Profile(stage, 4, links=Links(Link(0, 1), shared=RING))
    assert over_wires(four, wide) == {"0 to 1": 5.0, "1 to 2": 12.0}


# profiles with tied stages; their programs tie these without another option
# -------------------------


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


def test_a_program_is_tied_by_its_profile() -> None:
    assert reductions("1f1b", TIED) == {"reduce 0 3", "reduce 1 2"}
    assert reductions("zb-h1", TIED, tied=[(0, 3)]) == {"reduce 0 3", "reduce 1 2"}
    assert reductions("zb-h1", TIED, tied=[(0, 1)]) == {"reduce 0 1", "reduce 0 3", "reduce 1 2"}


# profiles by layers: what an entry represents, invalid ones, and stages with their layers
# -----------


def test_an_entry_may_stand_for_several_layers() -> None:
    profile = parse_layers(layers_document(), "p.json")
    names = [layer.name for stage in profile.layers for layer in stage.layers]
    assert names == ["emb", *(f"layers.{i}" for i in range(6)), "norm", "loss"]
    assert profile.tied == (*[False] * 7, True, False)
    assert profile.layers[7].layers == (Layer("norm", LayerKind.HEAD, ("norm", "out")),)
    assert profile.layers[8].layers == (Layer("loss", LayerKind.LOSS, ()),)


def test_stages_sum_their_layers_and_know_them() -> None:
    cut = parse_layers(layers_document(), "p.json").cut((0, 3))
    first, last = cut.stages
    assert (first.t_f, first.t_b, first.t_w) == (2.5, 4.0, 2.5)
    assert (first.m_b, first.m_w, first.weight_bytes) == (2.25, 1.25, 40.0)
    # sizes of the loss are unknown
    assert (first.activation_bytes, last.weight_bytes) == (8.0, None)
    assert [layer.name for layer in first.layers] == ["emb", "layers.0", "layers.1"]
    again = parse_profile(dump_profile(cut), "written")
    assert again == cut
    assert again.split(2).stages[0].layers == ()


def test_layers_are_cut_into_no_more_than_the_most_stages() -> None:
    profile = parse_layers(layers_document(max_stages=2), "p.json")
    assert parse_layers(dump_layers(profile), "p.json") == profile
    assert profile.cut((0, 3)).max_stages == 2
    with pytest.raises(UnsupportedError, match="max_stages: expected at least 3, "):
        profile.cut((0, 3, 5))
