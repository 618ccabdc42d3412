"""How fast the simulator is, and how long commands take from the start of their process."""

from .. import parts
from . import commands, simulator

_ALL = parts(simulator, commands)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
