"""Costs of each scheme on a cluster: bubble, bytes, memory, and from where on to send weights.

All figures come from built schedules, without a memory limit; formulas stand beside them.
"""

from __future__ import annotations

import argparse

from ...argument_types import (
    CLUSTER,
    TRANSFORMER,
    TRANSFORMER_TOO,
    cluster,
    count,
    spread,
    transformer,
)
from ...arguments import add_cut, add_instance, add_seed, add_slow, example
from ...inputs import MICROBATCHES, options, read_profile, typed
from ...output import answer
from ...progress import ProgressDisplay

KEYS = ("tokens", "transformer", "cluster", "partition", "spread", "slow", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "profile",
        metavar="PROFILE",
        nargs="?",
        help="profile file, - for standard input; with --spread or --slow also a schedule",
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
        f"kept: {', '.join(TRANSFORMER)}; also {', '.join(TRANSFORMER_TOO)}",
    )
    parser.add_argument(
        "--cluster",
        metavar="KEY=N,...",
        type=cluster,
        help="a calculated cluster instead of a profile's, islands of ranks with fast links "
        f"(GB/s) in a slower network: {', '.join(CLUSTER)}; also latency (ms)",
    )
    add_cut(parser, files=False)
    parser.add_argument(
        "--spread",
        metavar="X",
        nargs="?",
        type=spread,
        const=True,
        help="what becomes of each step where op times vary: by this relative standard deviation, "
        "as in this file of measured ops, or without X as the profile says; a schedule or a "
        "program in place of PROFILE is then answered alone",
    )
    add_slow(parser)
    add_seed(parser, "the samples")
    example(
        parser,
        "pipeloom analyze profile.json -m 16 --tokens 4096",
        "pipeloom analyze cluster.json -m 64 --transformer "
        "layers=32,hidden=2048,sequence=16384,microbatch=4,teraflops=150",
        "pipeloom analyze -m 64 --cluster ranks=16,island=8,inside=200,between=1.2 --transformer "
        "layers=32,hidden=2048,sequence=16384,microbatch=4,teraflops=150,recompute=1",
        "pipeloom analyze profile.json -m 16 --objective makespan --json",
        "pipeloom analyze schedule.json --spread 0.05",
        "pipeloom analyze profile.json -m 16 --spread --slow 3:1.2",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.analyze import analyze

    display = ProgressDisplay()
    with typed(*KEYS, microbatches=MICROBATCHES):
        found = analyze(
            None if args.profile is None else read_profile(args, display),
            args.microbatches,
            **options(args, *KEYS, "objective"),
            progress=display,
        )
    answer(args, found.to_dict(), found)
    return 0
