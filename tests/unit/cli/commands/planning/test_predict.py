"""The command ``predict``: what Python gives, and faults in one line."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import Command

WORDS = ("llama-3-8b", "--gpu", "H100", "--gpus", 8, "--tp", 2, "--pp", 2, "--global-batch", 16)


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
