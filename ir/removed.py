"""Names that were removed since version 0.1.0, each with its replacement.

If a removed name is used, the error message contains its line in :data:`REMOVED`, instead of only
"unrecognized arguments". The table is kept for one version.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# "pipeloom x" is a command, "--x" an option, "y --x" an option of the command y alone,
# "pipeloom.x" a Python name, "key x" a key of a file, "family x" a schedule family, "certificate x"
# a kind of certificate, "--x y" the value y of an option
_TUNE = (
    "measure with Pipeline.profile, plan again, and give the new program to Pipeline.step, as "
    "examples/replanning.py does"
)
_ARGUMENT = "make the certificate again with optimize --certificate, which writes another argument"
REMOVED: dict[str, str] = {
    "--local": "without it run starts a process for each rank; ranks share a GPU if they have to",
    "--cuda-graph": "use `run --stages-as inductor`, which starts fewer kernels in each step",
    "pipeloom arithmetic": "`pipeloom predict MODEL` without --gpu or --cluster prints it",
    "--teraflops": "pipeloom.predict(model, gpu=...) gives the times of messages on a cluster",
    "--device-memory": "pipeloom.predict(model, gpu=...) gives the memory of each device",
    "pipeloom calibrate": "pipeloom.calibrate(cluster, runs).document in Python is its file",
    "pipeloom analyze": "compare shows bubble, bytes on a link and memory of each schedule",
    "pipeloom.analyze": "pipeloom.compare shows bubble, bytes on a link, memory of each schedule",
    "--robust": "schedules are planned for the profile's times; --slow RANK:X plans for slow ranks",
    "--spread": "schedules are planned for the profile's times; --slow RANK:X plans for slow ranks",
    "--solver highs": "--solver milp solves the ILP with CBC",
    "family weights-inside": "weipipe-interleave passes weights among all ranks",
    "family activations-inside": "zb-h1 and the others pass activations among all ranks",
    "--levels": "--recompute measures t_r and m_r, of a whole forward",
    "--recompute selective": "optimize recomputes whole forwards; plan and predict know selective",
    "certificate every-order": _ARGUMENT,
    "certificate rank-moments": _ARGUMENT,
    "certificate rank-flow": _ARGUMENT,
    "certificate crossings": _ARGUMENT,
    "certificate through": _ARGUMENT,
    "certificate memory-time": _ARGUMENT,
    "certificate head-tail": _ARGUMENT,
    "key nodes": _ARGUMENT,
    "key level": "an R recomputes a whole forward",
    "key levels": "t_r and m_r say how a stage is recomputed, whole",
    "pipeloom.Level": "t_r and m_r of a StageProfile",
    "pipeloom tune": _TUNE,
    "pipeloom.tune": _TUNE,
    "pipeloom.Answer": "optimize returns a pipeloom.Result",
    "pipeloom.Evaluation": "the rows of compare and sweep are of the type pipeloom.Result",
    "--memory-only": "`pipeloom predict MODEL` calculates memory without running the model",
    "--pairs": "write t_fb into the profile, the time of an F and a BW that overlap",
    "--view": "a profile joins what all processes measured",
    "--group": "Pipeline.profile measures the stages of a mesh",
    "--data-group": "Pipeline.profile measures the stages of a mesh",
    "--message-timeout": "--timeout limits one message, not the run",
    "pipeloom pack": "pipeloom.pack packs sequences and schedules them, in Python",
    "--max-tokens": "pipeloom.pack takes max_tokens, in Python",
    "--run": "each key of a run has an option, such as --compile",
    "pipeloom.scaling": "pipeloom.plan(model, scale=[8, 16], ...) does the same",
    "key host": "optimize offloads with the profile's host_link and m_o, plan does not",
    "--schedule optimal": "pipeloom plan with the same degrees finds the best schedule",
    "plan --passing": "plan sends activations; optimize --passing weights passes weights",
    "profile --split": "profile --from takes the share of B in a BW from --like",
    "profile --memory": "profile --from takes M_B and M_W from --like",
    "profile --t-comm": "profile --from takes links from --like",
    "--from megatron-layout": "build 1f1b cuts a profile by layers; --partition FILE uses a cut",
    "plan --scaling": "plan --scale grows the batch with the GPUs; plan each number for one batch",
    "key packing": "a profile has no sequences: pipeloom.pack returns them with its schedules",
}


def telling_removed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: raise TypeError for removed keyword arguments, with their line in REMOVED."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        known = signature(function).parameters
        for name in kwargs.keys() - known:
            option = f"--{name.replace('_', '-')}"
            if (line := replaced(option, function.__name__.removesuffix("_from"))) is not None:
                raise TypeError(f"{function.__name__}: {name} {line}")
        return function(*args, **kwargs)

    return call


def replaced(name: str, command: str = "") -> str | None:
    """The message that ``name`` was removed, with its replacement; None if it was not.

    ``name``: a key of :data:`REMOVED`, such as ``--local`` or ``key nodes``. ``command``: the
    command or function that was called with the option ``name``.
    """
    line = REMOVED.get(f"{command} {name}") or REMOVED.get(name)
    return None if line is None else f"was removed in 0.2.0; {line}"
