"""What ``analyze`` says of each scheme, and whether it is so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeloom.ir.cost.steady_state.steady_state import step_time
from pipeloom.ir.cost.traffic import activation_traffic
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.planner.analyze import analyze
from pipeloom.planner.evaluation.evaluation import Evaluation
from pipeloom.planner.passing.crossovers import SIZES, cost_at
from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES, build_family
from tests.support.command_line import Command, profile_document, written

HIDDEN, LAYERS, RANKS, TOKENS = 256, 16, 4, 2048
HYBRIDS = {"weights-inside", "activations-inside"}
WHOLE = [
    name for name in FAMILIES if name not in (*HYBRIDS, *ASYNCHRONOUS)
]  # two ranks have no islands
WEIGHTS = 2.0 * 12 * HIDDEN**2 * LAYERS / RANKS  # bytes of a stage, two a parameter
STAGE = StageProfile(
    1.0, 1.1, 0.9, activation_bytes=2.0 * TOKENS * HIDDEN, weight_bytes=WEIGHTS, grad_bytes=WEIGHTS
)


def profile(gigabytes_per_second: float = 10.0) -> Profile:
    return Profile((STAGE,) * RANKS, RANKS, links=Links(Link(0.01, gigabytes_per_second)))


def document(**changes: Any) -> dict[str, Any]:
    stage = {
        "t_f": 1.0, "t_b": 1.1, "t_w": 0.9, "m_b": 10.0, "m_w": 0.0,
        "activation_bytes": 1e6, "weight_bytes": 4e6, "grad_bytes": 4e6, "optimizer_bytes": 9e6,
    }  # fmt: skip
    links = {"latency": 0.01, "gigabytes_per_second": 10.0}
    return profile_document(stages=[stage, stage], t_comm=None, links=links) | changes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "p.json", document())


def test_every_scheme_with_its_figures(pipeloom: Command, path: Path) -> None:
    done = pipeloom("analyze", path, "-m", 4, "--json")
    assert (done.code, done.err) == (0, "")
    found = {scheme["scheme"]: scheme for scheme in done.json["schemes"]}
    assert list(found) == WHOLE
    one = found["1f1b"]
    assert one["traffic"] == [[0.0, 4e6], [4e6, 0.0]]
    assert (one["link_bytes"], one["sent_bytes"]) == (8e6, 4e6)
    assert one["memory"]["activations"] == [20.0, 10.0]
    assert one["memory"]["total"] == [17e6 + 20, 17e6 + 10]
    assert one["balance"] == pytest.approx((17e6 + 10) / (17e6 + 20))
    # 4 microbatches of 0.1 ms over a link in an iteration
    assert one["wire_use"] == pytest.approx(4 * 0.1 / one["step"])
    assert [c["scheme"] for c in done.json["crossovers"]] == [
        name for name in WHOLE if found[name]["passing"] == "weights"
    ]


def test_the_tables(pipeloom: Command, path: Path) -> None:
    out = pipeloom("analyze", path, "-m", 4, "--tokens", 1000).out
    figures, bubbles, crossings = out.split("\n\n")
    for part in (figures, bubbles):
        assert [line.split()[0] for line in part.splitlines()[2:]] == WHOLE
    assert "tokens a microbatch (G x S)" in crossings
    row = next(line for line in crossings.splitlines() if line.startswith("weipipe-interleave"))
    assert row.split()[2] == "6000"  # 3 x 4 MB a turn against 2 x 1 MB: 6 times 1000 tokens


def test_steps_are_those_that_auto_compares() -> None:
    """Weights that are passed on leave between ops: on a ring that takes longer than during
    them."""
    slow = profile(0.05)
    steps = {row.name: row.step_time for row in analyze(slow, 8).rows}
    for name in ("weipipe-naive", "wzb1", "fsdp", "1f1b"):
        schedule = build_family(name, slow, 8)
        assert steps[name] == Evaluation(name, schedule).step_time
    assert steps["weipipe-naive"] > step_time(build_family("weipipe-naive", slow, 8))


def test_the_steps_from_the_formula_to_what_is_built_add_up() -> None:
    uneven = replace(profile(), stages=(replace(STAGE, t_f=1.5), *(STAGE,) * (RANKS - 1)))
    found = analyze(uneven, 8)
    for row, bubble in zip(found.rows, found.bubbles, strict=True):
        built = build_family(row.name, uneven, 8).timing
        assert built is not None
        assert bubble.built == built.bubble_rate(Objective(bubble.objective))
    for bubble in analyze(replace(uneven, links=None), 8).bubbles:
        assert bubble.built == bubble.stages
    for bubble in analyze(replace(profile(), links=None), 8).bubbles:
        assert bubble.stages == pytest.approx(bubble.equal)


def test_crossover_of_bytes_is_the_known_one() -> None:
    """Weights are less to carry where G S > 18 H L / P; built schedules add their ramps."""
    found = {c.scheme: c for c in analyze(profile(), 64).crossovers}
    interleave = found["weipipe-interleave"]
    assert interleave.formula is not None
    assert interleave.link is not None
    assert interleave.formula * TOKENS == pytest.approx(18 * HIDDEN * LAYERS / RANKS)
    assert interleave.link == pytest.approx(interleave.formula, rel=0.1)
    assert found["wzb2"].formula == pytest.approx(3 * interleave.formula)
    assert found["fsdp"].formula is None


def test_a_hybrid_wins_from_where_its_own_activations_leave_room() -> None:
    """Inside its islands it sends fewer activations than 1f1b, and weights beside them."""
    found = analyze(profile(), 16)
    by_name = {row.name: row for row in found.rows}
    at = {c.scheme: c.link for c in found.crossovers}["weights-inside:2"]
    assert at is not None
    hybrid, one = by_name["weights-inside:2"], by_name["1f1b"]
    activations = activation_traffic(hybrid.schedule.problem)
    weights = hybrid.traffic - activations
    for size, fewer in ((0.99 * at, False), (1.01 * at, True)):
        sent = weights + size * activations
        assert (float((sent + sent.T).max()) < size * one.link_bytes) is fewer


def test_crossover_of_time_is_where_the_winner_changes() -> None:
    found = analyze(profile(0.5), 16, objective="makespan")
    by_name = {row.name: row for row in found.rows}
    crossed = {c.scheme: c for c in found.crossovers}
    at = crossed["fsdp"].time_1f1b
    assert at is not None
    assert SIZES[0] < at < SIZES[-1]
    fsdp, one = by_name["fsdp"], by_name["1f1b"]
    assert cost_at(fsdp, 1.01 * at) < cost_at(one, 1.01 * at)
    assert cost_at(fsdp, 0.99 * at) >= cost_at(one, 0.99 * at)


def test_what_is_missing_is_named(pipeloom: Command, tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", profile_document())
    done = pipeloom("analyze", path, "-m", 4)
    assert done.code == 0
    assert "no crossovers: the profile lacks links, activation_bytes, weight_bytes" in done.out
    assert "weight_bytes unknown: weights take no memory and no time here" in done.out


def test_what_cannot_be_built_says_why(pipeloom: Command, tmp_path: Path) -> None:
    path = written(
        tmp_path / "p.json", document(ranks=3, num_stages=3, stages=document()["stages"][:1])
    )
    done = pipeloom("analyze", path, "-m", 4)
    assert done.out.endswith("wzb1: needs an even number of ranks, not 3\n")
    assert pipeloom("analyze", path, "-m", 4, "--json").json["refused"].keys() == {
        "chimera",
        "dualpipe",
        "wzb1",
    }


def test_one_rank_has_no_links_to_cross(pipeloom: Command, tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", document(ranks=1, stages=document()["stages"][:1]))
    assert pipeloom("analyze", path, "-m", 3).code == 0


def test_wrong_tokens_are_one_line(pipeloom: Command, path: Path) -> None:
    done = pipeloom("analyze", path, "-m", 4, "--tokens", 0)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1


MODEL = "layers=16,hidden=256,sequence=1024,microbatch=2,teraflops=0.5"


def test_a_calculated_model_takes_the_clusters_ranks_and_links(
    pipeloom: Command, path: Path
) -> None:
    """Of the cluster's two ranks; layers and width as in the known crossover: 18 H L / P."""
    answer = pipeloom("analyze", path, "-m", 8, "--transformer", MODEL, "--json").json
    assert answer["tokens"] == 2048
    interleave = next(c for c in answer["crossovers"] if c["scheme"] == "weipipe-interleave")
    assert interleave["formula"] * 2048 == pytest.approx(18 * 256 * 16 / 2)
    assert "tokens a microbatch" in pipeloom("analyze", path, "-m", 2, "--transformer", MODEL).out


