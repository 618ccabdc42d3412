"""Training that changes its program on the way follows one process's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from examples.packed import Packed
from pipeloom.cli.main import main
from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_program
from pipeloom.ir.formats.atomic_write import write_json
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.runtime.errors import LaunchError
from pipeloom.runtime.probes.measuring import sequences
from pipeloom.runtime.train.settings import RunSettings
from pipeloom.runtime.train.train import run_program
from pipeloom.runtime.train.tune import tune_program
from pipeloom.solver.families import build_family
from tests.distributed.cases.gradients import schedule
from tests.distributed.cases.packed import Source
from tests.support.models import TinyTransformer, mean_losses

RANKS, MICROBATCHES, STEPS = 2, 3, 7
SOURCE, HERE = "tests.support.models:TinyTransformer", "tests.distributed.test_tune"
PACKED = "tests.distributed.cases.packed:Source"


def program(family: str) -> Program:
    return compile_schedule(schedule(family, RANKS, MICROBATCHES), tied=[(0, 1)])


def other_family(traces: Sequence[Schedule]) -> Program | None:
    """zb-h1 after 1f1b, gpipe after zb-h1: whichever stays, all were run."""
    report = traces[0].report
    assert report is not None
    return program({"1f1b": "zb-h1", "zb-h1": "gpipe"}.get(report.family, "1f1b"))


@pytest.fixture
def expected() -> list[float]:
    return mean_losses(TinyTransformer(), RANKS, MICROBATCHES, STEPS)


def test_modules_and_optimizers_go_on_under_another_program(expected: list[float]) -> None:
    settings = RunSettings(steps=STEPS)
    result = tune_program(program("1f1b"), SOURCE, settings, 3, other_family)
    assert result is not None
    assert result.losses == pytest.approx(expected, rel=1e-12)
    assert [trial.steps for trial in result.trials] == [3, 6, 7]
    kept = [trial for trial in result.trials if trial.kept]
    assert kept[0] == result.trials[0]
    assert kept[-1].seconds == min(trial.seconds for trial in result.trials)


def test_a_planner_is_told_the_pairs_of_the_program_that_ran() -> None:
    stages = (StageProfile(1.0, 1.2, 0.8, 1.0, 0.5, t_fb=2.25),) * 4
    paired = build_family("dualpipev", Profile(stages, RANKS, 0.1), 4)
    assert any(paired.pairs)
    told = []

    def keep(traces: Sequence[Schedule]) -> None:
        told.extend(traces)

    settings = RunSettings(steps=4, local=True, timeout=120)
    tune_program(compile_schedule(paired, tied=[(0, 3)]), SOURCE, settings, 2, keep)
    assert told
    for trace in told:
        assert trace.pairs == paired.pairs
        assert [trace.ops(rank) for rank in range(RANKS)] == [paired.ops(r) for r in range(RANKS)]
        assert trace.timing is not None
        took = simulate(replace(trace, timing=None)).makespan
        assert took < simulate(replace(trace, timing=None, pairs=())).makespan


def slower_one(traces: Sequence[Schedule]) -> Program:
    """An op takes 20 times as long where programs are paced."""
    problem = schedule("1f1b", RANKS, MICROBATCHES).problem
    stages = tuple(
        replace(s, t_f=20 * s.t_f, t_b=20 * s.t_b, t_w=20 * s.t_w) for s in problem.profile.stages
    )
    slow = build_family("1f1b", replace(problem.profile, stages=stages), MICROBATCHES)
    return compile_schedule(slow, tied=[(0, 1)])


def test_a_program_that_is_left_again_hands_back_the_loss_scale_that_it_found() -> None:
    """Too large for float32 at first: each step that is skipped halves it, under either program."""
    settings = RunSettings(
        steps=6, dtype="float32", loss_scale=2.0**131, pace=True, local=True, timeout=120
    )
    straight = run_program(program("1f1b"), SOURCE, settings)
    tuned = tune_program(program("1f1b"), SOURCE, settings, 2, slower_one)
    assert straight is not None
    assert tuned is not None
    assert [trial.kept for trial in tuned.trials] == [True, False, False]
    assert tuned.losses == pytest.approx(straight.losses, rel=1e-6)
    assert len({round(loss, 6) for loss in straight.losses[:3]}) == 3, "the batches differ"


def test_the_command_packs_and_writes_what_sequences_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, tuned = tmp_path / "program.json", tmp_path / "tuned.json"
    write_json(dump_program(program("1f1b")), str(path))
    words = ["tune", path, "--model", PACKED, "--steps", 4, "--every", 2, "--time-limit", 0.1]
    assert main([str(word) for word in [*words, "-o", tuned, "-q", "--json"]]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["losses"]) == 4
    assert [trial["steps"] for trial in answer["trials"]] == [2, 4]
    assert all(trial["planned"] > 0 < trial["traced"] for trial in answer["trials"])
    assert len(answer["planned"]) == len(answer["traced"]) == 4
    assert answer["trials"][0]["traced"] == answer["traced"][1], "the first step is cold"
    assert main(["verify", str(tuned)]) == 0
    lengths = Source().lengths(0) | {"attention": answer["attention"]}
    write_json(lengths, str(tmp_path / "lengths.json"))
    packing = pipeloom.pack(tmp_path / "lengths.json", tuned, 3, work_limit=0.1)
    assert packing.gap < 0.5


def test_what_cannot_be_packed_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.json"
    write_json(dump_program(program("1f1b")), str(path))
    for options, line in (
        (["--model", SOURCE, "--max-tokens", 9], "--max-tokens: expected a model source with leng"),
        (["--model", f"{HERE}:Half"], "Half.lengths: expected both lengths(step) and packed("),
        (["--model", PACKED, "--max-tokens", 0], "argument --max-tokens: expected a whole number"),
    ):
        assert main(["tune", str(path), *map(str, options), "-q"]) == 2
        told = capsys.readouterr().err
        assert (line in told, told.count("\n")) == (True, 1), told


def test_a_program_of_packed_sequences_is_run_with_these_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = schedule("1f1b", RANKS, MICROBATCHES).problem.profile
    paths = [str(tmp_path / name) for name in ("one.json", "both.json", "other.json")]
    changed = {"lengths": Source().sizes(9)}, {}, {"reference_length": 9}
    for path, change, replicas in zip(paths, changed, (1, 2, 1), strict=True):
        packing = pipeloom.pack(
            Source().lengths(0) | change, profile, 3, data_parallel=replicas, work_limit=0.1
        )
        write_json(dump_program(pipeloom.compile(packing.schedules[0], tied=())), path)
    one, both, other = paths
    for words, line in (
        (
            ["run", one, "--model", SOURCE],
            "TinyTransformer: expected lengths(step) and packed(step, ",
        ),
        (
            ["tune", one, "--model", SOURCE],
            "TinyTransformer: expected lengths(step) and packed(step,",
        ),
        (
            ["run", one, "--model", f"{HERE}:Half"],
            "Half.lengths: expected both lengths(step) and pa",
        ),
        (["run", one, "--model", PACKED], "Source.lengths(0): lengths: lengths[0]: expected "),
        (
            ["run", both, "--model", PACKED],
            f"{both}: schedule: profile: packing: expected a batch ",
        ),
        (
            ["run", other, "--model", PACKED, "--steps", "4"],
            "Source.lengths(3): lengths: lengths[0]",
        ),
        (
            ["tune", other, "--model", PACKED],
            "Source.lengths(0): lengths: reference_length: expecte",
        ),
    ):
        assert main([*words, "-q"]) == 2, words
        told = capsys.readouterr().err
        assert (line in told, told.count("\n")) == (True, 1), told


@pytest.mark.parametrize(
    ("changes", "options", "line"),
    [
        ({"attention": None}, {}, "lengths: attention: missing; expected the share of a forward"),
        ({"lengths": []}, {}, "lengths: expected at least one, got"),
        ({}, {"max_tokens": 38}, "^max_tokens: expected at least 63 for 188 tokens in 3"),
        ({}, {"time_limit": 9, "timeout": 9}, "^time_limit: expected less than 9, the seconds"),
        ({}, {"time_limit": 0}, "^time_limit: expected a number > 0, got 0"),
        ({"lengths": [3] * 4}, {}, r"packed\(0, rows\): inputs: expected a list of 3 tensors"),
        (None, {}, r"^Wrong.lengths\(0\): expected a lengths file or its object, got NoneType"),
        (KeyError("end"), {}, r"^Wrong.lengths\(0\): KeyError: 'end'"),
    ],
)
def test_what_a_source_gives_is_refused_on_all_ranks(
    changes: Any, options: dict[str, Any], line: str
) -> None:
    class Wrong(Source):
        def lengths(self, step: int) -> Any:
            if isinstance(changes, Exception):
                raise changes
            return None if changes is None else super().lengths(step) | changes

        def packed(self, step: int, rows: Any) -> Any:
            inputs, targets = super().packed(step, rows)
            return inputs[1:], targets

    with pytest.raises(InputError, match=line):
        pipeloom.tune(program("1f1b"), Wrong(), local=True, **{"time_limit": 0.1, **options})


def test_a_later_step_whose_lengths_do_not_fit_is_named() -> None:
    class Late(Source):
        def lengths(self, step: int) -> dict[str, Any]:
            return super().lengths(step) | ({"lengths": [0]} if step else {})

    with pytest.raises(
        LaunchError, match=r"rank 0: Late.lengths\(1\): lengths: lengths\[0\]: expe"
    ):
        pipeloom.tune(program("1f1b"), Late(), steps=2, local=True, time_limit=0.1)


def test_a_microbatch_that_is_measured_is_one_sequence() -> None:
    inputs, _ = Packed().batch(0, 1)
    assert sequences(inputs) == 1
    assert Packed().lengths(0)["reference_length"] == inputs[0].shape[-1]


class Half:
    """Knows lengths and no way to pack them."""

    stages = tied = loss = batch = optimizer = lengths = staticmethod(lambda *_: ())


def test_what_cannot_be_tuned_is_refused() -> None:
    weights = compile_schedule(schedule("weipipe-interleave", RANKS, MICROBATCHES))
    with pytest.raises(
        InputError, match="schedule: passing: expected activations, got streamed weights"
    ):
        tune_program(weights, SOURCE, RunSettings(steps=4), 2, other_family)
    stale = compile_schedule(schedule("pipedream", RANKS, MICROBATCHES))
    with pytest.raises(InputError, match="expected a program that steps once an iteration"):
        tune_program(stale, SOURCE, RunSettings(steps=4), 2, other_family)
    replicated = compile_schedule(schedule("1f1b", RANKS, MICROBATCHES), data_parallel=True)
    with pytest.raises(
        InputError, match=r"instructions: expected those of one pipeline, .* 'average"
    ):
        tune_program(replicated, SOURCE, RunSettings(steps=4), 2, other_family)
    with pytest.raises(InputError, match="every: expected at least 2 steps, got 1"):
        tune_program(program("1f1b"), SOURCE, RunSettings(steps=4), 1, other_family)
