"""Models and rings: shapes chosen so that another kind of passing wins in each."""

from __future__ import annotations

from dataclasses import dataclass, field

from examples.gpt import GPT
from pipeloom import Profile, StageProfile
from pipeloom.ir import Links
from pipeloom.runtime.pipeline.model_source import checked_stages
from pipeloom.runtime.stages.store import made

from .network import Ring

FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Configuration:
    """``model`` in one stage a rank, ``microbatches`` a step. ``times``: milliseconds of F, B and W
    of every stage; ranks sleep until they are over, so they are those of a device far faster or
    slower than a share of this machine's cores could keep up with."""

    name: str
    model: GPT
    microbatches: int
    times: tuple[float, float, float]
    ring: Ring = field(default_factory=Ring)

    @property
    def activation_bytes(self) -> int:
        """The bytes that one microbatch sends from stage to stage."""
        return FLOAT * self.model.microbatch * self.model.context * self.model.width

    def profile(self, links: Links) -> Profile:
        """The stages' sizes are those of the model's own parameters; memory is not limited."""
        t_f, t_b, t_w = self.times
        stages = tuple(
            StageProfile(
                t_f, t_b, t_w,
                m_b=self.activation_bytes,
                activation_bytes=self.activation_bytes,
                weight_bytes=size, grad_bytes=size, optimizer_bytes=2 * size,
            )
            for size in self.stage_bytes()
        )  # fmt: skip
        return Profile(stages, self.ring.ranks, links=links, name=self.name)

    def stage_bytes(self) -> list[int]:
        """Bytes of each stage's parameters."""
        stages = checked_stages(self.model, self.ring.ranks)
        modules = [made(stage, s) for s, stage in enumerate(stages)]
        return [FLOAT * sum(p.numel() for p in module.parameters()) for module in modules]


def gpt(layers: int, width: int, context: int, microbatch: int) -> GPT:
    """A head for every 32 or 64 of the width."""
    return GPT(layers, width, width // (32 if width % 64 else 64), context, microbatch)


def _alike(milliseconds: float) -> tuple[float, float, float]:
    return milliseconds, milliseconds, milliseconds


# Chosen by prediction, before anything was measured. The slow link lies in the middle of the line
# of ranks that activations follow (1) or joins its ends (3).
CONFIGURATIONS = (
    Configuration("wide", gpt(4, 256, 128, 1), 8, _alike(60.0)),
    Configuration("wider", gpt(4, 320, 128, 1), 8, _alike(60.0)),
    Configuration("long", gpt(4, 32, 1024, 2), 4, _alike(90.0)),
    Configuration("middle", gpt(4, 128, 256, 4), 4, _alike(40.0)),
    Configuration("middle-short", gpt(4, 160, 256, 2), 4, _alike(60.0)),
    Configuration("deep-ends", gpt(8, 128, 256, 4), 4, _alike(50.0), Ring(slow=3)),
    Configuration("deeper-ends", gpt(12, 96, 256, 4), 4, _alike(60.0), Ring(slow=3)),
    Configuration("wide-ends", gpt(8, 160, 256, 2), 4, _alike(60.0), Ring(slow=3)),
    Configuration("middle-wide", gpt(4, 192, 256, 2), 4, _alike(60.0)),
)
