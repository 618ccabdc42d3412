"""pipeloom: the best pipeline schedule for measured times and memory limits, with a proof, run on
torch.distributed.

The public names, loaded when first used, so that planning needs no torch and ``--help`` no solver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeloom.planner.packing.costs import refit as refit

    from .compiler import compile_schedule as compile_schedule
    from .ir.cost.simulator import simulate as simulate
    from .ir.errors import InfeasibleError as InfeasibleError
    from .ir.errors import InputError as InputError
    from .ir.errors import InvalidScheduleError as InvalidScheduleError
    from .ir.errors import PipeloomError as PipeloomError
    from .ir.formats import dump_profile as dump_profile
    from .ir.formats import dump_program as dump_program
    from .ir.formats import dump_schedule as dump_schedule
    from .ir.formats import load_profile as load_profile
    from .ir.formats import load_program as load_program
    from .ir.formats import load_schedule as load_schedule
    from .ir.formats import write_json as write_json
    from .ir.model.layers import Layer as Layer
    from .ir.model.layers import LayerKind as LayerKind
    from .ir.model.placement import Placement as Placement
    from .ir.model.problem import Objective as Objective
    from .ir.model.problem import Problem as Problem
    from .ir.model.profile import Profile as Profile
    from .ir.model.profile import StageProfile as StageProfile
    from .ir.model.schedule import Schedule as Schedule
    from .ir.verify.program import verify_program as verify_program
    from .ir.verify.schedule import verify_schedule as verify_schedule
    from .planner.build import build as build
    from .planner.compare import compare as compare
    from .planner.compile import compile as compile  # noqa: A004
    from .planner.evaluation.evaluation import Evaluation as Evaluation
    from .planner.exchange import export as export
    from .planner.exchange import import_ as import_
    from .planner.explain.answer import Answer as Answer
    from .planner.explain.explanation import explain as explain
    from .planner.measured.profile import profile_from as profile_from
    from .planner.models.arithmetic import Arithmetic as Arithmetic
    from .planner.models.arithmetic import arithmetic as arithmetic
    from .planner.optimize import optimize as optimize
    from .planner.pack import Packing as Packing
    from .planner.pack import pack as pack
    from .planner.plan import Plan as Plan
    from .planner.plan import plan as plan
    from .planner.predict import Prediction as Prediction
    from .planner.predict import predict as predict
    from .planner.prediction.calibration import Calibration as Calibration
    from .planner.prediction.calibration import calibrate as calibrate
    from .planner.scaling import Scaling as Scaling
    from .planner.scaling import scaling as scaling
    from .planner.show import show as show
    from .planner.sweep import sweep as sweep
    from .planner.verify import verify as verify
    from .runtime.models.huggingface import HuggingFace as HuggingFace
    from .runtime.pipeline.model_source import ModelSource as ModelSource
    from .runtime.pipeline.pipeline import Pipeline as Pipeline
    from .runtime.rank.loss_scale import LossScale as LossScale
    from .runtime.train.loop import StepRecord as StepRecord
    from .solver.families import build_family as build_family
    from .solver.optimize import solve as solve
    from .torch import PlannedSchedule as PlannedSchedule
    from .training import measure as measure
    from .training import run as run

__version__ = "0.2.0"

_HOMES = {
    "compiler": ("compile_schedule",),
    "ir.errors": ("InfeasibleError", "InputError", "InvalidScheduleError", "PipeloomError"),
    "ir.formats": (
        "dump_profile",
        "dump_program",
        "dump_schedule",
        "load_profile",
        "load_program",
        "load_schedule",
        "write_json",
    ),
    "ir.model.layers": ("Layer", "LayerKind"),
    "ir.model.placement": ("Placement",),
    "ir.model.problem": ("Objective", "Problem"),
    "ir.model.profile": ("Profile", "StageProfile"),
    "ir.model.schedule": ("Schedule",),
    "ir.cost.simulator": ("simulate",),
    "ir.verify.schedule": ("verify_schedule",),
    "ir.verify.program": ("verify_program",),
    "planner.explain.answer": ("Answer",),
    "planner.models.arithmetic": ("Arithmetic", "arithmetic"),
    "planner.build": ("build",),
    "planner.compile": ("compile",),
    "planner.exchange": ("export", "import_"),
    "planner.explain.explanation": ("explain",),
    "planner.measured.profile": ("profile_from",),
    "planner.optimize": ("optimize",),
    "planner.show": ("show",),
    "planner.verify": ("verify",),
    "runtime.rank.loss_scale": ("LossScale",),
    "runtime.models.huggingface": ("HuggingFace",),
    "runtime.pipeline.model_source": ("ModelSource",),
    "runtime.pipeline.pipeline": ("Pipeline",),
    "runtime.train.loop": ("StepRecord",),
    "solver.families": ("build_family",),
    "solver.optimize": ("solve",),
    "planner.prediction.calibration": ("Calibration", "calibrate"),
    "planner.compare": ("compare",),
    "planner.evaluation.evaluation": ("Evaluation",),
    "planner.pack": ("Packing", "pack"),
    "planner.packing.costs": ("refit",),
    "planner.plan": ("Plan", "plan"),
    "planner.predict": ("Prediction", "predict"),
    "planner.scaling": ("Scaling", "scaling"),
    "planner.sweep": ("sweep",),
    "torch": ("PlannedSchedule",),
    "training": ("measure", "run"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME)


def __dir__() -> list[str]:
    return sorted(globals().keys() | _HOME.keys())


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        line = import_module(".ir.removed", __name__).replaced(f"pipeloom.{name}")
        more = "" if line is None else f": it {line}"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")
    try:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        how = "pip install 'pipeloom[runtime]', or in a checkout pip install '.[runtime]'"
        raise ImportError(f"pipeloom.{name} needs PyTorch: {how}", name="torch") from None
