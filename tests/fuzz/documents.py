"""Sound files of every kind that a command reads, and the commands that read each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.exporters.torch_csv import write
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
from pipeloom.planner.build import build
from pipeloom.planner.optimize import optimize as plan
from pipeloom.solver import build_family, solve

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
_AGAIN = replace(
    _PLAIN, stages=tuple(replace(_STAGE, t_r=0.4, m_r=0.25, spread=each) for each in (0.05, 0.2))
)
_MOVED = replace(
    _RICH, stages=(replace(_STAGE, m_o=0.25, offload_bytes=0.5),) * 4, data_parallel=None, tied=()
)
_PAIRED = replace(_PLAIN, stages=(replace(_STAGE, t_fb=2.0),) * 4, memory_limit=None)
_LAYER = {"t_f": 1.0, "t_b": 2.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5, "activation_bytes": 8.0}
_LAYERS: dict[str, Any] = {
    "format": "pipeloom.profile",
    "version": 1,
    "name": "layered",
    "layers": [
        {"name": "emb", "kind": "embedding", **_LAYER, "weight_bytes": 20.0},
        {"name": "layers.{}", "repeat": 3, **_LAYER, "weight_bytes": 10.0},
        {"name": "out", "kind": "head", "modules": ["norm", "out"], **_LAYER, "with_next": True},
        {"name": "loss", "kind": "loss", "modules": [], **_LAYER},
    ],
    "ranks": 2,
    "t_comm": 0.1,
    "tied": [["emb", "out"]],
}
_LISTS = {"t_f": [1.0, 2.0, 0.5], "m_b": [1.0, 2.0, 0.5], "activation_bytes": [8.0, 16.0, 4.0]}
_CONFIG = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 32,
    "torch_dtype": "bfloat16",
}
_LATENT = _CONFIG | {
    "model_type": "deepseek_v3",
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
_MEGATRON = {
    **{"num-layers": 3, "hidden-size": 64, "num-attention-heads": 4, "ffn-hidden-size": 96},
    **{"padded_vocab_size": 128, "swiglu": True, "normalization": "RMSNorm"},
}
_MEASURED = {
    **{"format": "pipeloom.profile", "version": 1, "ranks": 1},
    "layers": [
        {"name": name, **_LAYER} for name in ("embedding", *(f"layers.{i}" for i in "012"), "head")
    ],
}
_TRACE = {
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": f"{s}{kind}0", "ts": 1e4 * at, "dur": 900.0}
        for at, (s, kind) in enumerate((s, kind) for s in range(2) for kind in "FBW")
    ],
    "distributedInfo": {"rank": 0},
}
_UNLIKE = [
    dump_profile(_PLAIN)
    | {"stages": [dump_profile(_PLAIN)["stages"][0] | _LISTS], "num_stages": 2},
    _LAYERS | {"layers": [layer | _LISTS for layer in _LAYERS["layers"]], "spread": 0.1},
]
_QUICK = ["--solver", "heuristic", "--work-limit", "0.001", "-q"]
_KEPT = ["--recompute", "none", "--offload", "none", *_QUICK]
_SCHEDULED = [
    ["optimize", "{profile}", "-m", "2", "--start", "{}", *_QUICK],
    *(["show", "{}", "--as", kind] for kind in ("text", "svg", "html", "trace")),
    ["verify", "{}"],
    ["verify", "{}", "--json"],
    ["compile", "{}"],
    ["compile", "{}", "--post-validation", "--json"],
    ["compile", "{}", "--data-parallel"],
    ["compile", "{}", "--data-parallel", "--tied", "0,1"],
    *(["export", "{}", "--to", to] for to in ("torch-csv", "torchtitan", "megatron-layout")),
    ["profile", "--from", "{}"],
]
_COMPILED = [
    *(["show", "{}"], ["show", "{}", "--as", "svg"], ["verify", "{}"], ["verify", "{}"]),
    ["run", "{}", "--model", "absent:model"],
]
_PROFILED = [
    *(["build", name, "{}", "-m", "3"] for name in ("gpipe", "1f1b", "zb-h1", "zb-v", "fsdp")),
    ["build", "interleaved-1f1b:2", "{}", "-m", "4", "--json"],
    ["build", "weipipe-interleave", "{}", "-m", "4", "--replicate", "0"],
    ["build", "chimera", "{}", "-m", "2", "--memory-limit", "2"],
    ["optimize", "{}", "-m", "3", *_QUICK],
    *(["optimize", "{}", "-m", m, "--passing", "weights", *_QUICK] for m in "1234"),
    ["optimize", "{}", "-m", "4", "--placement", "interleaved:2", "--json", *_QUICK],
    ["optimize", "{}", "-m", "3", "--recompute", "attention", "--slow", "0:1.5", *_QUICK],
    ["optimize", "{}", "-m", "2", "--start", "{schedule}", *_KEPT],
    ["profile", "--from", "{timers}", "--like", "{}"],
    ["import", "{csv}", "--from", "torch-csv", "--profile", "{}"],
]
_ONE_EACH = [
    *(["build", name, "{}"] for name in ("1f1b", "interleaved-1f1b:2", "fsdp")),
    ["optimize", "{}", "--slow", "1:2", *_QUICK],
    ["optimize", "{}", "--passing", "weights", "--json", *_QUICK],
    ["optimize", "{}", "--placement", "interleaved:2", *_QUICK],
    ["profile", "--from", "{timers}", "--like", "{}"],
]
_SLOW_ONE_EACH = [
    ["optimize", "{}", "--passing", "auto", *_QUICK],
    ["optimize", "{}", "--placement", "auto", *_QUICK],
    ["compare", "{}", "--no-optimizer"],
    ["sweep", "{}", "--memory-limits", "2,4", "-o", "{folder}/sweep", *_QUICK],
]
_SLOW_PROFILED = [
    ["optimize", "{}", "-m", "3", "--certificate", "{folder}/certificate", *_QUICK],
    ["optimize", "{}", "-m", "3", "--explain", "--solver", "heuristic", "--time-limit", "0.05"],
    ["optimize", "{}", "-m", "2", "--passing", "auto", *_QUICK],
    ["optimize", "{}", "-m", "3", "--placement", "auto", *_QUICK],
    ["compare", "{}", "-m", "2", "--no-optimizer"],
    ["compare", "{}", "-m", "3", "--passing", "weights", "--json", *_QUICK],
    ["sweep", "{}", "-m", "2", "--memory-limits", "1,2", "-o", "{folder}/sweep", *_QUICK],
]
_BATCH = ["--global-batch", "8", "--seq", "64"]
_RUN = ["--gpus", "4", *_BATCH]
_SEARCH = ["--tp", "1", "--micro-batch", "1", "--work-limit", "1", "-q", "--json"]
_PLAN = [*_RUN, *_SEARCH]
SLOW = {
    "profile": _SLOW_PROFILED,
    "layers": _SLOW_PROFILED,
    "unlike": _SLOW_ONE_EACH,
    "config": [
        *(["plan", "{}", "--gpu", "H100", "--recompute", how, *_PLAN] for how in ("none", "auto")),
        ["plan", "{}", "--gpu", "H100", "--scale", "2,4", *_BATCH, *_SEARCH],
    ],
    "cluster": [["plan", "{config}", "--cluster", "{}", *_PLAN]],
}
"""Commands that take a second, and are tried less often."""
COMMANDS: dict[str, list[list[str]]] = {
    "profile": _PROFILED,
    "layers": [
        *_PROFILED,
        ["import", "{layout}", "--from", "megatron-layout", "--profile", "{}", "-m", "3"],
    ],
    "unlike": _ONE_EACH,
    "schedule": _SCHEDULED,
    "program": _COMPILED,
    "csv": [["import", "{}", "--from", "torch-csv", "--profile", "{profile}"]],
    "layout": [["import", "{}", "--from", "megatron-layout", "--profile", "{layers}", "-m", "3"]],
    "timers": [["profile", "--from", "{}"], ["profile", "--from", "{}", "--memory", "1,0.5"]],
    "trace": [["profile", "--from", "{}"], ["profile", "--from", "{}", "--json"]],
    "placement": [["optimize", "{profile}", "-m", "2", "--placement", "{}", *_QUICK]],
    "certificate": [["verify", "{certified}", "--certificate", "{}"]] * 2,
    "certified": [["verify", "{}", "--certificate", "{certificate}", "--json"]],
    "config": [
        ["predict", "{}"],
        ["predict", "{}", "--gpus", "4", "--tp", "2", "--pp", "2", "--json"],
        ["predict", "{}", "--gpu", "H100", "--tp", "2", *_RUN],
        ["predict", "{}", "--cluster", "{cluster}", "--pp", "2", "--json", *_RUN],
    ],
    "cluster": [
        ["predict", "{config}", "--cluster", "{}", "--pp", "2", *_RUN],
        ["predict", "{config}", "--cluster", "{}", "--tp", "2", "--json", *_RUN],
    ],
    "measured": [["predict", "{config}", "--gpu", "H100", "--measured", "{}", "--pp", "2", *_RUN]],
}
"""By kind of file; ``{}`` is the damaged one, ``{folder}`` an empty folder, the others sound."""


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
    for profile in (_AGAIN, _MOVED):  # what is recomputed, or moved to the host
        given = dump_profile(profile)
        yield plan(given, 4, memory_limit=1.25, placement="linear", work_limit=0.01).schedule


@cache
def _certified() -> Schedule:
    return solve(build_family("zb-h1", _PLAIN, 2).problem, work_limit=0.01)


@cache
def sound() -> dict[str, list[Any]]:
    """By kind: JSON values, or texts of what is no JSON."""
    schedules = list(_schedules())
    programs = [
        compile_schedule(one, data_parallel=one.problem.profile.data_parallel is not None)
        for one in schedules
    ]
    certified = certificate(_certified())
    found: dict[str, list[Any]] = {
        "profile": [dump_profile(one) for one in (_PLAIN, _RICH, _TINY, _AGAIN, _MOVED, _PAIRED)],
        "unlike": _UNLIKE,
        "layers": [_LAYERS],
        "schedule": list(map(dump_schedule, schedules)),
        "program": list(map(dump_program, programs)),
        "csv": [write(schedules[0])],
        "layout": ["Ett|tL"],
        "timers": ["stage,microbatch,op,ms\n0,0,F,1.0\n0,0,BW,2.5\n1,0,F,1.5\n1,0,BW,2\n"],
        "trace": [_TRACE],
        "placement": [[0, 1]],
        "certificate": [certified, certified | {"claimed": certified["lower_bound"]}],
        "certified": [dump_schedule(_certified())],
        "config": [_CONFIG, _LATENT, _MEGATRON],
        "cluster": [preset("dgx-h100").to_dict()],
        "measured": [_MEASURED],
    }
    return json.loads(json.dumps(found))  # type: ignore[no-any-return] # lists instead of tuples
