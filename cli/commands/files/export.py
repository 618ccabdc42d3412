"""Writes a schedule in another system's format and prints the flags to use with it."""

from __future__ import annotations

import argparse

from ...arguments import FORMATS, add_output, add_schedule, at_least_one, example
from ...inputs import typed
from ...model_arguments import need_torch
from ...output import check_output, print_json, say_words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser)
    parser.add_argument("--to", choices=FORMATS, required=True, help="format of the output")
    parser.add_argument(
        "--micro-batch-size",
        metavar="N",
        type=at_least_one,
        help="sequences per microbatch, for the flags; by default, the profile's micro_batch",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:ATTRIBUTE|hf:FOLDER",
        help="model source with layers, to check the exported module names",
    )
    add_output(parser, "text")
    example(
        parser,
        "pipeloom export schedule.json --to torch-csv -o schedule.csv",
        "pipeloom export schedule.json --to megatron-layout --micro-batch-size 2",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.ir.formats import write_text
    from pipeloom.planner.exchange import export

    check_output(args)
    with typed("model", "micro_batch_size"):
        exported = export(
            args.schedule,
            args.to,
            micro_batch_size=args.micro_batch_size,
            model=None if args.model is None else _layered(args.model),
        )
    to_stdout = args.output in (None, "-")
    if not (to_stdout and args.json):
        write_text(exported.text, args.output or "-")
    if args.json:
        print_json({"output": args.output} | exported.to_dict())
    else:
        # beside a text on standard output, which may go into a file
        written = "" if to_stdout else f"{exported.summary}\nwritten to {args.output}\n"
        say_words(f"{written}{exported.launch(args.output or 'FILE')}", aside=to_stdout)
    return 0


def _layered(name: str) -> object:
    """The model source, which names its layers. Raises InputError."""
    need_torch()
    from pipeloom.runtime.models.by_name import load_source
    from pipeloom.runtime.pipeline.layered_source import by_layers

    source = load_source(name)
    by_layers(source)
    return source
