"""The parts of the runtime that have no public name and that tests ask, in one place."""

from pipeloom.runtime.executor.deferred_ops import Linear as LinearRule
from pipeloom.runtime.executor.deferred_ops import defer

__all__ = ["LinearRule", "defer"]
