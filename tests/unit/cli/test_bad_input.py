"""What is wrong is said in one readable line each: the file, the key, what was expected."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from tests.support.command_line import Command, profile_document

STAGE = {"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 0.5}


def stage(**changes: Any) -> dict[str, Any]:
    changed = STAGE | changes
    return {key: value for key, value in changed.items() if value != "absent"}


# a change to the profile: the lines that name it, after "pipeloom: FILE: "
PROFILES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a missing key": (
        {"ranks": None},
        ["ranks: missing; expected a whole number >= 1 and <= 4096"],
    ),
    "a missing key in a stage": (
        {"stages": [stage(), stage(t_f="absent")]},
        ["stages[1]: t_f: missing; expected a finite number >= 0"],
    ),
    "a misspelt key": (
        {"stages": [stage(t_f="absent", tf=1, T_b=2), stage(t_w="absent", forward=1)]},
        [
            "stages[0]: t_f: missing; expected a finite number >= 0"
            " (tf: unknown key; did you mean t_f?)",
            "stages[1]: t_w: missing; expected a finite number >= 0",
        ],
    ),
    "a misspelt number of ranks, which nothing else is blamed for": (
        {
            "ranks": None,
            "rank": 2,
            "t_comm": [[0, 1], [1, 0]],
            "memory_limit": [1, 2],
            "links": {"gigabytes_per_second": 1, "pairs": [[0, 1, {"gigabytes_per_second": 1}]]},
        },
        [
            "ranks: missing; expected a whole number >= 1 and <= 4096"
            " (rank: unknown key; did you mean ranks?)"
        ],
    ),
    "a wrong type": (
        {"stages": [stage(), stage(t_f="fast")]},
        ['stages[1]: t_f: expected a finite number >= 0, got "fast"'],
    ),
    "a negative time": (
        {"stages": [stage(t_b=-1), stage()]},
        ["stages[0]: t_b: expected a finite number >= 0, got -1"],
    ),
    "NaN": (
        {"stages": [stage(t_w=math.nan), stage()]},
        ["stages[0]: t_w: expected a finite number >= 0, got NaN"],
    ),
    "infinity": (
        {"stages": [stage(t_w=math.inf), stage()]},
        ["stages[0]: t_w: expected a finite number >= 0, got Infinity"],
    ),
    "a huge whole number": (
        {"stages": [stage(t_f=10**400), stage()]},
        [f"stages[0]: t_f: expected a finite number >= 0, got 1{'0' * 56}..."],
    ),
    "times that sum up to more than a schedule can hold": (
        {"stages": [stage(t_f=1e81), stage(m_b=1e90)], "t_comm": [[0, 1e100], [0, 0]]},
        [
            "stages[0]: t_f: expected at most 1e+80, got 1e+81",
            "stages[1]: m_b: expected at most 1e+80, got 1e+90",
            "t_comm: expected at most 1e+80 each, got 1e+100",
        ],
    ),
    "a boolean as a time": (
        {"stages": [stage(t_f=True), stage()]},
        ["stages[0]: t_f: expected a finite number >= 0, got true"],
    ),
    "a boolean as a count": (
        {"ranks": True},
        ["ranks: expected a whole number >= 1 and <= 4096, got true"],
    ),
    "a boolean as the version": ({"version": True}, ["version: expected 1, got true"]),
    "another version": ({"version": 2}, ["version: expected 1, got 2"]),
    "too many ranks": (
        {"ranks": 10**9},
        ["ranks: expected a whole number >= 1 and <= 4096, got 1000000000"],
    ),
    "more stages than entries": (
        {"num_stages": 4},
        ["num_stages: expected 2, the number of entries in stages, or one shared entry, got 4"],
    ),
    "no stages": ({"stages": []}, ["stages: expected at least one stage, got []"]),
    "stages not a list": ({"stages": {"t_f": 1}}, ['stages: expected a list, got {"t_f": 1}']),
    "a stage not an object": (
        {"stages": [stage(), 3]},
        ["stages[1]: expected an object, got 3"],
    ),
    "a spread inside of a stage": (
        {"stages": [stage(spread=0.1), stage()]},
        [
            "stages[0]: spread: expected it beside stages or layers, a number or one each, got 0.1",
        ],
    ),
    "M_W above M_B": (
        {"stages": [stage(m_w=2), stage()]},
        ["stages[0]: m_w: expected at most m_b (1), got 2"],
    ),
    "a delay matrix of the wrong size": (
        {"t_comm": [[0, 1]]},
        ["t_comm: expected a finite number >= 0 or a 2 x 2 matrix of them, got [[0, 1]]"],
    ),
    "a limit for another number of ranks": (
        {"memory_limit": [1.0]},
        ["memory_limit: expected a finite number >= 0, or a list of 2 of them, got [1.0]"],
    ),
    "a link without bandwidth": (
        {"links": {"latency": 0}},
        ["links: gigabytes_per_second: missing; expected a finite number >= 0"],
    ),
    "a link to nowhere": (
        {"links": {"latency": 0, "gigabytes_per_second": 1, "pairs": [[0, 7, {}]]}},
        [
            "links: pairs[0][1]: expected a rank from 0 to 1, got 7",
            "links: pairs[0][2]: gigabytes_per_second: missing; expected a finite number >= 0",
        ],
    ),
    "stages that do not match the ranks": (
        {"stages": [stage()], "num_stages": 3},
        ["zb-h1: needs one stage a rank, not 3 stages on 2 ranks"],
    ),
    "another format": (
        {"format": "pipeloom.schedule", "stages": "ignored, for it would mislead"},
        [
            'format: expected "pipeloom.profile", got "pipeloom.schedule": '
            "compile, verify, show and export take a schedule"
        ],
    ),
    "all at once": (
        {"ranks": None, "stages": [stage(t_f=-1), stage(t_b="x")]},
        [
            "ranks: missing; expected a whole number >= 1 and <= 4096",
            "stages[0]: t_f: expected a finite number >= 0, got -1",
            'stages[1]: t_b: expected a finite number >= 0, got "x"',
        ],
    ),
}


@pytest.mark.parametrize("case", PROFILES)
def test_profiles(pipeloom: Command, tmp_path: Path, case: str) -> None:
    changes, lines = PROFILES[case]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_document(**changes)))
    done = pipeloom("build", "zb-h1", path, "-m", 3, "--json")
    assert [f"pipeloom: {line}" for line in done.json["error"]] == done.err.splitlines()
    assert sorted(done.err.splitlines()) == sorted(f"pipeloom: {path}: {line}" for line in lines)
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
        ["optimize", "{}", "-m", "2"],
        ["show", "{}"],
        ["compile", "{}"],
        ["verify", "{}"],
    ],
    ids=lambda words: words[0],
)
def test_files(pipeloom: Command, tmp_path: Path, case: str, command: list[str]) -> None:
    data, line = FILES[case]
    path = tmp_path / "input.json"
    path.write_bytes(data)
    done = pipeloom(*(word.format(path) for word in command))
    assert (done.code, done.out) == (2, "")
    assert done.err == f"pipeloom: {path}: {line}\n"


def test_a_key_that_looks_misspelt_is_named_and_others_are_let_pass(
    pipeloom: Command, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    stages = [stage(comment="ours"), stage(weights_bytes=7), stage(weights_bytes=7)]
    document = profile_document(stages=stages, ranks=3, memory_limits=4, source="another program")
    path.write_text(json.dumps(document))
    done = pipeloom("build", "1f1b", path, "-m", 2, "--json")
    assert done.code == 0
    assert done.err.splitlines() == [
        f"pipeloom: {path}: memory_limits: unknown key, not used; did you mean memory_limit?",
        f"pipeloom: {path}: stages[1]: weights_bytes: unknown key, not used; "
        "did you mean weight_bytes?",
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
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_document(stages=given, **also)))
    done = pipeloom("optimize", path, "-m", 2)
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
    path = tmp_path / "owners.json"
    path.write_text(json.dumps(owners))
    done = pipeloom("optimize", profile, "-m", 2, "--placement", path)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"pipeloom: {path}: {line}\n"


def test_a_placement_of_other_stages(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "owners.json"
    path.write_text("[0, 1, 1]")
    done = pipeloom("optimize", profile, "-m", 2, "--placement", path)
    assert done.code == 2
    assert done.err == (
        f"pipeloom: {path}: expected a rank for each of the 2 stages of {profile}, got 3\n"
    )


def test_a_number_too_large_for_a_float(pipeloom: Command, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_document()).replace('"t_comm": 0.0', '"t_comm": 1e400'))
    done = pipeloom("build", "gpipe", path, "-m", 2)
    assert done.code == 2
    assert "t_comm: expected a finite number >= 0" in done.err


def test_a_directory_instead_of_a_file(pipeloom: Command, tmp_path: Path) -> None:
    done = pipeloom("show", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"pipeloom: {tmp_path}: is a directory; expected a file of JSON\n"


def test_no_such_file(pipeloom: Command, tmp_path: Path) -> None:
    done = pipeloom("compile", tmp_path / "absent.json")
    assert done.code == 2
    assert done.err == f"pipeloom: {tmp_path / 'absent.json'}: no such file\n"


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


USAGE: dict[str, tuple[list[str], str]] = {
    "no such command": (
        ["optimise"],
        "got 'optimise'; did you mean optimize? (see pipeloom --help)",
    ),
    "no such command at all": (["x"], "import, got 'x' (see pipeloom --help)"),
    "no microbatches": (
        ["build", "gpipe", "P"],
        "-m/--microbatches: missing; expected a number, as ",
    ),
    "-m 0": (
        ["build", "gpipe", "P", "-m", "0"],
        "argument -m/--microbatches: expected a whole number from 1 to 100000, got '0'",
    ),
    "-m x": (
        ["build", "gpipe", "P", "-m", "x"],
        "argument -m/--microbatches: expected a whole number from 1 to 100000, got 'x'",
    ),
    "-m 1.5": (["optimize", "P", "-m", "1.5"], "expected a whole number from 1 to 100000"),
    "-m of thousands of digits": (["optimize", "P", "-m", "9" * 5000], "expected a whole number"),
    "a negative limit": (
        ["optimize", "P", "-m", "2", "--memory-limit", "-1"],
        "argument --memory-limit: expected a finite number >= 0, such as 8, 20e9, 20G, 8MiB or "
        "16GiB, or none, got '-1'",
    ),
    "a limit with a unit too many": (
        ["optimize", "P", "-m", "2", "--memory-limit", "20GiBB"],
        "expected a finite number >= 0, such as 8, 20e9, 20G, 8MiB or 16GiB, or none, got '20GiBB'",
    ),
    "a NaN limit": (
        ["optimize", "P", "-m", "2", "--memory-limit", "nan"],
        "expected a finite number >= 0, such as 8, 20e9, 20G, 8MiB or 16GiB, or none, got 'nan'",
    ),
    "a limit in no unit": (
        ["sweep", "P", "-m", "2", "-o", "x", "--memory-limits", "1G,2X"],
        "argument --memory-limits: expected a finite number >= 0, such as 8, 20e9, 20G, 8MiB or "
        "16GiB, or none, got '2X'",
    ),
    "no time": (
        ["optimize", "P", "-m", "2", "--time-limit", "0"],
        "argument --time-limit: expected seconds > 0, got '0'",
    ),
    "no work": (
        ["optimize", "P", "-m", "2", "--work-limit", "-1"],
        "argument --work-limit: expected a number > 0, got '-1'",
    ),
    "time and work": (
        ["optimize", "P", "-m", "2", "--time-limit", "1", "--work-limit", "1"],
        "argument --work-limit: not allowed with argument --time-limit",
    ),
    "an unknown family": (
        ["build", "1b1f", "P", "-m", "2"],
        "family: expected one of gpipe, 1f1b,",
    ),
    "a family's bad parameter": (
        ["build", "interleaved-1f1b:x", "P", "-m", "2"],
        "expected interleaved-1f1b:K, K a whole number >= 1, got 'interleaved-1f1b:x'",
    ),
    "a replica of a stage that does not travel": (
        ["build", "1f1b", "P", "-m", "2", "--replicate", "0"],
        "--replicate: expected stages whose weights are sent, got 0",
    ),
    "a replica of no stage": (
        ["build", "fsdp", "P", "-m", "2", "--replicate", "0,9"],
        "--replicate: expected stages from 0 to 1, got 9",
    ),
    "a replica of words": (
        ["build", "fsdp", "P", "-m", "2", "--replicate", "head"],
        "argument --replicate: expected stages, such as 0,3, got 'head'",
    ),
    "a norm of nothing": (
        ["run", "P", "--model", "m:m", "--clip-grad-norm", "0"],
        "argument --clip-grad-norm: expected a number > 0, got '0'",
    ),
    "a scale of nothing": (
        ["run", "P", "--model", "m:m", "--loss-scale", "-1"],
        "argument --loss-scale: expected a number > 0, got '-1'",
    ),
    "an unknown placement": (
        ["optimize", "P", "-m", "2", "--placement", "wave:33"],
        "argument --placement: expected linear, interleaved:K, v, wave:K, auto or a file of JSON "
        "(a name "
        "with a dot or a slash), at most 64 stages a rank, got 'wave:33'",
    ),
    "a placement of stages where weights travel": (
        ["optimize", "P", "-m", "2", "--passing", "weights", "--placement", "v"],
        "--placement: expected none with --passing weights, where every rank runs all stages, got "
        "'v'",
    ),
    "an exact solver where weights travel": (
        ["optimize", "P", "-m", "2", "--passing", "weights", "--solver", "milp"],
        "--solver: expected auto or heuristic, got 'milp'",
    ),
    "HiGHS where weights travel": (
        ["optimize", "P", "-m", "2", "--passing", "weights", "--solver", "highs"],
        "--solver: expected auto or heuristic, got 'highs'",
    ),
    "an unknown way of passing in compare": (
        ["compare", "P", "-m", "2", "--passing", "auto"],
        "argument --passing: invalid choice: 'auto'",
    ),
    "an unknown extension": (
        ["show", "S", "-o", "x.jpg"],
        "--output: expected a name that ends in .svg, .html, .png, .trace.json, .txt, got 'x.jpg'",
    ),
    "a file without a name": (["verify", ""], "argument FILE: expected a value, got ''"),
    "lengths without a name": (
        ["pack", "", "--profile", "P", "-m", "2"],
        "argument LENGTHS: expected a value, got ''",
    ),
    "an output without a name": (
        ["build", "gpipe", "P", "-m", "2", "-o", ""],
        "argument -o/--output: expected a value, got ''",
    ),
    "a folder without a name": (
        ["pack", "P", "--profile", "P", "-m", "2", "-o", ""],
        "argument -o/--output: expected a value, got ''",
    ),
    "a spread without a number or a name": (
        ["analyze", "P", "-m", "2", "--spread", ""],
        "argument --spread: expected a number from 0 to 1, got ''",
    ),
    "a rank that is slow twice": (
        ["optimize", "P", "-m", "2", "--slow", "0:2", "--slow", "1:2,0:3"],
        "argument --slow: rank 0: expected once, got it twice",
    ),
    "standard input twice": (["show", "-", "-"], "FILE: expected - once at most"),
    "one tied stage": (
        ["compile", "S", "--tied", "3"],
        "argument --tied: expected two stages or more, such as 0,3, got '3'",
    ),
    "tied stages that are not there": (
        ["compile", "S", "--tied", "0,9"],
        "pipeloom: --tied: expected two or more different stages of 0..1, got [0, 9]",
    ),
    "a profile to verify": (
        ["verify", "P"],
        'expected "pipeloom.schedule" or "pipeloom.program", got "pipeloom.profile": optimize and '
        "build "
        "make one of a profile",
    ),
    "a schedule to plan for": (
        ["optimize", "S", "-m", "2"],
        'expected "pipeloom.profile", got "pipeloom.schedule": compile, verify, show and export '
        "take a schedule",
    ),
    "a schedule of ours to import": (
        ["import", "S", "--from", "torch-csv", "--profile", "P"],
        "schedule.json: is JSON; expected a file of torch-csv",
    ),
    "a folder of answers that is a file": (
        ["optimize", "P", "-m", "2", "--cache", "P"],
        "pipeloom: --cache: expected a folder or a place for one",
    ),
    "bytes where a profile counts in microbatches": (
        ["optimize", "P", "-m", "2", "--memory-limit", "16GB"],
        "--memory-limit: expected a number in the profile's unit, of which a microbatch holds at "
        "most 1, got bytes",
    ),
    "bytes among the limits of a sweep": (
        ["sweep", "P", "-m", "2", "--memory-limits", "4,16GiB", "-o", "d"],
        "of which a microbatch holds at most 1, got bytes",
    ),
    "an exact solver for weights in a comparison": (
        ["compare", "P", "-m", "2", "--passing", "weights", "--solver", "cp-sat"],
        "--solver: expected",
    ),
    "a plan for a measurement": (
        ["show", "S", "--measured", "S"],
        "schedule.json: expected times that `run --trace` measured, got a plan's",
    ),
    "an unknown format": (["export", "S", "--to", "dot"], "argument --to: invalid choice: 'dot'"),
    "both answers on standard output": (
        ["build", "gpipe", "P", "-m", "2", "-o", "-", "--json"],
        "--output: expected a file together with --json, got - (standard output)",
    ),
}


@pytest.mark.parametrize("case", USAGE)
def test_usage(pipeloom: Command, profile: Path, schedule: Path, case: str) -> None:
    words, line = USAGE[case]
    files = {"P": str(profile), "S": str(schedule)}
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
    done = pipeloom(*command, "-o", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"pipeloom: {tmp_path}: cannot be written: Is a directory\n"
    nowhere = tmp_path / "absent" / "x.json"
    done = pipeloom(*command, "-o", nowhere)
    assert done.code == 2
    assert (
        done.err == f"pipeloom: {nowhere}: cannot be written: there is no folder {nowhere.parent}\n"
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
        "verify, show, run and tune take a program\n"
    )


def test_of_many_faults_the_first_are_shown_and_json_has_all(
    pipeloom: Command, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_document(stages=[stage(t_f=-1)] * 30)))
    done = pipeloom("build", "gpipe", path, "-m", 2, "--json")
    shown = done.err.splitlines()
    assert len(done.json["error"]) == 30
    assert shown[:-1] == [f"pipeloom: {line}" for line in done.json["error"][:20]]
    assert shown[-1] == "pipeloom: and 10 more (--json lists all)"


SCHEDULES: dict[str, tuple[dict[str, Any], str]] = {
    "no order": ({"order": None}, "order: missing; expected a list"),
    "an order for another number of ranks": (
        {"order": [[]]},
        "order: expected 2 lists, one a rank, got 1 list",
    ),
    "no op at all": ({"order": [[], []]}, "order: expected at least one op, got [[], []]"),
    "a rank's order not a list": (
        {"order": [[{"op": "F", "stage": 0, "microbatch": 0, "start": 0, "end": 1}], 7]},
        "order[1]: expected a list, got 7",
    ),
    "an unknown op": (
        {"order": [[{"op": "X", "stage": 0, "microbatch": 0, "start": 0, "end": 1}], []]},
        'order[0][0]: op: expected F, B, W, BW, R, O or L, got "X"',
    ),
    "an op without its stage": (
        {"order": [[{"op": "F", "microbatch": 0, "start": 0, "end": 1}], []]},
        "order[0][0]: stage: missing; expected a whole number >= 0",
    ),
    "an op that ends before it starts": (
        {"order": [[{"op": "F", "stage": 0, "microbatch": 0, "start": 2, "end": 1}], []]},
        "order[0][0]: end: expected at least start (2), got 1.0",
    ),
    "an op outside": (
        {"order": [[{"op": "F", "stage": 9, "microbatch": 0, "start": 0, "end": 1}], []]},
        "order[0][0]: 9F0 is outside 2 stages and 3 microbatches",
    ),
    "ranks that the profile does not have": (
        {"ranks": 3},
        "ranks: expected 2, as in its profile, got 3",
    ),
    "more microbatches than memory": (
        {"microbatches": 10**12},
        "microbatches: expected a whole number >= 1 and <= 500000, got 1000000000000",
    ),
    "an unknown way of passing": (
        {"passing": "notes"},
        'passing: expected activations, weights or mixed, got "notes"',
    ),
    "a report that is a list": ({"report": [1]}, "report: expected an object, got [1]"),
    "a report with a wrong status": (
        {"report": {"status": "best"}},
        'report: status: expected optimal or feasible, got "best"',
    ),
    "a report with a wrong bound": (
        {"report": {"lower_bound": "low"}},
        'report: lower_bound: expected a finite number >= 0, got "low"',
    ),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules(pipeloom: Command, schedule: Path, case: str) -> None:
    changes, line = SCHEDULES[case]
    document = json.loads(schedule.read_text()) | changes
    schedule.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    done = pipeloom("show", schedule)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"pipeloom: {schedule}: {line}\n"


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
        (["analyze"], 64, 10_000, 1562),
        (["optimize"], 64, 100_000, 15_625),
        (["optimize", "--time-limit", 1], 512, 4096, 1953),
        (["build", "1f1b"], 512, 4096, 1953),
        (["compare"], 4096, 4883, 244),
    ],
)
def test_sizes_are_bounded_before_memory_is_taken(
    pipeloom: Command, tmp_path: Path, words: list[Any], stages: int, given: int, most: int
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(profile_document(stages=[STAGE], num_stages=stages, ranks=stages)))
    before = process_time()
    done = pipeloom(*words, path, "-m", given)
    assert process_time() - before < 5.0
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"pipeloom: -m/--microbatches: expected at most {most} for {stages} stages, got {given}\n"
    )


LISTS = {"t_f": [1.0, 2.0, 4.0], "m_b": [1.0, 1.0, 2.0], "m_w": 1.0}
UNLIKE: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "another number of microbatches": (
        ["build", "1f1b", "P", "-m", "2"],
        {},
        "-m/--microbatches: expected 3, as many as the lists in P have numbers, got 2",
    ),
    "lists of two lengths": (
        ["optimize", "P"],
        {"t_b": [1.0, 2.0]},
        "P: stages[0]: t_b: expected a number, or a list of 3 as before, one a microbatch, got 2 "
        "numbers",
    ),
    "no numbers": (["optimize", "P"], {"t_b": []}, "P: stages[0]: t_b: expected a finite number"),
    "a list with a word": (
        ["optimize", "P"],
        {"t_b": [1.0, 2.0, "x"]},
        'P: stages[0]: t_b[2]: expected a finite number >= 0, got "x"',
    ),
    "less memory than stays": (
        ["optimize", "P"],
        {"m_w": [1.0, 1.5, 1.0]},
        "P: stages[0]: m_w: expected at most m_b (1), got [1.0, 1.5, 1.0]",
    ),
    "a list where none may be": (
        ["optimize", "P"],
        {"weight_bytes": [1.0, 2.0, 3.0]},
        "P: stages[0]: weight_bytes: expected a finite number >= 0, got [1.0, 2.0, 3.0]",
    ),
    "pairs": (
        ["optimize", "P"],
        {"t_fb": 1.5},
        "stages[0]: t_fb: expected none where microbatches are unlike",
    ),
    "recomputation": (
        ["optimize", "P"],
        {"t_r": 1.0, "m_r": 0.5},
        "stages[0]: t_r, levels: expected none where microbatches are unlike",
    ),
    "two copies of the weights": (
        ["optimize", "P", "--placement", "auto", "--copies", "2"],
        {},
        "P: stages[0]: t_f: expected one number for --copies 2, got a list",
    ),
    "a system": (
        ["optimize", "P", "--for", "megatron"],
        {},
        "P: stages[0]: t_f: expected one number for --for megatron, got a list",
    ),
    "an exact solver": (
        ["optimize", "P", "--solver", "cp-sat"],
        {},
        "--solver: expected auto or heuristic where microbatches are unlike",
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_microbatches_that_are_unlike(pipeloom: Command, tmp_path: Path, case: str) -> None:
    words, changes, line = UNLIKE[case]
    document = profile_document()
    document["stages"] = [stage | LISTS | changes for stage in document["stages"]]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    done = pipeloom(*(str(path) if word == "P" else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert line in done.err.replace(str(path), "P")
    assert done.err.splitlines()[0].startswith("pipeloom: ")
