"""What is wrong is said in one readable line each: the file, the key, what was expected."""

from __future__ import annotations

import json
import math
import os
import shlex
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from tests.support.command_line import Command, profile_document, written

STAGE = {"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 0.5}


def stage(**changes: Any) -> dict[str, Any]:
    changed = STAGE | changes
    return {key: value for key, value in changed.items() if value != "absent"}


RANKS = ' (the GPUs of the pipeline, such as "ranks": 8)'
# the lines, after "pipeloom: FILE: ", that name a change to the profile
PROFILES: dict[str, dict[str, Any]] = {
    f"ranks: missing; expected a whole number >= 1 and <= 4096{RANKS}": {"ranks": None},
    "stages[1]: t_f: missing; expected a finite number >= 0 (ms of the forward of a microbatch)": {
        "stages": [stage(), stage(t_f="absent")]
    },
    "stages[0]: t_f: missing; expected a finite number >= 0"
    " (tf: unknown key; did you mean t_f?)\n"
    "stages[1]: t_w: missing; expected a finite number >= 0 (ms of its backward to the weights, 0 "
    "if in t_b)\nstages[0]: T_b: unknown key, not used; did you mean t_b?": {
        "stages": [stage(t_f="absent", tf=1, T_b=2), stage(t_w="absent", forward=1)]
    },
    "ranks: missing; expected a whole number >= 1 and <= 4096"
    " (rank: unknown key; did you mean ranks?)": {
        "ranks": None,
        "rank": 2,
        "t_comm": [[0, 1], [1, 0]],
        "memory_limit": [1, 2],
        "links": {"gigabytes_per_second": 1, "pairs": [[0, 1, {"gigabytes_per_second": 1}]]},
    },
    "stages[0]: t_w: expected a finite number >= 0, got NaN": {
        "stages": [stage(t_w=math.nan), stage()]
    },
    f"stages[0]: t_f: expected a finite number >= 0, got 1{'0' * 56}...": {
        "stages": [stage(t_f=10**400), stage()]
    },
    "stages[0]: t_f: expected at most 1e+80, got 1e+81\n"
    "stages[1]: m_b: expected at most 1e+80, got 1e+300\n"
    "t_comm: expected at most 1e+80 each, got 1e+300": {
        "stages": [stage(t_f=1e81), stage(m_b=1e300)],
        "t_comm": [[0, 1e300], [0, 0]],
    },
    "stages[0]: t_f: expected a finite number >= 0, got true": {
        "stages": [stage(t_f=True), stage()]
    },
    "ranks: expected a whole number >= 1 and <= 4096, got true": {"ranks": True},
    "ranks: expected a whole number >= 1 and <= 4096, got 2.0": {"ranks": 2.0},
    "name: expected a string, got 3": {"name": 3},
    'format: expected "pipeloom.profile", got []': {"format": []},
    "version: expected 1, got true": {"version": True},
    "ranks: expected a whole number >= 1 and <= 4096, got 1000000000": {"ranks": 10**9},
    "num_stages: expected 2, the number of entries in stages, or one shared entry, got 4": {
        "num_stages": 4
    },
    "stages: expected at least one stage, got []": {"stages": []},
    'stages: expected a list, got {"t_f": 1}': {"stages": {"t_f": 1}},
    "stages[1]: expected an object, got 3": {"stages": [stage(), 3]},
    "stages[0]: spread: expected it beside stages or layers, a number or one each, got 0.1": {
        "stages": [stage(spread=0.1), stage()]
    },
    "stages[0]: m_w: expected at most m_b (1), got 2": {"stages": [stage(m_w=2), stage()]},
    "t_comm: expected a finite number >= 0 or a 2 x 2 matrix of them, got [[0, 1]]": {
        "t_comm": [[0, 1]]
    },
    "memory_limit: expected a finite number >= 0, or a list of 2 of them, got [1.0]": {
        "memory_limit": [1.0]
    },
    "memory_limit: expected a finite number >= 0, or a list of 2 of them, got Infinity": {
        "memory_limit": math.inf
    },
    "links: gigabytes_per_second: expected more than 0, got 0.0": {
        "links": {"gigabytes_per_second": 0}
    },
    "links: pairs[0]: expected [rank, rank, link], got [0, 2]": {
        "links": {"gigabytes_per_second": 1, "pairs": [[0, 2]]}
    },
    "links: pairs[0][1]: expected a rank from 0 to 1, got 7\n"
    "links: pairs[0][2]: gigabytes_per_second: missing; expected a finite number >= 0": {
        "links": {"latency": 0, "gigabytes_per_second": 1, "pairs": [[0, 7, {}]]}
    },
    "t_f, t_b, t_w: expected more than 0 ms somewhere, got 0 in all": {
        "stages": [stage(t_f=0, t_b=0, t_w=0)] * 2
    },
    "zb-h1: needs one stage a rank, not 3 stages on 2 ranks": {
        "stages": [stage()],
        "num_stages": 3,
    },
    'format: expected "pipeloom.profile", got "pipeloom.schedule": compile, verify, show'
    " and export take a schedule": {
        "format": "pipeloom.schedule",
        "stages": "ignored, for it would mislead",
    },
    f"ranks: missing; expected a whole number >= 1 and <= 4096{RANKS}\n"
    "stages[0]: t_f: expected a finite number >= 0, got -1\n"
    'stages[1]: t_b: expected a finite number >= 0, got "x"': {
        "ranks": None,
        "stages": [stage(t_f=-1), stage(t_b="x")],
    },
}


@pytest.mark.parametrize("lines", PROFILES)
def test_profiles(pipeloom: Command, tmp_path: Path, lines: str) -> None:
    path = written(tmp_path / "profile.json", profile_document(**PROFILES[lines]))
    done = pipeloom("build", "zb-h1", path, "-m", 3, "--json")
    assert [f"pipeloom: {line}" for line in done.json["error"]] == done.err.splitlines()
    expected = (f"pipeloom: {path}: {line}" for line in lines.splitlines())
    assert sorted(done.err.splitlines()) == sorted(expected)
    assert done.code == 2


FILES: dict[str, tuple[bytes, str]] = {
    "truncated": (
        b'{"format": "pipeloom.profile", "ver',
        "line 1, column 32: not valid JSON: Unterminated string starting at (the file ends early)",
    ),
    "truncated between keys": (
        b'{"format": "pipeloom.profile",\n"version": 1,',
        "line 2, column 14: not valid JSON: Expecting property name enclosed in double quotes"
        " (the file ends early)",
    ),
    "single quotes": (
        b"{'a': 1}",
        "line 1, column 2: not valid JSON: Expecting property name enclosed in double quotes",
    ),
    "empty": (b"", "is empty; expected JSON"),
    "blank": (b" \n", "is empty; expected JSON"),
    "not UTF-8": (b'{"name": "\xff"}', "not UTF-8 text (byte 10); expected JSON"),
    "not an object": (b"[1, 2]", "expected a JSON object, got [1, 2]"),
    "a key twice": (b'{"ranks": 1, "ranks": 2}', "ranks: expected once, got it twice"),
    "nested too deeply": (b"[" * 100_000, "not valid JSON: nested too deeply"),
    "a number of 5000 digits": (
        b'{"ranks": ' + b"9" * 5000 + b"}",
        "holds a whole number of thousands of digits",
    ),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize(
    "command",
    [
        ["build", "gpipe", "{}", "-m", "2"],
        ["verify", "{}"],
    ],
    ids=lambda words: words[0],
)
def test_files(pipeloom: Command, tmp_path: Path, case: str, command: list[str]) -> None:
    data, line = FILES[case]
    path = tmp_path / "input.json"
    path.write_bytes(data)
    assert pipeloom(*(word.format(path) for word in command)).refusal == f"pipeloom: {path}: {line}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("p.yaml", " (it is not read; write it as JSON)"),
        ("p.csv", " (a profile is JSON; import reads a torch-csv of a schedule)"),
    ],
)
def test_a_profile_of_another_kind(pipeloom: Command, tmp_path: Path, name: str, hint: str) -> None:
    path = tmp_path / name
    path.write_text("t_f, t_b")
    expected = f"pipeloom: {path}: line 1, column 1: not valid JSON: Expecting value{hint}"
    assert pipeloom("build", "1f1b", path, "-m", 2).refusal == expected


