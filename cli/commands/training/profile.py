"""Measures a model's stages and the links between ranks into a profile.

All ranks compute at the same time while they are measured, as they do in a pipeline.
--model names a model source such as examples.gpt:small, which is in the checkout. The module of a
source can also be in the current folder.

--from makes the profile from ops that were measured elsewhere, and needs no torch. It reads traces
of torch's profiler, of a pipeloom run or of torch.distributed.pipelining (one file per rank, or
their folder), or a schedule written by run --trace.

example:
  pipeloom profile --model examples.gpt:small --stages 4 -o profile.json
  pipeloom profile --model examples.gpt:small --stages 4 --ranks 2 --repeats 20 -o p.json
  pipeloom profile --model examples.gpt:small --layers --ranks 2 -o layers.json
  pipeloom profile --from traces/ --like profile.json -o new.json
  pipeloom profile --from measured.json -o new.json
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError
from pipeloom.planner.requests.fields import option
from pipeloom.planner.requests.kinds import MICROBATCHES as COUNT
from pipeloom.planner.requests.kinds import SECONDS
from pipeloom.planner.requests.measured import MeasuredRequest, ProfileFromRequest
from pipeloom.report.text_table import table

from ...arguments import WritingCommand
from ...model_arguments import ModelRequest
from ...output import check_output, finish
from ...progress import ProgressDisplay

if TYPE_CHECKING:
    from pipeloom.ir.formats.measured_profile import Measurement

UNSTEADY = 0.2
"""If half the interquartile range of a measured time, relative to that time, exceeds this, a note
is printed."""


@dataclass(frozen=True, kw_only=True)
class MeasureRequest(ModelRequest, MeasuredRequest):
    """A request to measure a model: the arguments of :func:`pipeloom.measure`."""

    apart = (("stages", "layers"),)

    stages: int | None = option("S", COUNT)
    """number of stages to measure"""
    layers: bool = option(default=False)
    """measure each layer, so that optimize can cut the model; needs --ranks"""
    repeats: int = option("N", COUNT, default=10)
    """number of measured rounds, 10 by default"""
    alone: bool = option(default=False)
    """measure in one process, one stage after another, and do not measure links"""
    recompute: bool = option(default=False)
    """also measure the recomputation of a forward and the memory held until then (t_r, m_r)"""
    offload: bool = option(default=False)
    """also measure offloading to the host (m_o, offload_bytes, host_link)"""
    timeout: float = option("S", SECONDS, default=300.0)
    """seconds to wait for a message, 300 by default"""


@dataclass(frozen=True, kw_only=True)
class ProfileCommand(WritingCommand, ProfileFromRequest, MeasureRequest):
    """The command ``pipeloom profile``: calls :func:`pipeloom.measure`, or with ``--from``
    :func:`pipeloom.profile_from`, and writes the profile."""

    def run(self) -> int:
        check_output(self)
        if self.files:
            return self._from_files()
        self._check_measuring()
        self.load_torch()
        from pipeloom.training import measure

        asked = self.arguments(MeasureRequest)
        del asked["quiet"]
        if self.warmup is None:  # --from has another default
            del asked["warmup"]
        measurement = measure(**asked)
        if os.environ.get("RANK", "0") == "0":  # under torchrun, only rank 0 prints
            answer = {"measured": measurement.record()}
            finish(self, measurement.document(), answer, _words(measurement))
        return 0

    def _from_files(self) -> int:
        from pipeloom.planner.measured.profile import profile_from

        asked = self.arguments(ProfileFromRequest)
        measuring = (each for each in fields(MeasureRequest) if each.name not in asked)
        for each in sorted(measuring, key=lambda each: each.name):
            if each.name != "quiet" and getattr(self, each.name) != each.default:
                words = "expected none together with --from, which measures nothing"
                raise InputError(f"{each.name}: {words}")
        found = profile_from(**asked | {"progress": ProgressDisplay(self.quiet)})
        finish(self, found.document(), {"measured": found.record()}, _words(found))
        return 0

    def _check_measuring(self) -> None:
        if self.model is None:
            raise InputError("model: missing; expected a model source, or --from and files")
        if self.stages is None and not self.layers:
            raise InputError("stages: missing; expected a number of stages, or --layers")
        if self.like is not None:
            raise InputError("like: expected it only together with --from")


def _words(measurement: Measurement) -> str:
    """The measurement as text for the terminal.

    One table row per stage or layer, each time with its interquartile range; then lines on the
    microbatch, messages and links; then notes.
    """
    from pipeloom.ir.units import amount, counted, duration

    profile = measurement.profile
    kinds = sorted({kind for times in measurement.times for kind in times})
    columns = {f"T_{kind.name}": [times.get(kind) for times in measurement.times] for kind in kinds}
    sizes = {"M_B": "m_b", "M_W": "m_w", "M_R": "m_r", "M_O": "m_o", "moved": "offload_bytes"}
    held = {name: [getattr(stage, key) for stage in profile.stages] for name, key in sizes.items()}
    shown = {
        name: ["" if f is None else f"{duration(f.median)} +-{f.spread / 2:.0%}" for f in figures]
        for name, figures in columns.items()
    } | {
        name: ["" if size is None else amount(size) for size in figures]
        for name, figures in held.items()
        if set(figures) != {None}
    }
    names = [
        stage.layers[0].name if measurement.by_layers else f"stage {s}"
        for s, stage in enumerate(profile.stages)
    ]
    rows = [list(row) for row in zip(names, *shown.values(), strict=True)]
    lines = [table(["", *shown], rows)]
    if profile.micro_batch is not None:
        lines.append(f"microbatches of {counted(profile.micro_batch, 'sequence')}")
    if measurement.delay is not None:
        lines.append(f"t_comm {duration(measurement.delay.median)}")
    links = {"links": getattr(profile.links, "default", None), "host link": profile.host_link}
    for name, link in links.items():
        if link is not None:
            rate = f"{link.gigabytes_per_second:.4g} GB/s"
            lines.append(f"{name} {rate}, latency {duration(link.latency)}")
    spreads = [abs(figure.spread) / 2 for times in measurement.times for figure in times.values()]
    if max(spreads, default=0.0) > UNSTEADY:
        lines.append(
            f"note: times spread by up to {max(spreads):.0%}, more than {UNSTEADY:.0%}: a plan "
            "relies on them; measure on an idle machine, or more often"
        )
    lines += [
        f"note: {names[s]}: BW took less time than B, which it contains: measure again"
        for s, stage in enumerate(profile.stages)
        if stage.t_bw is not None and stage.t_bw < stage.t_b
    ]
    lines += [f"{names[s]} runs eager: {why}" for s, why in measurement.eager.items()]
    return "\n".join(lines)
