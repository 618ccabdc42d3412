"""The speed of the simulator, and the run times of commands, including the start of the process."""

from .. import parts
from . import commands, simulator

_ALL = parts(simulator, commands)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