def test_links_whose_delays_t_comm_replaces_are_named(pipeloom: Command, tmp_path: Path) -> None:
    links = {"latency": 0.5, "gigabytes_per_second": 1}
    both = profile_document(stages=[stage(activation_bytes=1e6)] * 2, t_comm=0.4, links=links)
    done = pipeloom("build", "1f1b", written(tmp_path / "p.json", both), "-m", 2, "--json")
    words = "links: not used for activations, which take t_comm (0.4 ms); by the links 1.5 ms"
    assert (done.code, done.err) == (0, f"pipeloom: note: {tmp_path / 'p.json'}: {words}\n")
    alike = written(tmp_path / "alike.json", both | {"t_comm": 1.4})
    assert pipeloom("build", "1f1b", alike, "-m", 2, "--json").err == ""


def test_build_names_a_device_that_is_too_small(pipeloom: Command, tmp_path: Path) -> None:
    stages = [stage(weight_bytes=3)] * 2
    path = written(tmp_path / "p.json", profile_document(stages=stages, device_memory=4.5))
    done = pipeloom("build", "1f1b", path, "-m", 2, "--json")
    words = "of its stages, more than 4.5: build keeps --memory-limit only"
    assert done.code == 0
    assert words in done.err


def test_a_key_that_looks_misspelt_is_named_and_others_are_let_pass(
    pipeloom: Command, tmp_path: Path
) -> None:
    stages = [stage(comment="ours"), stage(weights_bytes=7), stage(weights_bytes=7)]
    document = profile_document(stages=stages, ranks=3, memory_limits=4, t_comm=1e4, ours=1)
    path = written(tmp_path / "profile.json", document)
    done = pipeloom("build", "1f1b", path, "-m", 2, "--json")
    assert done.code == 0
    assert done.err.splitlines() == [
        f"pipeloom: {path}: memory_limits: unknown key, not used; did you mean memory_limit?",
        f"pipeloom: {path}: stages[1]: weights_bytes: unknown key, not used; "
        "did you mean weight_bytes?",
        f"pipeloom: note: {path}: t_comm is 10000 ms, and the longest t_f, t_b or t_w 1 ms: are "
        "both in milliseconds?",
    ]


