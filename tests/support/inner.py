"""Names of the library that are not public and several files of tests use: one place to change."""

# ruff: noqa: PLC0414

from __future__ import annotations

from pipeloom.cli.main import COMMANDS as COMMANDS
from pipeloom.cli.main import main as main
from pipeloom.ir import LayeredProfile as LayeredProfile
from pipeloom.ir import Link as Link
from pipeloom.ir import Links as Links
from pipeloom.ir import Op as Op
from pipeloom.ir import OpKind as OpKind
from pipeloom.ir import Report as Report
from pipeloom.ir import Sharing as Sharing
from pipeloom.ir import Status as Status
from pipeloom.ir import Timing as Timing
from pipeloom.ir import parse_profile as parse_profile
from pipeloom.planner import Event as Event
from pipeloom.planner.passing.choose import choose as choose
from pipeloom.planner.scaling import losses_of as losses_of
from pipeloom.planner.solving.progress import Searched as Searched
from pipeloom.planner.solving.progress import Searching as Searching
from pipeloom.solver import FAMILIES as FAMILIES
from pipeloom.solver import lower_bound as lower_bound
from pipeloom.solver import one_at_a_time as one_at_a_time
