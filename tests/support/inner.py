"""Names of the library that are not public and several files of tests use: one place to change."""

# ruff: noqa: PLC0414

from __future__ import annotations

from pipeloom.cli.main import COMMANDS as COMMANDS
from pipeloom.cli.main import main as main
from pipeloom.ir import DataParallel as DataParallel
from pipeloom.ir import LayeredProfile as LayeredProfile
from pipeloom.ir import Link as Link
from pipeloom.ir import Links as Links
from pipeloom.ir import Op as Op
from pipeloom.ir import OpKind as OpKind
from pipeloom.ir import Passing as Passing
from pipeloom.ir import Report as Report
from pipeloom.ir import Sharing as Sharing
from pipeloom.ir import Status as Status
from pipeloom.ir import Timing as Timing
from pipeloom.ir import parse_profile as parse_profile
from pipeloom.ir.formats.lengths_document import parse_lengths as parse_lengths
from pipeloom.planner import Configuration as Configuration
from pipeloom.planner import Efficiency as Efficiency
from pipeloom.planner import Event as Event
from pipeloom.planner import Note as Note
from pipeloom.planner import SequenceCosts as SequenceCosts
from pipeloom.planner import TrainingRun as TrainingRun
from pipeloom.planner import Workers as Workers
from pipeloom.planner import preset as preset
from pipeloom.planner import read_cluster as read_cluster
from pipeloom.planner import read_model as read_model
from pipeloom.planner import read_rows as read_rows
from pipeloom.planner.configurations.bounds import Bounds as Bounds
from pipeloom.planner.configurations.evaluation import BoundedConfiguration as BoundedConfiguration
from pipeloom.planner.configurations.evaluation import evaluate as evaluate
from pipeloom.planner.configurations.evaluation import improve as improve
from pipeloom.planner.configurations.space import Space as Space
from pipeloom.planner.models.layers import work_of as work_of
from pipeloom.planner.models.reading.presets import PRESETS as PRESETS
from pipeloom.planner.models.work import Attention as Attention
from pipeloom.planner.models.work import Collective as Collective
from pipeloom.planner.models.work import CollectiveKind as CollectiveKind
from pipeloom.planner.models.work import Gemm as Gemm
from pipeloom.planner.models.work import Group as Group
from pipeloom.planner.models.work import WorkKind as WorkKind
from pipeloom.planner.models.work import states_of as states_of
from pipeloom.planner.passing.choose import choose as choose
from pipeloom.planner.prediction.setup import Setup as Setup
from pipeloom.planner.prediction.step import StepTimes as StepTimes
from pipeloom.planner.scaling import losses_of as losses_of
from pipeloom.planner.solving.progress import Searched as Searched
from pipeloom.planner.solving.progress import Searching as Searching
from pipeloom.planner.solving.workers import LostWorkersError as LostWorkersError
from pipeloom.planner.solving.workers import stop_asked as stop_asked
from pipeloom.solver import FAMILIES as FAMILIES
from pipeloom.solver import SolveOptions as SolveOptions
from pipeloom.solver import lower_bound as lower_bound
from pipeloom.solver import one_at_a_time as one_at_a_time
