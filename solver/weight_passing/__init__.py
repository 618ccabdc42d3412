"""The optimizer for weight passing."""

from .search import WeightPassingSearch as WeightPassingSearch
