"""The optimizer for schedules whose ranks send weights instead of activations."""

from .search import WeightPassingSearch as WeightPassingSearch
