"""Names of the library that are not public and several files of tests use: one place to change."""

# ruff: noqa: PLC0414

from __future__ import annotations

from pipeloom.cli.main import COMMANDS as COMMANDS
from pipeloom.cli.main import main as main
from pipeloom.ir.formats import parse_profile as parse_profile
from pipeloom.ir.formats.lengths_document import parse_lengths as parse_lengths
from pipeloom.ir.model.layered_profile import LayeredProfile as LayeredProfile
from pipeloom.ir.model.links import Links as Links
from pipeloom.ir.model.links import Sharing as Sharing
from pipeloom.ir.model.ops import Op as Op
from pipeloom.ir.model.ops import OpKind as OpKind
from pipeloom.ir.model.placement import Passing as Passing
from pipeloom.ir.model.profile import DataParallel as DataParallel
from pipeloom.ir.model.profile import Link as Link
from pipeloom.ir.model.schedule import Report as Report
from pipeloom.ir.model.schedule import Status as Status
from pipeloom.ir.model.schedule import Timing as Timing
from pipeloom.planner.clusters.cluster import preset as preset
from pipeloom.planner.clusters.cluster import read_cluster as read_cluster
from pipeloom.planner.clusters.efficiency import Efficiency as Efficiency
from pipeloom.planner.configurations.bounds import Bounds as Bounds
from pipeloom.planner.configurations.configuration import Configuration as Configuration
from pipeloom.planner.configurations.evaluation import BoundedConfiguration as BoundedConfiguration
from pipeloom.planner.configurations.evaluation import evaluate as evaluate
from pipeloom.planner.configurations.evaluation import improve as improve
from pipeloom.planner.configurations.space import Space as Space
from pipeloom.planner.models.layers import work_of as work_of
from pipeloom.planner.models.reading import read_model as read_model
from pipeloom.planner.models.reading.presets import PRESETS as PRESETS
from pipeloom.planner.models.run import TrainingRun as TrainingRun
from pipeloom.planner.models.work import Attention as Attention
from pipeloom.planner.models.work import Collective as Collective
from pipeloom.planner.models.work import CollectiveKind as CollectiveKind
from pipeloom.planner.models.work import Gemm as Gemm
from pipeloom.planner.models.work import Group as Group
from pipeloom.planner.models.work import WorkKind as WorkKind
from pipeloom.planner.models.work import states_of as states_of
from pipeloom.planner.packing.costs import SequenceCosts as SequenceCosts
from pipeloom.planner.passing.choose import choose as choose
from pipeloom.planner.prediction.measured_rows import read_rows as read_rows
from pipeloom.planner.prediction.setup import Setup as Setup
from pipeloom.planner.prediction.step import StepTimes as StepTimes
from pipeloom.planner.scaling import losses_of as losses_of
from pipeloom.planner.solving.progress import Event as Event
from pipeloom.planner.solving.progress import Note as Note
from pipeloom.planner.solving.progress import Searched as Searched
from pipeloom.planner.solving.progress import Searching as Searching
from pipeloom.planner.solving.workers import LostWorkersError as LostWorkersError
from pipeloom.planner.solving.workers import Workers as Workers
from pipeloom.planner.solving.workers import stop_asked as stop_asked
from pipeloom.solver.bounds import lower_bound as lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time as one_at_a_time
from pipeloom.solver.core.options import SolveOptions as SolveOptions
from pipeloom.solver.families import FAMILIES as FAMILIES
