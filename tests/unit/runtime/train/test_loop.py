"""The training loop's memory over a long run."""

from __future__ import annotations

import tracemalloc
from typing import cast

from pipeloom.runtime import ModelSource, Pipeline, RunSettings, TrainingLoop
from pipeloom.runtime.train.loop import KEPT, StepMeasure

MARKS = 1000
STEPS = 10 * KEPT


class MarkedLoop(TrainingLoop):
    """A loop whose steps do nothing but leave their marks."""

    def _next(self, pipeline: Pipeline) -> StepMeasure:
        self.step += 1
        return StepMeasure([1.0], 0.5, 8, 4, [0.5] * MARKS, {0: (0.0, 1.0)}, 4)


def test_marks_of_a_long_run_do_not_pile_up() -> None:
    """They were megabytes a minute and rank; the last ones are there for the measured schedule."""
    loop = MarkedLoop(cast(ModelSource, None), RunSettings(steps=STEPS))
    tracemalloc.start()
    try:
        history = loop.run(cast(Pipeline, None))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(history) == STEPS
    assert [len(measure.marks) for measure in history[-KEPT:]] == [MARKS] * KEPT
    assert not any(measure.marks or measure.averages for measure in history[:-KEPT])
    kept = KEPT * MARKS * 8  # bytes
    assert peak < 2 * kept
