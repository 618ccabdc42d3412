"""Passing activations, weights or shards of weights on a ring of network namespaces with one slow
link."""

from .. import parts
from . import ring

ROOMS = ("ir", "solver", "planner", "compiler", "runtime")
_ALL = parts(ring)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
