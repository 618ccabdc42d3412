"""Names that went since the tree that was called 0.1.0, each with what takes its place.

An old name is refused with this line instead of "unrecognized arguments". The table is kept for one
version.
"""

from __future__ import annotations

# "pipeloom x" is a command, "--x" an option, "pipeloom.x" a Python name, "key x" a key of a file,
# "family x" a schedule family, "--x y" the value y of an option
REMOVED: dict[str, str] = {
    "--local": "ranks are processes, which share a GPU where there are fewer GPUs than ranks",
    "--cuda-graph": "`run --stages-as inductor` makes each step's calls fewer",
    "pipeloom arithmetic": "`pipeloom predict MODEL` without --gpu or --cluster prints it",
    "pipeloom calibrate": "pipeloom.calibrate(runs).document in Python is the cluster file",
    "pipeloom analyze": "compare shows bubble, bytes on a link and memory of each schedule",
    "pipeloom.analyze": "pipeloom.compare shows bubble, bytes on a link, memory of each schedule",
    "--robust": "schedules are planned for the profile's times; --slow RANK:X plans for slow ranks",
    "--spread": "schedules are planned for the profile's times; --slow RANK:X plans for slow ranks",
    "--solver highs": "--solver milp solves the ILP with CBC",
    "family weights-inside": "weipipe-interleave passes weights among all ranks",
    "family activations-inside": "zb-h1 and the others pass activations among all ranks",
    "--levels": "--recompute measures t_r and m_r, of a whole forward",
    "key level": "an R recomputes a whole forward",
    "key levels": "t_r and m_r say how a stage is recomputed, whole",
    "pipeloom.Level": "t_r and m_r of a StageProfile",
    "pipeloom tune": "Pipeline.profile measures, step(program=) goes on: examples/replanning.py",
    "pipeloom.tune": "Pipeline.profile measures, step(program=) goes on: examples/replanning.py",
    "pipeloom pack": "pipeloom.pack packs sequences and schedules them, in Python",
    "--max-tokens": "pipeloom.pack takes max_tokens, in Python",
    "key packing": "a profile has no sequences: pipeloom.pack returns them beside its schedules",
}


def replaced(name: str) -> str | None:
    """The line for a ``name`` as it is written in :data:`REMOVED`; None if it is not there."""
    line = REMOVED.get(name)
    return None if line is None else f"was removed in 0.2.0; {line}"
