"""The speed of the simulator and of the search, and the run time of commands with their start."""

from .. import parts
from . import commands, methods, simulator

_ALL = parts(simulator, methods, commands)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
