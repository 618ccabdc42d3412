"""The optimizer for weight passing."""

from .every_arrival import search_every_arrival as search_every_arrival
from .search import WeightPassingSearch as WeightPassingSearch
