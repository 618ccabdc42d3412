"""``profile`` measures; ``run`` trains with a program, saves, resumes, and can be stopped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from pipeloom import StepRecord, run
from tests.support.command_line import Command, profile_document, written

MODEL, HERE = "tests.support.models:TinyTransformer", "tests.unit.cli.commands.training.test_run"
told: list[StepRecord] = []
SIGNALS: list[signal.Signals] = []


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory in which commands find this checkout's models."""
    monkeypatch.chdir(Path(__file__).parents[5])


@pytest.fixture
def untied(pipeloom: Command, schedule: Path, tmp_path: Path) -> Path:
    path = tmp_path / "untied.json"
    assert pipeloom("compile", schedule, "-o", path).code == 0
    return path


def stop(record: StepRecord) -> None:
    """Send a signal, as Ctrl-C or another process's SIGTERM would."""
    if record.step == 1:
        os.kill(os.getpid(), SIGNALS.pop())


def angry(*_: object) -> None:
    raise ValueError("\x1b[31mred\nand a second line")


def test_run_trains_and_traces(pipeloom: Command, program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "measured.json"
    words = ["run", program, "--model", MODEL, "--steps", 3, "--json", "--quiet"]
    done = pipeloom(*words, "--trace", trace)
    assert (done.code, done.err) == (0, "")
    losses = done.json["losses"]
    assert len(done.json["seconds"]) == 3
    assert losses[-1] < losses[0]
    measured = json.loads(trace.read_text())["report"]
    assert measured["makespan"] == pytest.approx(done.json["measured"]["makespan"])
    assert measured["lower_bound"] is None  # the bound was for the planned times
    told = pipeloom("show", program, "--measured", trace, "--json").json["attribution"]
    assert told["measured"] == pytest.approx(measured["makespan"])
    assert "ms planned," in pipeloom("show", program, "--measured", trace).out
    assert "one iteration of many" not in pipeloom("show", trace).out  # only one step was measured
    other = tmp_path / "other.json"
    assert pipeloom("build", "gpipe", tmp_path / "profile.json", "-m", 4, "-o", other).code == 0
    assert "as planned, got" in pipeloom("show", other, "--measured", trace).refusal
    reread = pipeloom("profile", "--from", trace, "--warmup", 0, "-o", other)
    assert (reread.code, len(json.loads(other.read_text())["stages"])) == (0, 2)
    result = run(program, MODEL, steps=3)
    assert result is not None
    assert result.to_dict()["losses"] == losses
    assert done.json.keys() - {"trace"} <= result.to_dict().keys()


def test_options_reach_the_steps(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    ahead = tmp_path / "ahead.json"
    compile_it = ["compile", schedule, "--tied", "0,1", "--post-validation", "-o", ahead]
    assert pipeloom(*compile_it).code == 0
    words = ["run", ahead, "--model", MODEL, "--dtype", "float32", "--steps", 3, "-q", "--json"]
    half = ["--param-dtype", "bfloat16", "--reduce-dtype", "float32"]
    scaled = ["--clip-grad-norm", "1e-3", "--loss-scale", "1024"]
    given = [], half, [*half, "--clip-grad-norm", "1e-9"], scaled, [*scaled, "--no-post-validation"]
    losses = [pipeloom(*words, *more).json["losses"] for more in given]
    plain, mixed, clipped, validated, not_validated = losses
    assert plain != mixed == pytest.approx(plain, rel=0.05)
    assert (mixed[0], mixed[1] != clipped[1]) == (clipped[0], True)
    assert validated == not_validated
    assert len(set(validated)) == 3


def test_profile_measures_what_build_can_use(pipeloom: Command, tmp_path: Path) -> None:
    path, alone = tmp_path / "measured.json", ["--alone", "--repeats", 1, "--warmup", 0]
    words = ["profile", "--model", MODEL, "--stages", 2, *alone, "-o", path]
    done = pipeloom(*words, "--memory-limit", 10**9, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(path.read_text())["memory_limit"] == 10**9
    assert pipeloom("build", "zb-h1", path, "-m", 3, "--json").json["stages"] == 2


def test_replicas_are_as_many_as_the_profile_has(pipeloom: Command, tmp_path: Path) -> None:
    plan, path, trace = (tmp_path / f"{name}.json" for name in ("plan", "program", "measured"))
    replicas = {"size": 2, "latency": 0.01, "gigabytes_per_second": 1.0}
    stage = profile_document()["stages"][0] | {"weight_bytes": 1e6}
    profile = written(tmp_path / "p.json", profile_document(stages=[stage], data_parallel=replicas))
    assert pipeloom("build", "1f1b", profile, "-m", 2, "-o", plan).code == 0
    compile_it = ["compile", plan, "--tied", "0,1", "--data-parallel", "-o", path]
    assert pipeloom(*compile_it).code == 0
    done = pipeloom("run", path, "--model", MODEL, "--steps", 2, "--trace", trace, "-q")
    assert (done.code, "replicas      2 of 2 ranks;" in done.out) == (0, True)
    assert pipeloom("show", path, "--measured", trace, "--as", "svg").code == 0


def test_a_run_goes_on_where_it_was_saved(pipeloom: Command, untied: Path, tmp_path: Path) -> None:
    told.clear()
    words = ["run", untied, "--model", "examples.gpt:small", "--dtype", "float64", "--json"]
    whole = pipeloom(*words, "--steps", 4, "-q").json
    save = ["--save", tmp_path / "saved", "--every", 1]
    first = pipeloom(*words, "--steps", 2, *save, "--callback", f"{HERE}:told.append")
    assert (first.code, first.err.count("\n")) == (0, 2)
    assert [record.loss for record in told] == first.json["losses"] == whole["losses"][:2]
    rest = pipeloom(*words, "--steps", 4, *save, "--resume", tmp_path / "saved", "-q")
    assert (rest.json["first_step"], rest.json["losses"]) == (2, whole["losses"][2:])
    again = pipeloom(*words, "--steps", 4, *save, "-q")
    assert (again.code, "4: --resume goes on from it" in again.err) == (2, True)


@pytest.mark.parametrize("option", ["--model", "--callback"])
def test_what_users_raise_is_one_line_without_control_characters(
    pipeloom: Command, program: Path, option: str
) -> None:
    done = pipeloom("run", program, "--model", MODEL, option, f"{HERE}:angry")
    assert done.code in (1, 2)
    assert done.err.splitlines()[-1].startswith("pipeloom: ")
    assert ("\\x1b[31mred" in done.err, "\x1b" in done.err) == (True, False)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_what_was_saved_is_said_where_a_run_is_interrupted(
    pipeloom: Command, untied: Path, tmp_path: Path, number: signal.Signals
) -> None:
    SIGNALS[:] = [number]
    before = signal.getsignal(signal.SIGTERM)
    words = ["--steps", 9, "--save", tmp_path / "own", "--every", 1, "--callback", f"{HERE}:stop"]
    done = pipeloom("run", untied, "--model", "examples.gpt:small", *words, "-q")
    assert (done.code, done.out, done.err.count("\n")) == (130, "", 1)
    assert done.err.startswith("pipeloom: interrupted after step 2; ")
    assert done.err.endswith(" is the last checkpoint\n")
    assert str(tmp_path / "own" / "step-00000") in done.err
    assert signal.getsignal(signal.SIGTERM) is before
