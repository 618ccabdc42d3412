"""Trains a Hugging Face Llama, byte by byte, on the source text of Python's standard library.

The model starts from random weights. It runs on two processes, after
``pip install 'pipeloom[models]'``::

    python -m examples.train_text             # 60 steps, saved and evaluated every 20
    python -m examples.train_text --steps 90  # continues from there
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

import pipeloom
from pipeloom import Profile, StageProfile, StepRecord

from .data import windows

STAGES, MICROBATCHES = 2, 4


@dataclass(frozen=True)
class Text(pipeloom.HuggingFace):
    """A Hugging Face model that reads bytes. The labels equal the tokens, as the model shifts them
    itself."""

    path: str = str(Path(__file__).parent / "models" / "llama.json")
    seq: int = 64
    micro_batch: int = 4
    lr: float = 1e-2

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return self._windows(step, microbatches, held_out=False)

    def eval_batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The same batch in each evaluation, from text that is not used for training."""
        return self._windows(0, microbatches, held_out=True)

    def _windows(
        self, step: int, microbatches: int, *, held_out: bool
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        drawn = windows(step, microbatches * self.micro_batch, self.seq, held_out=held_out)
        parts = drawn.chunk(microbatches)
        return parts, parts


def tell(record: StepRecord) -> None:
    """A callback that prints the evaluation loss of a step, if the step was evaluated."""
    if record.eval_loss is not None:
        print(f"after step {record.step}: {record.eval_loss:.3f} nats a byte of unseen text")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_text", description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="in all, 60 by default")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--out", default="out/text", help="folder of checkpoints")
    args = parser.parse_args(argv)
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * STAGES, STAGES)  # or pipeloom.measure(...)
    program = pipeloom.compile(pipeloom.build("zb-h1", profile, MICROBATCHES))
    pipeloom.run(
        program,
        Text(),
        steps=args.steps,
        save=args.out,
        every=args.every,
        resume=args.out if Path(args.out).exists() else None,
        eval_every=args.every,
        callbacks=[tell],
        quiet=False,
    )


if __name__ == "__main__":
    main()
