"""Passing activations, weights or shards on a ring of network namespaces with one slow link, and
training under faults."""

from .. import parts
from . import faults, ring

ROOMS = ("ir", "solver", "planner", "compiler", "runtime")
_ALL = parts(ring, faults)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