@pytest.mark.parametrize(
    ("given", "also", "expected", "got"),
    [
        ([STAGE] * 4, {}, "stages: expected 2 entries", "got 4"),
        ([STAGE], {"num_stages": 4}, "num_stages: expected 2", "got 4"),
    ],
)
def test_stages_that_the_placement_does_not_fit(
    pipeloom: Command, tmp_path: Path, given: list[Any], also: Any, expected: str, got: str
) -> None:
    path = written(tmp_path / "profile.json", profile_document(stages=given, **also))
    done = pipeloom("optimize", path, "-m", 2, "--placement", "linear")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"pipeloom: {path}: {expected} for the placement linear on 2 ranks, {got}; "
        "--placement interleaved:2 fits\n"
    )
    assert pipeloom("optimize", path, "-m", 2, "--placement", "interleaved:3").code == 2


@pytest.mark.parametrize(
    ("owners", "line"),
    [
        ([0, 1, 2], "stage 2: expected a rank from 0 to 1, got 2"),
        ([0, True, 1], "stage 1: expected a rank from 0 to 1, got true"),
        ({"0": 0, "2": 1}, "1: missing; expected a rank for each stage"),
        ([], "expected the ranks of all stages, such as [0, 1, 1, 0], got []"),
        (1, "expected the ranks of all stages, such as [0, 1, 1, 0], got 1"),
    ],
)
def test_a_file_that_is_no_placement(
    pipeloom: Command, profile: Path, tmp_path: Path, owners: Any, line: str
) -> None:
    path = written(tmp_path / "owners.json", owners)
    assert (
        pipeloom("optimize", profile, "-m", 2, "--placement", path).refusal
        == f"pipeloom: {path}: {line}"
    )