CLUSTER = "ranks=4,island=2,inside=100,between=1"


def test_a_calculated_cluster_needs_no_file(pipeloom: Command) -> None:
    given = ("-m", 8, "--cluster", CLUSTER, "--transformer", MODEL)
    answer = pipeloom("analyze", *given, "--json").json
    found = {scheme["scheme"]: scheme for scheme in answer["schemes"]}
    one = found["1f1b"]
    assert {"weights-inside:2", "activations-inside:2"} <= set(found)
    assert len(one["traffic"]) == 4
    assert one["wire"]["name"] == "1 to 2"  # the only one between the islands
    assert answer["recomputed"] == 0
    again = pipeloom("analyze", *given[:-1], MODEL + ",recompute=1", "--json").json
    held = 2.0 * 2048 * 256  # G S H of two bytes
    assert again["recomputed"] == 16 * held
    assert (
        again["schemes"][1]["memory"]["activations"][0] == 4 * 4 * held
    )  # 4 layers, 4 microbatches
    told = pipeloom("analyze", *given[:-1], MODEL + ",recompute=1").out
    assert "and 16.78 M while a layer is recomputed" in told


def test_schemes_that_do_not_fit_are_named(pipeloom: Command, tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", document(device_memory=17e6 + 25))
    done = pipeloom("analyze", path, "-m", 4)
    over = next(
        line for line in done.out.splitlines() if line.startswith("more than device_memory")
    )
    assert "gpipe" in over
    assert "1f1b," not in over.replace("interleaved-1f1b,", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cluster", CLUSTER), "--cluster: needs --transformer"),
        ((), "PROFILE, --cluster: expected one of them"),
        (
            ("--cluster", CLUSTER.replace("island=2", "island=3"), "--transformer", MODEL),
            "--cluster: island: expected a divisor of the 4 ranks, got 3",
        ),
        (("--cluster", "ranks=4"), "expected ranks=N, island=N, inside=N, between=N, each once"),
        (("--cluster", CLUSTER + ",latency=-1"), "latency: expected a number from 0 to 1e+09"),
        (
            ("--cluster", CLUSTER, "--transformer", MODEL + ",recompute=2"),
            "recompute: expected 0 or 1, got '2'",
        ),
    ],
)
def test_a_wrong_cluster_is_one_line(
    pipeloom: Command, words: tuple[object, ...], message: str
) -> None:
    assert message in pipeloom("analyze", "-m", 4, *words).refusal


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--transformer", MODEL, "--tokens", 5), "--tokens: not together with --transformer"),
        (("--transformer", "layers=4"), "expected layers=N, hidden=N, sequence=N, microbatch=N"),
        (("--transformer", MODEL + ",layers=4"), "each once"),
        (("--transformer", MODEL.replace("16", "1")), "layers: expected at least 2, one a rank"),
        (
            ("--transformer", MODEL.replace("16", "1.5")),
            "layers: expected a whole number from 1 to 1e+09",
        ),
        (("--transformer", MODEL.replace("0.5", "nan")), "teraflops: expected a number from 1e-06"),
    ],
)
def test_a_wrong_model_is_one_line(
    pipeloom: Command, path: Path, words: tuple[object, ...], message: str
) -> None:
    assert message in pipeloom("analyze", path, "-m", 4, *words).refusal
