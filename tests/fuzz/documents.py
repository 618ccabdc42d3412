"""Valid files of every kind that commands read, and the commands for each.

``commands.txt`` has the commands; ``documents.json`` has fixed files: configurations of models, a
trace, a measured profile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeloom import build, export, optimize
from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    DataParallel,
    Link,
    Links,
    Profile,
    Schedule,
    Sharing,
    StageProfile,
    dump_profile,
    dump_program,
    dump_schedule,
)
from pipeloom.planner import certificate, preset
from pipeloom.solver import build_family, solve
from tests.support.command_line import layers_document

HERE = Path(__file__)
_STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, 8.0, 64.0, 64.0, 16.0)
_LINKS = Links(Link(0.1, 1.0), ((0, 1, Link(0.2, 2.0)),))
_RING = Links(Link(0.1, 1.0), shared=Sharing.RING)
_PLAIN = Profile((_STAGE, _STAGE), ranks=2, links=_LINKS, memory_limit=(9.0, 9.0), name="plain")
_RICH = replace(
    _PLAIN,
    stages=tuple(
        replace(_STAGE, t_r=0.5, m_r=0.25, m_o=0.25, t_bw=1.75, t_fb=2.25) for _ in "abcd"
    ),
    ranks=4,
    links=None,
    t_comm=tuple(tuple(0.0 if a == b else 0.125 for a in range(4)) for b in range(4)),
    memory_limit=None,
    device_memory=(400.0,) * 4,
    host_link=Link(0.1, 1.0),
    data_parallel=DataParallel(2, Link(0.1, 1.0), 0.5),
    tied=((0, 3),),
    micro_batch=2,
    max_stages=8,
    barrier=True,
)
_TINY = replace(_PLAIN, stages=(replace(_STAGE, t_f=0.0, t_b=1e-9, t_w=0.0),) * 2)
_AGAIN = replace(_PLAIN, stages=(replace(_STAGE, t_r=0.4, m_r=0.25),) * 2)
_MOVED = replace(
    _RICH, stages=(replace(_STAGE, m_o=0.25, offload_bytes=0.5),) * 4, data_parallel=None, tied=()
)
_PAIRED = replace(_PLAIN, stages=(replace(_STAGE, t_fb=2.0),) * 4, memory_limit=None)
_LAYERS = layers_document(t_comm=0.1, tied=[["emb", "norm"]])
_LISTS = {"t_f": [1.0, 2.0, 0.5], "m_b": [1.0, 2.0, 0.5], "activation_bytes": [8.0, 16.0, 4.0]}
_UNLIKE = [
    dump_profile(_PLAIN)
    | {"stages": [dump_profile(_PLAIN)["stages"][0] | _LISTS], "num_stages": 2},
    _LAYERS | {"layers": [layer | _LISTS for layer in _LAYERS["layers"]]},
]


Lines = dict[str, list[list[str]]]


def _lines() -> tuple[Lines, Lines]:
    """The commands in ``commands.txt``, and the slow ones among them, by kind of file."""
    usual: Lines = {}
    slow: Lines = {}
    head, *blocks = HERE.with_name("commands.txt").read_text(encoding="utf-8").split("\n\n")
    short = dict(line.split(" = ") for line in head.splitlines())
    for block in blocks:
        kinds, *lines = block.strip().splitlines()
        for kind in kinds.removeprefix("== ").split(", "):
            found = slow if kind.startswith("slow ") else usual
            known = found.setdefault(kind.removeprefix("slow "), [])
            known += [_words(line, short) for line in lines]
    return usual, slow


def _words(line: str, short: Mapping[str, str]) -> list[str]:
    """The words of a line, with abbreviations replaced by their values in ``short``."""
    each = ([word] if word not in short else _words(short[word], short) for word in line.split())
    return [word for words in each for word in words]


COMMANDS, SLOW = _lines()
"""Commands by kind of file; ``{}`` is the damaged file, ``{folder}`` an empty folder, the others
are valid.

Slow ones take a second, and are run less often.
"""


def _schedules() -> Iterator[Schedule]:
    yield build_family("zb-h1", _PLAIN, 2)
    yield build_family("weipipe-interleave", _PLAIN, 2)
    yield build_family("fsdp", replace(_PLAIN, links=_RING), 2)
    yield build_family("1f1b", _RICH, 3)
    yield build_family("interleaved-1f1b:2", replace(_PLAIN, stages=(_STAGE,) * 4), 2)
    yield build_family("chimera", _PLAIN, 2)
    yield build_family("gpipe", _TINY, 2)
    yield build("1f1b", _LAYERS, 3)
    yield build("1f1b", _UNLIKE[0])
    yield build_family("dualpipev", _PAIRED, 4)
    yield build_family("pipedream", _PLAIN, 3)
    for profile in (_AGAIN, _MOVED):  # recomputation, or offload
        given = dump_profile(profile)
        yield optimize(given, 4, memory_limit=1.25, placement="linear", work_limit=0.01).schedule


@cache
def _certified() -> Schedule:
    return solve(build_family("zb-h1", _PLAIN, 2).problem, work_limit=0.01)


@cache
def sound() -> dict[str, list[Any]]:
    """Valid files by kind: JSON values, or texts of other formats."""
    schedules = list(_schedules())
    programs = [
        compile_schedule(one, data_parallel=one.problem.profile.data_parallel is not None)
        for one in schedules
    ]
    certified = certificate(_certified())
    written = json.loads(HERE.with_suffix(".json").read_text(encoding="utf-8"))
    found: dict[str, list[Any]] = {
        "profile": [dump_profile(one) for one in (_PLAIN, _RICH, _TINY, _AGAIN, _MOVED, _PAIRED)],
        "unlike": _UNLIKE,
        "layers": [_LAYERS],
        "schedule": list(map(dump_schedule, schedules)),
        "program": list(map(dump_program, programs)),
        "csv": [export(schedules[0], "torch-csv").text],
        "placement": [[0, 1]],
        "certificate": [certified, certified | {"claimed": certified["lower_bound"]}],
        "certified": [dump_schedule(_certified())],
        "cluster": [preset("dgx-h100").to_dict()],
    }
    return json.loads(json.dumps(found | written))  # type: ignore[no-any-return] # lists instead of tuples