def test_a_placement_of_other_stages(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "owners.json"
    path.write_text("[0, 1, 1]")
    assert (
        pipeloom("optimize", profile, "-m", 2, "--placement", path).refusal
        == f"pipeloom: {path}: expected a rank for each of the 2 stages of {profile}, got 3"
    )


def test_a_directory_instead_of_a_file(pipeloom: Command, tmp_path: Path) -> None:
    assert (
        pipeloom("show", tmp_path).refusal
        == f"pipeloom: {tmp_path}: is a directory; expected a file of JSON"
    )


def test_no_such_file(pipeloom: Command, tmp_path: Path) -> None:
    assert (
        pipeloom("compile", tmp_path / "absent.json").refusal
        == f"pipeloom: {tmp_path / 'absent.json'}: no such file"
    )


def test_verify_names_the_file_whose_profile_is_none(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    path = tmp_path / "schedule.json"
    pipeloom("build", "1f1b", profile, "-m", 2, "-o", path)
    document = json.loads(path.read_text())
    document["profile"]["format"] = "other"
    path.write_text(json.dumps(document))
    done = pipeloom("verify", path)
    expected = 'schedule: profile: format: expected "pipeloom.profile", got "other"'
    assert (done.code, done.err) == (2, f"pipeloom: {path}: {expected}\n")


LIMIT = "expected a finite number >= 0, such as 8, 20e9, 20G, 8MiB or 16GiB, or none, got"
# a command line: what is said of it
USAGE = {
    "optimise": "got 'optimise'; did you mean optimize? (see pipeloom --help)",
    "x": "import, got 'x' (see pipeloom --help)",
    "--solve P": "import, got '--solve' (see pipeloom --help)",
    "build gpipe P": "-m/--microbatches: missing; expected a number, as ",
    "build gpipe P -m 0": (
        "argument -m/--microbatches: expected a whole number from 1 to 100000, got '0'"
    ),
    "optimize P -m 1.5": "expected a whole number from 1 to 100000",
    "optimize P -m NINES": "expected a whole number from 1 to 100000",
    "optimize P -m 2 --memory-limit 20GiBB": f"{LIMIT} '20GiBB'",
    "optimize P -m 2 --memory-limit 18Gb": f"{LIMIT} '18Gb'; did you mean 18GB?",
    "optimize P -m 2 --memory-limit 18gibs": f"{LIMIT} '18gibs'; did you mean 18GiB?",
    "sweep P -m 2 -o x --memory-limits 1G 2G": (
        "unrecognized arguments: 2G; several values of an option are one word, with commas: 8,10"
    ),
    "sweep P -m 2 -o x --memory-limits 1G,2X": f"argument --memory-limits: {LIMIT} '2X'",
    "optimize P -m 2 --time-limit 0": "argument --time-limit: expected seconds > 0, got '0'",
    "optimize P -m 2 --work-limit -1": "argument --work-limit: expected a number > 0, got '-1'",
    "optimize P -m 2 --time-limit 1 --work-limit 1": (
        "argument --work-limit: not allowed with argument --time-limit"
    ),
    "build 1b1f P -m 2": "FAMILY: expected one of gpipe, 1f1b,",
    "build ZB-H1 P -m 2": "got 'ZB-H1'; did you mean zb-h1?",
    "build P zb-h1 -m 2": "`pipeloom build zb-h1 PROFILE` builds it",
    "compare zb-h1 -m 2": (
        "PROFILE: expected a profile's file, got 'zb-h1', a schedule family: `pipeloom build zb-h1"
    ),
    "export S --to megatron": "; did you mean megatron-layout? (see pipeloom export --help)",
    "build interleaved-1f1b:x P -m 2": (
        "expected interleaved-1f1b:K, K a whole number >= 1, got 'interleaved-1f1b:x'"
    ),
    "build 1f1b P -m 2 --replicate 0": "--replicate: expected stages whose weights are sent, got 0",
    "build fsdp P -m 2 --replicate 0,9": "--replicate: expected stages from 0 to 1, got 9",
    "build fsdp P -m 2 --replicate head": (
        "argument --replicate: expected stages, such as 0,3, got 'head'"
    ),
    "run P --model m:m --clip-grad-norm 0": (
        "argument --clip-grad-norm: expected a number > 0, got '0'"
    ),
    "optimize P -m 2 --placement wave:33": (
        "argument --placement: expected linear, interleaved:K, v, wave:K, bidirectional, auto or a "
        "file of JSON (a name with a dot or a slash), at most 64 stages a rank, got 'wave:33'"
    ),
    "optimize P -m 2 --passing weights --placement v": (
        "--placement: expected none with --passing weights, where every rank runs all stages, got "
        "'v'"
    ),
    "optimize P -m 2 --passing weights --solver milp": (
        "--solver: expected auto or heuristic, got 'milp'"
    ),
    "show S -o x.jpg": (
        "--output: expected a name that ends in .svg, .html, .png, .trace.json, .txt, got 'x.jpg'"
    ),
    "verify ''": "argument FILE: expected a value, got ''",
    "build gpipe P -m 2 -o ''": "argument -o/--output: expected a value, got ''",
    "optimize P -m 2 --slow 0:2 --slow 1:2,0:3": (
        "argument --slow: rank 0: expected once, got it twice"
    ),
    "show - -": "FILE: expected - once at most",
    "compile S --tied 3": "argument --tied: expected two stages or more, such as 0,3, got '3'",
    "compile S --tied 0,9": (
        "pipeloom: --tied: expected two or more different stages of 0..1, got [0, 9]"
    ),
    "verify P": (
        'expected "pipeloom.schedule" or "pipeloom.program", got "pipeloom.profile": optimize and '
        "build make one of a profile"
    ),
    "optimize S -m 2": (
        'expected "pipeloom.profile", got "pipeloom.schedule": compile, verify, show and export '
        "take a schedule"
    ),
    "import S --from torch-csv --profile P": "schedule.json: is JSON; expected a file of torch-csv",
    "optimize P -m 2 --cache P": "pipeloom: --cache: expected a folder or a place for one",
    "optimize P -m 2 --memory-limit 16GB": (
        "--memory-limit: expected a number in the profile's unit, of which a microbatch holds at "
        "most 1, got bytes"
    ),
    "sweep P -m 2 --memory-limits 4,16GiB -o d": "of which a microbatch holds at most 1, got bytes",
    "optimize P -m 2 --memory-limit 18e9": "of which a microbatch holds at most 1, got bytes",
    "compare P -m 2 --passing weights --solver cp-sat": "--solver: expected",
    "show S --measured S": (
        "schedule.json: expected times that `run --trace` measured, got a plan's"
    ),
    "build gpipe P -m 2 -o - --json": (
        "--output: expected a file together with --json, got - (standard output)"
    ),
}


@pytest.mark.parametrize("case", USAGE)
def test_usage(pipeloom: Command, profile: Path, schedule: Path, case: str) -> None:
    words, line = shlex.split(case), USAGE[case]
    files = {"P": str(profile), "S": str(schedule), "NINES": "9" * 5000}
    done = pipeloom(*(files.get(word, word) for word in words))
    if "--json" in words:
        assert any(line in error for error in done.json["error"])
    else:
        assert done.out == ""
    assert done.code == 2
    assert line in done.err
    assert done.err.startswith("pipeloom: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["build", "gpipe", "P", "-m", "2"],
        ["optimize", "P", "-m", "2"],
        ["compile", "S"],
        ["export", "S", "--to", "torch-csv"],
    ],
    ids=lambda words: words[0],
)
def test_output_that_cannot_be_written(
    pipeloom: Command, profile: Path, schedule: Path, tmp_path: Path, words: list[str]
) -> None:
    command = [{"P": str(profile), "S": str(schedule)}.get(word, word) for word in words]
    assert (
        pipeloom(*command, "-o", tmp_path).refusal
        == f"pipeloom: {tmp_path}: cannot be written: Is a directory"
    )
    nowhere = tmp_path / "absent" / "x.json"
    assert (
        pipeloom(*command, "-o", nowhere).refusal
        == f"pipeloom: {nowhere}: cannot be written: there is no folder {nowhere.parent}"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_is_read_only_is_kept(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("precious")
    path.chmod(0o444)
    done = pipeloom("build", "gpipe", profile, "-m", 2, "-o", path)
    assert done.err == f"pipeloom: {path}: cannot be written: Permission denied\n"
    assert path.read_text() == "precious"


def test_a_program_to_compile(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    assert pipeloom("compile", schedule, "-o", program).code == 0
    done = pipeloom("compile", program)
    assert done.code == 2
    assert done.err == (
        f'pipeloom: {program}: format: expected "pipeloom.schedule", got "pipeloom.program": '
        "verify, show and run take a program\n"
    )


def test_of_many_faults_the_first_are_shown_and_json_has_all(
    pipeloom: Command, tmp_path: Path
) -> None:
    path = written(tmp_path / "profile.json", profile_document(stages=[stage(t_f=-1)] * 30))
    done = pipeloom("build", "gpipe", path, "-m", 2, "--json")
    shown = done.err.splitlines()
    assert len(done.json["error"]) == 30
    assert shown[:-1] == [f"pipeloom: {line}" for line in done.json["error"][:20]]
    assert shown[-1] == "pipeloom: and 10 more (--json lists all)"


# what is said of a change to the schedule
SCHEDULES: dict[str, dict[str, Any]] = {
    "order: missing; expected a list": {"order": None},
    "order: expected 2 lists, one a rank, got 1 list": {"order": [[]]},
    "order: expected at least one op, got [[], []]": {"order": [[], []]},
    "order[1]: expected a list, got 7": {
        "order": [[{"op": "F", "stage": 0, "microbatch": 0, "start": 0, "end": 1}], 7]
    },
    'order[0][0]: op: expected F, B, W, BW, R, O or L, got "X"': {
        "order": [[{"op": "X", "stage": 0, "microbatch": 0, "start": 0, "end": 1}], []]
    },
    "order[0][0]: stage: missing; expected a whole number >= 0": {
        "order": [[{"op": "F", "microbatch": 0, "start": 0, "end": 1}], []]
    },
    "order[0][0]: end: expected at least start (2), got 1.0": {
        "order": [[{"op": "F", "stage": 0, "microbatch": 0, "start": 2, "end": 1}], []]
    },
    "order[0][0]: 9F0 is outside 2 stages and 3 microbatches": {
        "order": [[{"op": "F", "stage": 9, "microbatch": 0, "start": 0, "end": 1}], []]
    },
    "ranks: expected 2, as in its profile, got 3": {"ranks": 3},
    "microbatches: expected a whole number >= 1 and <= 500000, got 1000000000000": {
        "microbatches": 10**12
    },
    'passing: expected activations, weights or mixed, got "notes"': {"passing": "notes"},
    "report: expected an object, got [1]": {"report": [1]},
    'report: status: expected optimal or feasible, got "best"': {"report": {"status": "best"}},
    'report: lower_bound: expected a finite number >= 0, got "low"': {
        "report": {"lower_bound": "low"}
    },
}


@pytest.mark.parametrize("line", SCHEDULES)
def test_schedules(pipeloom: Command, schedule: Path, line: str) -> None:
    document = json.loads(schedule.read_text()) | SCHEDULES[line]
    schedule.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    assert pipeloom("show", schedule).refusal == f"pipeloom: {schedule}: {line}"


@pytest.mark.parametrize("words", [["compile"], ["export", "--to", "torch-csv"]])
def test_a_schedule_that_waits_for_itself_is_named(
    pipeloom: Command, schedule: Path, words: list[str]
) -> None:
    document = json.loads(schedule.read_text())
    document["order"][1].reverse()
    schedule.write_text(json.dumps(document))
    done = pipeloom(*words, schedule)
    assert (done.code, done.out) == (1, "")
    lines = done.err.splitlines()
    assert lines
    assert all(line.startswith(f"pipeloom: {schedule}: ") for line in lines)
    assert any("can never start" in line for line in lines)


def test_compile_tells_of_replicas_that_would_not_be_averaged(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    replicas = {"data_parallel": {"size": 4, "gigabytes_per_second": 1.0}}
    profile.write_text(json.dumps(json.loads(profile.read_text()) | replicas))
    path = tmp_path / "planned.json"
    assert pipeloom("build", "1f1b", profile, "-m", 2, "-o", path).code == 0
    done = pipeloom("compile", path, "-o", tmp_path / "program.json")
    assert done.code == 0
    assert f"note: {path}: planned for 4 replicas" in done.err
    done = pipeloom("compile", path, "--data-parallel", "-o", tmp_path / "program.json")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    "keys",
    [
        "".join(f'"k{i}": 1, "k{i}": 2, ' for i in range(50_000)),
        "".join(f'"k{i}": 1, ' for i in range(1_000_000)),
    ],
    ids=["twice", "unknown"],
)
def test_time_to_read_grows_with_the_file(pipeloom: Command, tmp_path: Path, keys: str) -> None:
    path = tmp_path / "p.json"
    path.write_text("{" + keys + json.dumps(profile_document())[1:])
    before = process_time()
    pipeloom("build", "gpipe", path, "-m", 2)
    assert process_time() - before < 15.0


@pytest.mark.parametrize(
    ("words", "stages", "given", "most"),
    [
        (["optimize"], 64, 100_000, 15_625),
        (["optimize", "--time-limit", 1], 512, 4096, 1953),
        (["build", "1f1b"], 512, 4096, 1953),
        (["compare"], 4096, 4883, 244),
    ],
)
def test_sizes_are_bounded_before_memory_is_taken(
    pipeloom: Command, tmp_path: Path, words: list[Any], stages: int, given: int, most: int
) -> None:
    path = written(
        tmp_path / "p.json", profile_document(stages=[STAGE], num_stages=stages, ranks=stages)
    )
    before = process_time()
    done = pipeloom(*words, path, "-m", given)
    assert process_time() - before < 5.0
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"pipeloom: -m/--microbatches: expected at most {most} for {stages} stages, got {given}\n"
    )


LISTS = {"t_f": [1.0, 2.0, 4.0], "m_b": [1.0, 1.0, 2.0], "m_w": 1.0}
# what is said of a command, and of a change to each stage
UNLIKE: dict[str, tuple[str, dict[str, Any]]] = {
    "-m/--microbatches: expected 3, as many as the lists in P have numbers, got 2": (
        "build 1f1b P -m 2",
        {},
    ),
    "P: stages[0]: t_b: expected a number, or a list of 3 as before, one a microbatch, got "
    "2 numbers": ("optimize P", {"t_b": [1.0, 2.0]}),
    "P: stages[0]: t_b: expected a finite number": ("optimize P", {"t_b": []}),
    'P: stages[0]: t_b[2]: expected a finite number >= 0, got "x"': (
        "optimize P",
        {"t_b": [1.0, 2.0, "x"]},
    ),
    "P: stages[0]: m_w: expected at most m_b (1), got [1.0, 1.5, 1.0]": (
        "optimize P",
        {"m_w": [1.0, 1.5, 1.0]},
    ),
    "P: stages[0]: weight_bytes: expected a finite number >= 0, got [1.0, 2.0, 3.0]": (
        "optimize P",
        {"weight_bytes": [1.0, 2.0, 3.0]},
    ),
    "stages[0]: t_fb: expected none where microbatches are unlike": ("optimize P", {"t_fb": 1.5}),
    "stages[0]: t_r: expected none where microbatches are unlike": (
        "optimize P",
        {"t_r": 1.0, "m_r": 0.5},
    ),
    "P: stages[0]: t_f: expected one number for --copies 2, got a list": (
        "optimize P --placement auto --copies 2",
        {},
    ),
    "P: stages[0]: t_f: expected one number for --for megatron, got a list": (
        "optimize P --for megatron",
        {},
    ),
    "--solver: expected auto or heuristic where microbatches are unlike": (
        "optimize P --solver cp-sat",
        {},
    ),
}


@pytest.mark.parametrize("line", UNLIKE)
def test_microbatches_that_are_unlike(pipeloom: Command, tmp_path: Path, line: str) -> None:
    words, changes = UNLIKE[line]
    document = profile_document()
    document["stages"] = [stage | LISTS | changes for stage in document["stages"]]
    path = written(tmp_path / "profile.json", document)
    done = pipeloom(*(str(path) if word == "P" else word for word in words.split()))
    assert (done.code, done.out) == (2, "")
    assert line in done.err.replace(str(path), "P")
    assert done.err.splitlines()[0].startswith("pipeloom: ")


@pytest.mark.parametrize(
    "words",
    [
        "optimize P -m 2 -o P",
        "optimize P -m 2 -o x.json --certificate P",
        "build gpipe P -m 2 --output ./P",
        "compile S -o S",
        "export S --to torch-csv -o S",
        "import x.csv --from torch-csv --profile P -o P",
        "run G --model m:m --trace G",
        "predict C --gpu H100 -o C",
        "predict llama-3-8b --cluster C -o C",
        "predict llama-3-8b --gpu H100 --measured P -o P",
        "optimize P -m 2 --start S -o S",
        "optimize P -m 2 --placement O -o O",
        "build 1f1b P -m 2 --partition S -o S",
        "show S --measured G -o G",
    ],
)
def test_what_is_read_is_not_written_over(
    words: str, pipeloom: Command, schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"P": "profile.json", "S": schedule.name, "G": "program.json", "C": "config.json"}
    files["O"] = "owners.json"
    Path("config.json").write_text("{}")
    Path("owners.json").write_text("[0, 1]")
    assert pipeloom("compile", schedule, "-o", "program.json").code == 0
    before = {file: Path(file).read_text() for file in files.values()}
    asked = [files.get(word.removeprefix("./"), word) for word in words.split()]
    line = pipeloom(*asked).refusal
    assert ": expected another file than what is read, got " in line
    assert before == {file: Path(file).read_text() for file in files.values()}


@pytest.mark.parametrize(
    ("command", "document", "line"),
    [
        (["optimize", "-m", 4], {"model_type": "llama"}, '"pipeloom.profile" (this is a model'),
        (["show"], {"spreads": 12}, '"pipeloom.schedule" (this is what plan has written'),
        (["plan", "--gpu", "A100", "--gpus", 8, "--global-batch", 8, "--seq", 1024],
         profile_document(), "expected a model's config.json, got a pipeloom.profile"),
    ],
)  # fmt: skip
def test_another_file_is_named_in_one_line(
    pipeloom: Command, tmp_path: Path, command: list[Any], document: dict[str, Any], line: str
) -> None:
    path = written(tmp_path / "x.json", document)
    done = pipeloom(command[0], path, *command[1:])
    assert done.code == 2
    assert f"pipeloom: {path}: " in done.err
    assert line in done.err
    assert len(done.err.splitlines()) == 1
