"""``profile`` measures, ``run`` trains by a compiled program, and both say what they need where
they cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeloom import measure, run
from tests.support.command_line import Command

NEEDS_TORCH = "pipeloom: this command needs PyTorch: pip install 'pipeloom[runtime]' (in a checkout: pip install '.[runtime]')\n"  # noqa: E501
MODEL = "tests.support.models:TinyTransformer"


@pytest.fixture
def program(pipeloom: Command, schedule: Path, tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    assert pipeloom("compile", schedule, "--tied", "0,1", "-o", path).code == 0
    return path


def test_run_trains_and_traces(pipeloom: Command, program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "measured.json"
    words = ["run", program, "--model", MODEL, "--steps", 3, "--trace", trace]
    done = pipeloom(*words, "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    losses = done.json["losses"]
    assert len(losses) == len(done.json["seconds"]) == 3
    assert losses[-1] < losses[0]
    measured = json.loads(trace.read_text())
    assert measured["report"]["makespan"] == pytest.approx(done.json["measured"]["makespan"])
    assert measured["report"]["lower_bound"] is None  # it was of the planned times
    both = tmp_path / "both.svg"
    shown = pipeloom("show", tmp_path / "schedule.json", "--measured", trace, "-o", both)
    assert shown.code == 0
    assert "ms planned," in shown.out
    assert both.read_text().count(">measured: ") == 1
    told = pipeloom("show", program, "--measured", trace, "--json").json["attribution"]
    assert told["measured"] == pytest.approx(measured["report"]["makespan"])
    assert sum(told["causes"].values()) - told["slack"] == pytest.approx(
        told["measured"] - told["planned"]
    )
    other = tmp_path / "other.json"
    assert pipeloom("build", "gpipe", tmp_path / "profile.json", "-m", 4, "-o", other).code == 0
    assert "as planned, got" in pipeloom("show", other, "--measured", trace).refusal
    assert "one iteration of many" not in pipeloom("show", trace).out  # one step was measured


def test_mixed_precision_and_clipping(pipeloom: Command, program: Path) -> None:
    words = ["run", program, "--model", MODEL, "--dtype", "float32", "--steps", 2, "--quiet"]
    half = ["--param-dtype", "bfloat16", "--reduce-dtype", "float32"]
    plain, mixed, clipped = (
        pipeloom(*words, *more, "--json").json["losses"]
        for more in ([], half, [*half, "--clip-grad-norm", "1e-9"])
    )
    assert mixed != plain
    assert mixed == pytest.approx(plain, rel=0.05)
    assert mixed[0] == clipped[0]
    assert mixed[1] != clipped[1]


def test_steps_ahead_of_the_norm_and_a_loss_scale(
    pipeloom: Command, schedule: Path, tmp_path: Path
) -> None:
    ahead = tmp_path / "ahead.json"
    compile_it = ["compile", schedule, "--tied", "0,1", "--post-validation", "-o", ahead]
    assert pipeloom(*compile_it).code == 0
    words = ["run", ahead, "--model", MODEL, "--dtype", "float32", "--steps", 3, "--quiet"]
    words += ["--json", "--clip-grad-norm", "1e-3", "--loss-scale", "1024"]
    first, second = (
        pipeloom(*words, *more).json["losses"] for more in ([], ["--no-post-validation"])
    )
    assert first == second
    assert len(set(first)) == 3


def test_profile_measures_what_build_can_use(pipeloom: Command, tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    words = ["profile", "--model", MODEL, "--stages", 2, "--repeats", 1, "--warmup", 0, "--alone"]
    done = pipeloom(*words, "--memory-limit", 10**9, "-o", path, "--json")
    assert (done.code, done.err) == (0, "")
    assert len(done.json["measured"]["stages"]) == 2
    assert json.loads(path.read_text())["memory_limit"] == 10**9
    assert pipeloom("build", "zb-h1", path, "-m", 3, "--json").json["stages"] == 2


def test_without_torch_one_line_says_how_to_get_it(
    pipeloom: Command, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeloom.cli.model_arguments.find_spec", lambda name: None)
    for words in (["run", program], ["profile", "--stages", 2]):
        done = pipeloom(*words, "--model", MODEL)
        assert (done.code, done.out) == (2, "")
        assert done.err == NEEDS_TORCH


def test_replicas_are_as_many_as_the_profile_has(pipeloom: Command, tmp_path: Path) -> None:
    profile, plan, path = (tmp_path / f"{name}.json" for name in ("two", "plan", "program"))
    trace, picture = tmp_path / "measured.json", tmp_path / "both.svg"
    stage = {"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 1, "weight_bytes": 1e6}
    replicas = {"size": 2, "latency": 0.01, "gigabytes_per_second": 1.0}
    document = {"format": "pipeloom.profile", "version": 1, "stages": [stage], "ranks": 2}
    profile.write_text(json.dumps(document | {"data_parallel": replicas}))
    assert pipeloom("build", "1f1b", profile, "-m", 2, "-o", plan).code == 0
    compile_it = ["compile", plan, "--tied", "0,1", "--data-parallel", "-o", path]
    assert pipeloom(*compile_it).code == 0
    done = pipeloom("run", path, "--model", MODEL, "--steps", 2, "--trace", trace, "-q")
    assert done.code == 0
    assert "replicas      2 of 2 ranks;" in done.out
    assert [len(row) for row in json.loads(trace.read_text())["averages"]] == [1, 1]
    assert pipeloom("show", path, "--measured", trace, "-o", picture).code == 0
    assert picture.exists()


def test_bytes_alone_and_what_w_computes(pipeloom: Command, program: Path, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    words = ["profile", "--model", MODEL, "--stages", 2, "--memory-only", "-o", path]
    told = pipeloom(*words).out
    assert "optimizer" in told.splitlines()[0]
    assert "each op takes 1 ms, as none was run" in told
    assert pipeloom("build", "zb-h1", path, "-m", 3, "--json").json["stages"] == 2
    found = pipeloom(*words, "--like", path, "--json").json["measured"]["stages"]
    run = pipeloom("run", program, "--model", MODEL, "--json", "-q").json["coverage"]
    assert [run[str(s)] for s in range(2)] == [stage["coverage"] for stage in found]


def test_functions_give_what_commands_print(
    pipeloom: Command, program: Path, tmp_path: Path
) -> None:
    """Times differ from run to run: keys and kinds of values are compared, and all losses."""
    path = tmp_path / "measured.json"
    words = ["--model", MODEL, "--stages", 2, "--repeats", 1, "--warmup", 0]
    assert pipeloom("profile", *words, "-o", path).code == 0
    measured = measure(MODEL, stages=2, repeats=1, warmup=0).document()
    assert shape(measured) == shape(json.loads(path.read_text()))
    settings: dict[str, Any] = {"repeats": 1, "warmup": 0}
    layered = measure("examples.gpt:small", layers=True, ranks=2, **settings)
    assert "layers" in layered.document()

    answer = pipeloom("run", program, "--model", MODEL, "--steps", 3, "--json", "-q").json
    result = run(program, MODEL, steps=3)
    assert result is not None
    given = result.to_dict()
    assert answer.pop("trace") is None  # the command's file
    assert {"note"} <= given.keys()  # said of some runs
    assert shape(answer | {"note": None}) == shape(given | {"note": None})
    assert given["losses"] == answer["losses"]


def shape(value: Any) -> Any:
    """Keys and kinds of values; of a list that of its first value, of numbers and null one kind.

    Not ``t_bw``, which a stage has where it was measured below the sum of B and W.
    """
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key != "t_bw"}
    if isinstance(value, list | tuple):
        return [shape(value[0])] if value else []
    return "number" if value is None or isinstance(value, int | float) else type(value).__name__
