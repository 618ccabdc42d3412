from .compiler.compile import compile_schedule as compile_schedule
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
from .planner.configurations.plans import Plan as Plan
from .planner.configurations.scaling import Scaling as Scaling
from .planner.exchange import export as export
from .planner.exchange import import_ as import_
from .planner.measured.profile import profile_from as profile_from
from .planner.models.arithmetic import Arithmetic as Arithmetic
from .planner.models.arithmetic import arithmetic as arithmetic
from .planner.optimize import optimize as optimize
from .planner.pack import Packing as Packing
from .planner.pack import pack as pack
from .planner.packing.costs import refit as refit  # experimental
from .planner.plan import plan as plan
from .planner.predict import Prediction as Prediction
from .planner.predict import predict as predict
from .planner.prediction.calibration import Calibration as Calibration
from .planner.prediction.calibration import calibrate as calibrate
from .planner.results.explanation import explain as explain
from .planner.results.result import Result as Result
from .planner.show import show as show
from .planner.sweep import sweep as sweep
from .planner.verify import verify as verify
from .runtime.models.huggingface import HuggingFace as HuggingFace  # experimental
from .runtime.pipeline.model_source import ModelSource as ModelSource
from .runtime.pipeline.pipeline import Pipeline as Pipeline
from .runtime.rank.loss_scale import LossScale as LossScale
from .runtime.train.loop import StepRecord as StepRecord  # experimental
from .solver.families import build_family as build_family  # experimental
from .solver.optimize import solve as solve  # experimental
from .torch import PlannedSchedule as PlannedSchedule  # experimental
from .training import measure as measure
from .training import run as run

__version__: str
