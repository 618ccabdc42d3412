"""The command ``predict``: what Python gives, and faults in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom import predict
from tests.support.command_line import Command

WORDS = ("llama-3-8b", "--gpu", "H100", "--gpus", 8, "--tp", 2, "--pp", 2, "--global-batch", 16)


def test_json_is_what_python_gives(pipeloom: Command) -> None:
    done = pipeloom("predict", *WORDS, "--run", "sequence_parallel=false", "--json")
    run = {"gpu": "H100", "gpus": 8, "tp": 2, "pp": 2, "global_batch": 16}
    assert done.code == 0
    assert done.json == predict("llama-3-8b", **run, sequence_parallel=False).to_dict()


def test_profile_goes_on_to_other_commands(pipeloom: Command, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    done = pipeloom("predict", *WORDS, "-o", profile)
    assert done.code == 0
    assert "tokens/s/GPU" in done.out
    schedule = tmp_path / "schedule.json"
    assert pipeloom("build", "1f1b", profile, "-m", 8, "-o", schedule).code == 0
    line = pipeloom("predict", *WORDS, "--vp", 2, "--schedule", schedule).refusal
    assert (
        f"--schedule: {schedule}: expected 4 stages, linear, interleaved or V, on 2 ranks" in line
    )


def test_what_does_not_fit_is_predicted(pipeloom: Command) -> None:
    done = pipeloom("predict", "llama-3-70b", "--gpu", "H100")
    assert done.code == 0
    assert "DOES NOT FIT" in done.out.splitlines()[2]


def test_an_unknown_schedule_names_those_that_serve(pipeloom: Command) -> None:
    line = pipeloom("predict", *WORDS, "--schedule", "zbv").err
    assert "zb-v, v-half" in line
    assert line.endswith("optimal, got 'zbv'; did you mean zb-v?\n")
    refused = {"chimera", "pipedream", "fsdp"}
    assert not refused & {*line.replace(",", "").split()}
    for name in refused:
        assert "expected a family whose" in pipeloom("predict", *WORDS, "--schedule", name).err


def test_a_misspelt_model_type_names_what_may_be_meant(pipeloom: Command, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "lama"}')
    done = pipeloom("predict", config, "--gpu", "H100")
    assert done.code == 2
    assert done.err.endswith("got 'lama'; did you mean llama?\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("predict", *WORDS, "--tp", "0"), "argument --tp: expected a whole number >= 1, got '0'"),
        (("predict", *WORDS, "--gpus", 9), "--gpus: expected tp x pp x cp x dp"),
        (("predict", "lama-3-8b", "--gpu", "H100"), "MODEL: expected a config.json"),
        (("predict", *WORDS, "--precision", "nvfp4"), "--precision: expected one of fp32, bf16,"),
        (("predict", "gpt2", "--cluster", "nowhere"), "--cluster: expected one of dgx-1-16gb, "),
        (("predict", *WORDS, "--run", "tp"), "argument --run: expected KEY=VALUE, got 'tp'"),
        (("predict", "llama-3-8b", "--cluster", "a.json"), "a.json: no such file"),
        (("predict", *WORDS, "--cluster", "dgx-h100"), "argument --cluster: not allowed with arg"),
        (("predict", *WORDS, "--schedule", "zb-v"), "--vp: expected 2, as zb-v has, got 1: add"),
        (
            ("predict", "llama-3-8b", "--gpu", "H1000"),
            "--gpu: expected a GPU, a cluster or a file, got 'H1000'; did you mean H100?",
        ),
        (("predict", *WORDS, "--run", "foo=1"), "--run: foo: unknown key; known: "),
        (("predict", *WORDS, "--run", "should_stop=1"), "--run: should_stop: unknown key"),
    ],
)
def test_wrong_input_is_one_line(words: tuple[object, ...], line: str, pipeloom: Command) -> None:
    assert pipeloom(*words).refusal.startswith(f"pipeloom: {line}")
