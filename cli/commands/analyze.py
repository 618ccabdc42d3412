"""What each scheme costs on a cluster: bubble, bytes, memory, and from where on weights should
travel.

All figures come from built schedules, without a memory limit; formulas stand beside them.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.units import amount
from pipeloom.report.text_table import table

from ..arguments import (
    CLUSTER,
    TRANSFORMER,
    TRANSFORMER_TOO,
    add_cut,
    add_instance,
    cluster,
    count,
    example,
    transformer,
)
from ..inputs import MICROBATCHES, typed
from ..kernel_warmup import announce_compiling
from ..output import print_json
from .compare import load_profiles

if TYPE_CHECKING:
    from pipeloom.ir.model.profile import Profile
    from pipeloom.planner.partition.fixed_cut import Cuts, Profiles
    from pipeloom.planner.passing.crossovers import Crossover, Scheme
    from pipeloom.planner.synthetic.transformer import Transformer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "profile", metavar="PROFILE", nargs="?", help="profile file, - for standard input"
    )
    add_instance(parser)
    parser.add_argument(
        "--tokens",
        metavar="N",
        type=count,
        help="tokens of a microbatch (G x S) that the profile was measured with: crossovers in "
        "tokens, not in multiples of it",
    )
    parser.add_argument(
        "--transformer",
        metavar="KEY=N,...",
        type=transformer,
        help="a calculated model instead of the profile's stages, of which ranks and links are "
        "kept: "
        f"{', '.join(TRANSFORMER)}; also {', '.join(TRANSFORMER_TOO)}",
    )
    parser.add_argument(
        "--cluster",
        metavar="KEY=N,...",
        type=cluster,
        help="a calculated cluster instead of a profile's, islands of ranks with fast links "
        "(GB/s) in a "
        f"slower network: {', '.join(CLUSTER)}; also latency (ms)",
    )
    add_cut(parser, files=False)
    example(
        parser,
        "pipeloom analyze profile.json -m 16 --tokens 4096",
        "pipeloom analyze cluster.json -m 64 --transformer "
        "layers=32,hidden=2048,sequence=16384,microbatch=4,teraflops=150",
        "pipeloom analyze -m 64 --cluster ranks=16,island=8,inside=200,between=1.2 --transformer "
        "layers=32,hidden=2048,sequence=16384,microbatch=4,teraflops=150,recompute=1",
        "pipeloom analyze profile.json -m 16 --objective makespan --json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.ir.model.problem import Objective
    from pipeloom.planner.passing.crossovers import crossovers, missing_sizes, schemes

    profile, profile_of, cuts, model = _model(args)
    tokens = args.tokens if model is None else model.tokens
    found, refused = schemes(profile, args.microbatches, Objective(args.objective), profile_of)
    missing = missing_sizes(profile)
    crossed = [] if missing else crossovers(found)
    if args.json:
        print_json(
            {
                "profile": profile.name,
                "microbatches": args.microbatches,
                "objective": args.objective,
                "tokens": tokens,
                "partition": None if cuts is None else cuts.way,
                "recomputed": None if model is None else model.recomputed_bytes,
                "schemes": [_as_json(scheme) for scheme in found],
                "refused": refused,
                "crossovers": [asdict(crossover) for crossover in crossed],
                "missing": missing,
            }
        )
        return 0
    parts = [_figures(found, profile, model), _bubbles(found), _crossings(crossed, missing, tokens)]
    if cuts is not None:
        parts.append(f"layers cut for each scheme into as many stages as it runs: {cuts.way}")
    if refused:
        parts.append("\n".join(f"{name}: {reason}" for name, reason in refused.items()))
    print("\n\n".join(parts))
    return 0


def _model(
    args: argparse.Namespace,
) -> tuple[Profile, Profiles, Cuts | None, Transformer | None]:
    """The profile, that of each family, how it is cut by layers, and the model that it was
    calculated of."""
    if (args.profile is None) == (args.cluster is None):
        raise InputError("PROFILE, --cluster: expected one of them")
    if args.transformer is None:
        if args.cluster is not None:
            raise InputError("--cluster: needs --transformer, which says what its ranks run")
        return *load_profiles(args)[1:], None
    from pipeloom.planner.synthetic.transformer import Transformer

    if args.tokens is not None:
        raise InputError("--tokens: not together with --transformer, which says how many there are")
    options: dict[str, Any] = dict(args.transformer)
    model = Transformer(**options | {"recompute": options.get("recompute") == 1})
    cluster = load_profiles(args)[1] if args.cluster is None else _cluster(args)
    try:
        profile = model.on(cluster)
    except InputError as error:
        raise InputError(*(f"--transformer: {line}" for line in error.errors)) from None
    return profile, lambda _: profile, None, model


def _cluster(args: argparse.Namespace) -> Profile:
    """A calculated cluster, which has no stages yet."""
    from pipeloom.ir.model.links import Link
    from pipeloom.planner.problem_setup import check_microbatches
    from pipeloom.planner.synthetic.cluster import islands

    given = args.cluster
    inside, between = (Link(given.get("latency", 0.0), given[key]) for key in ("inside", "between"))
    try:
        found = islands(given["ranks"], given["island"], inside, between)
        announce_compiling()
        with typed(microbatches=MICROBATCHES):
            check_microbatches(args.microbatches, found.num_stages)
        return found
    except InputError as error:
        raise InputError(*(f"--cluster: {line}" for line in error.errors)) from None


def _as_json(scheme: Scheme) -> dict[str, Any]:
    return {
        "scheme": scheme.name,
        "passing": scheme.passing.value,
        "period": scheme.timing.period,
        "makespan": scheme.timing.makespan,
        "step": scheme.step,
        "averaging": scheme.averaging,
        "bubble": asdict(scheme.bubble),
        "traffic": scheme.traffic.tolist(),
        "link_bytes": scheme.link_bytes,
        "link_use": scheme.link_use,
        "wire": scheme.wire,
        "sent_bytes": scheme.sent_bytes,
        "memory": asdict(scheme.footprint) | {"total": scheme.footprint.total},
        "balance": scheme.balance,
        "over_device_memory": scheme.over,
    }


def _figures(found: list[Scheme], profile: Profile, model: Transformer | None) -> str:
    from pipeloom.ir.units import duration

    replicas = profile.data_parallel is not None
    header = [
        "scheme",
        "period",
        "makespan",
        "step",
        *(["averaging"] if replicas else []),
        "busiest link",
        "in use",
        "wire",
        "sent by a rank",
        "activations",
        "all memory",
        "balance",
    ]
    rows = [
        [
            scheme.name,
            duration(scheme.timing.period),
            duration(scheme.timing.makespan),
            duration(scheme.step),
            *([duration(scheme.averaging or 0.0)] if replicas else []),
            amount(scheme.link_bytes),
            _share(scheme.link_use),
            scheme.wire or "-",
            amount(scheme.sent_bytes),
            amount(max(scheme.footprint.activations)),
            amount(max(scheme.footprint.total)),
            _share(scheme.balance),
        ]
        for scheme in found
    ]
    lines = [table(header, rows)]
    if any(stage.weight_bytes is None for stage in profile.stages):
        lines.append("weight_bytes unknown: weights take no memory and no time here")
    if model is not None and model.recompute:
        lines.append(f"and {amount(model.recomputed_bytes)} while a layer is recomputed")
    over = [scheme.name for scheme in found if scheme.over]
    if over:
        lines.append(f"more than device_memory: {', '.join(over)}")
    return "\n".join(lines)


def _bubbles(found: list[Scheme]) -> str:
    header = ["bubble", "of the", "formula", "T_F:T_B:T_W, M", "stages", "delays", "built"]
    rows = []
    for scheme in found:
        bubble = scheme.bubble
        first = None if bubble.formula is None else bubble.equal - bubble.formula
        rows.append(
            [
                scheme.name,
                bubble.objective,
                _share(bubble.formula),
                _added(first),
                _added(bubble.stages - bubble.equal),
                _added(bubble.built - bubble.stages),
                _share(bubble.built),
            ]
        )
    return table(header, rows)


def _crossings(crossed: list[Crossover], missing: list[str], tokens: int | None) -> str:
    if missing:
        return f"no crossovers: the profile lacks {', '.join(missing)}"
    unit = "times the microbatch" if tokens is None else "tokens a microbatch (G x S)"
    header = [f"wins from, {unit}", "bytes on a link", "formula", "time", "time, of 1f1b"]
    rows = [
        [
            crossover.scheme,
            *(_size(value, tokens) for value in (crossover.link, crossover.formula)),
            *(
                "never" if value is None else _size(value, tokens)
                for value in (crossover.time, crossover.time_1f1b)
            ),
        ]
        for crossover in crossed
    ]
    return table(header, rows) + "\nagainst the best of those in which activations travel"


def _size(value: float | None, tokens: int | None) -> str:
    if value is None:
        return "-"
    if value == 0.0:
        return "any"
    return f"{value:.3g}" if tokens is None else f"{value * tokens:.4g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.2f} %"


def _added(value: float | None) -> str:
    if value is None:
        return "-"
    return "0" if abs(value) < 5e-7 else f"{value * 100:+.2f}"
